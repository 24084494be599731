"""Invariants of the core over random histories: one decision per checkpoint, durable and never changed; completed only
with everybody's answer; stale ones refused; positions restored are the last completed ones; refusals change nothing."""

from hypothesis import given, settings

from coordinator.protocol.answers import Verdict
from coordinator.protocol.core import step, wanted
from coordinator.protocol.deadlines import next_deadline
from coordinator.protocol.events import Acknowledge, Tick
from coordinator.protocol.facts import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointSettled,
    CheckpointTriggered,
    CheckpointUnchanged,
    Fact,
    GenerationGranted,
)
from coordinator.protocol.state import Durable, JobState, restart
from coordinator.protocol.values import JobName, ParticipantName, Snapshot
from tests.unit.protocol.histories import Move, moves, to_event

_CHANGING = (Verdict.ACCEPTED, Verdict.CONFLICT)


class _Witness:
    """Follows the facts and complains about those that must not be."""

    def __init__(self) -> None:
        self.last_triggered = 0
        self.generation = 0
        self.running: int | None = None
        self.acknowledged: dict[ParticipantName, Snapshot] = {}
        self.completed = 0
        self.settled = True
        self.decided: set[int] = set()

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
                self.settled = True
            case _:
                pass

    def _decide(self, checkpoint: int) -> None:
        assert checkpoint == self.running
        assert checkpoint not in self.decided, "one decision per checkpoint"
        self.decided.add(checkpoint)
        self.running = None


@given(moves)
@settings(max_examples=300, deadline=None)
def test_every_history_keeps_the_invariants(history: list[Move]) -> None:
    now, witness = 50.0, _Witness()
    state = JobState(durable=Durable(job=JobName("orders"), store_id="this"))
    for move in history:
        now += move.wait
        if move.kind == "restart":
            state = restart(state.durable, now)
            witness.acknowledged = {}
            continue
        event = to_event(move, state, now)
        state, ready = step(state, event)
        if isinstance(event, Acknowledge) and ready.answer.verdict is Verdict.ACCEPTED:
            witness.acknowledged[event.participant] = event.snapshot
        for fact in ready.facts:
            witness.see(fact)
        assert state.base == witness.completed
        assert state.settled == witness.settled
        if state.durable.driver is None:
            assert wanted(state) == ()


@given(moves)
@settings(max_examples=200, deadline=None)
def test_whatever_is_not_accepted_leaves_the_state_as_it_was(history: list[Move]) -> None:
    now = 50.0
    state = JobState(durable=Durable(job=JobName("orders"), store_id="this"))
    for move in history:
        now += move.wait
        if move.kind == "restart":
            state = restart(state.durable, now)
            continue
        state, _ = step(state, Tick(now=now))  # what is due by time alone is done before
        event = to_event(move, state, now)
        before = state
        state, ready = step(state, event)
        if ready.answer.verdict not in _CHANGING:
            assert state == before, ready
            assert ready.facts == ()


@given(moves)
@settings(max_examples=200, deadline=None)
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
