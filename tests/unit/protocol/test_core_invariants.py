"""Invariants of the core over random histories: one decision per checkpoint, durable and never changed; completed only
when every participant has acknowledged; stale calls refused; the last completed positions restored; refusals change
nothing."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from onceward.coordinator.protocol.answers import Verdict
from onceward.coordinator.protocol.core import next_deadline, step, wanted
from onceward.coordinator.protocol.durable import Durable
from onceward.coordinator.protocol.events import Acknowledge, OpenJob, Tick
from onceward.coordinator.protocol.evolve import evolve
from onceward.coordinator.protocol.facts import (
    CheckpointAborted,
    CheckpointAmended,
    CheckpointCompleted,
    CheckpointRestored,
    CheckpointSettled,
    CheckpointTriggered,
    CheckpointUnchanged,
    Fact,
    GenerationGranted,
    InputSkipped,
    LossRecorded,
    LossSkipped,
    RequestEnded,
    RequestQueued,
    SlotsResolved,
    StatusChanged,
)
from onceward.coordinator.protocol.requests import MAX_KEPT, MAX_QUEUED, RequestState
from onceward.coordinator.protocol.state import JobState, restart
from onceward.coordinator.protocol.status import TRANSITIONS, JobStatus, Transition, after
from onceward.coordinator.protocol.values import JobName, ParticipantName, Snapshot
from tests.conftest import examples
from tests.support.histories import Move, moves, to_event

_CHANGING = (Verdict.ACCEPTED, Verdict.CONFLICT)


class _Witness:
    """Follow the facts and fail on those that must not occur."""

    def __init__(self) -> None:
        self.last_triggered = 0
        self.generation = 0
        self.running: int | None = None
        self.acknowledged: dict[ParticipantName, Snapshot] = {}
        self.completed = 0
        self.settled = True
        self.decided: set[int] = set()
        self.status = JobStatus.CREATED
        self.lost: set[int] = set()
        self.waiting: set[str] = set()

    def see(self, fact: Fact) -> None:
        match fact:
            case GenerationGranted():
                assert fact.generation > self.generation
                self.generation = fact.generation
                assert self.running is None, "the undecided checkpoint is decided before the grant"
                self.last_triggered = max(self.last_triggered, fact.first_id)
            case CheckpointTriggered():
                assert fact.checkpoint > self.last_triggered, "ids strictly increase"
                assert fact.base == self.completed, "a checkpoint builds on the last completed one"
                assert self.running is None
                assert not self.lost
                assert fact.generation == self.generation
                self.last_triggered = self.running = fact.checkpoint
                self.acknowledged = {}
            case CheckpointCompleted():
                self._decide(fact.checkpoint)
                assert self.settled, "completed although its predecessor is not settled"
                assert fact.snapshots == self.acknowledged, "completed with what was not acknowledged"
                assert fact.snapshots.keys() == {"source", "sink"}, "completed without an acknowledgement"
                self.completed, self.settled = fact.checkpoint, fact.settled
            case CheckpointAborted() | CheckpointUnchanged():
                self._decide(fact.checkpoint)
            case CheckpointSettled():
                assert fact.checkpoint == self.completed
                assert not self.settled
                assert not self.lost, "settled although a lost slot was not written again"
                self.settled = True
            case CheckpointRestored():
                assert self.settled, "a checkpoint that is not settled was left behind"
                assert self.running is None
                assert fact.checkpoint > self.last_triggered
                assert fact.former == self.completed
                self.last_triggered = self.completed = fact.checkpoint
            case LossRecorded():
                assert fact.checkpoint == self.completed
                assert self.running is None, "something later runs while lost records are written again"
                self.lost |= {settlement.slot for settlement in fact.settlements}
            case CheckpointAmended():
                assert fact.slots <= self.lost
                self.lost -= fact.slots
            case LossSkipped():
                assert fact.checkpoint == self.completed
                self.lost -= {settlement.slot for settlement in fact.settlements}
            case SlotsResolved():
                assert fact.checkpoint == self.completed
                self.lost -= fact.slots | fact.settled
            case InputSkipped():
                assert self.settled
                assert self.running is None
                assert fact.checkpoint > self.last_triggered
                assert fact.base == self.completed
                self.last_triggered = self.completed = fact.checkpoint
            case StatusChanged():
                assert fact.status is after(self.status, fact.transition)
                self.status = fact.status
            case RequestQueued():
                assert fact.request.id not in self.waiting
                self.waiting.add(fact.request.id)
                assert len(self.waiting) <= MAX_QUEUED
            case RequestEnded():
                assert fact.request.state.ended
                if fact.request.state is RequestState.COMPLETED and fact.request.kind.value == "savepoint":
                    assert fact.request.checkpoint == self.completed, "told completed before it was"
                self.waiting.remove(fact.request.id)
            case _:
                pass

    def _decide(self, checkpoint: int) -> None:
        assert checkpoint == self.running
        assert checkpoint not in self.decided, "one decision per checkpoint"
        self.decided.add(checkpoint)
        self.running = None


@given(moves)
@settings(max_examples=examples(300), deadline=None)
def test_every_history_keeps_the_invariants(history: list[Move]) -> None:
    now, oracle = 50.0, _Witness()
    state = JobState(durable=Durable(job=JobName("orders"), store_id="this"))
    for move in history:
        now += move.wait
        if move.kind == "restart":
            state = restart(state.durable, now)
            oracle.acknowledged = {}
            continue
        event = to_event(move, state, now)
        durable = state.durable
        state, ready = step(state, event)
        for fact in ready.facts:
            durable = evolve(durable, fact)
        assert durable == state.durable, "the durable part changes by facts only"
        if isinstance(event, Acknowledge) and ready.answer.verdict is Verdict.ACCEPTED:
            oracle.acknowledged[event.participant] = event.snapshot
        for fact in ready.facts:
            oracle.see(fact)
        assert state.base == oracle.completed
        assert state.settled == oracle.settled
        assert state.durable.status is oracle.status
        assert (state.pending is None) == (state.durable.pending is None)
        assert {request.id for request in state.durable.open_requests} == oracle.waiting
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
