"""Invariants of the core over random histories: one decision per checkpoint, durable and never changed; completed only
when every participant has acknowledged; stale calls refused; the last completed positions restored; refusals change
nothing."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from onceward.protocol.answers import Verdict
from onceward.protocol.core import next_deadline, step, wanted
from onceward.protocol.durable import Durable
from onceward.protocol.events import OpenJob, Tick
from onceward.protocol.facts import RequestEnded, RequestQueued, StatusChanged
from onceward.protocol.requests import MAX_KEPT, MAX_QUEUED
from onceward.protocol.state import JobState, restart
from onceward.protocol.status import TRANSITIONS, JobStatus, Transition, after
from onceward.protocol.values import JobName
from tests.conftest import examples
from tests.support.histories import Move, moves, to_event
from tests.support.life import Life

_CHANGING = (Verdict.ACCEPTED, Verdict.CONFLICT)


@given(moves)
@settings(max_examples=examples(300), deadline=None)
def test_every_history_keeps_the_invariants(history: list[Move]) -> None:
    now, life, status = 50.0, Life(), JobStatus.CREATED
    waiting: set[str] = set()
    state = JobState(durable=Durable(job=JobName("orders"), store_id="this"))
    for move in history:
        now += move.wait
        if move.kind == "restart":
            state = restart(state.durable, now)
            assert life.restarted(state) is None
            continue
        event, before = to_event(move, state, now), state
        state, ready = step(state, event)
        assert life.stepped(before, event, ready, state) is None
        for fact in ready.facts:
            match fact:
                case StatusChanged():
                    assert fact.status is after(status, fact.transition)
                    status = fact.status
                case RequestQueued():
                    assert fact.request.id not in waiting
                    waiting.add(fact.request.id)
                    assert len(waiting) <= MAX_QUEUED
                case RequestEnded():
                    assert fact.request.state.ended
                    waiting.remove(fact.request.id)
                case _:
                    pass
        assert state.durable.status is status
        assert {request.id for request in state.durable.open_requests} == waiting
        assert len(state.durable.requests) <= MAX_KEPT
        if not state.durable.driven:
            assert wanted(state) == ()
            assert (state.session, state.pending) == (None, None)


@given(moves)
@settings(max_examples=examples(200), deadline=None)
def test_whatever_is_not_accepted_leaves_the_state_as_it_was(history: list[Move]) -> None:
    now = 50.0
    state = JobState(durable=Durable(job=JobName("orders"), store_id="this"))
    for move in history:
        now += move.wait
        if move.kind == "restart":
            state = restart(state.durable, now)
            continue
        state, _ = step(state, Tick(now=now))
        event = to_event(move, state, now)
        state, _ = step(state, Tick(now=event.now))  # first do what is due by time alone
        before = state
        state, ready = step(state, event)
        if ready.answer.verdict not in _CHANGING:
            if isinstance(event, OpenJob) and ready.answer.verdict is Verdict.DUPLICATE:
                before = replace(before, session=state.session)  # asking again is a sign of life
            assert state == before, ready
            assert ready.facts == ()
            assert ready.note is not None or ready.answer.verdict is Verdict.BUSY


@given(moves)
@settings(max_examples=examples(200), deadline=None)
def test_time_changes_nothing_before_the_next_deadline(history: list[Move]) -> None:
    now = 50.0
    state = JobState(durable=Durable(job=JobName("orders"), store_id="this"))
    for move in history:
        now += move.wait
        if move.kind == "restart":
            state = restart(state.durable, now)
        else:
            state, _ = step(state, to_event(move, state, now))
        deadline = next_deadline(state)
        before = now + 1e6 if deadline is None else deadline - 1e-6
        if before > now:
            after, ready = step(state, Tick(now=before))
            assert (after, ready.facts) == (state, ())
        if deadline is not None and deadline >= now:
            assert step(state, Tick(now=deadline + 1e-6))[1].facts, "a deadline at which nothing happens"


def test_every_transition_has_its_place_and_every_other_one_is_refused() -> None:
    assert TRANSITIONS.keys() == set(Transition)
    for transition, (sources, target) in TRANSITIONS.items():
        assert sources
        for status in JobStatus:
            if status in sources:
                assert after(status, transition) is target
            else:
                with pytest.raises(ValueError, match="cannot change"):
                    after(status, transition)
    assert {target for _, target in TRANSITIONS.values()} == set(JobStatus) - {JobStatus.CREATED}
