"""The core with a real store: between any two steps the coordinator may restart, any write may fail before or after it
became durable, and retention may remove old rows. Every read returns what was decided."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError

from onceward.common.errors import StoreError
from onceward.protocol import facts
from onceward.protocol.answers import Grant, Ready, Verdict
from onceward.protocol.core import step
from onceward.protocol.durable import Durable
from onceward.protocol.state import JobState, restart
from onceward.protocol.values import (
    CheckpointKind,
    CheckpointState,
    JobName,
    ParticipantName,
    Snapshot,
)
from tests.conftest import examples
from tests.support.histories import Move, a_move, to_event
from tests.support.oracle import History
from tests.support.places import Place
from tests.support.stored_jobs import event_of

JOB = JobName("orders")
AT = datetime(2026, 1, 2, tzinfo=UTC)
BEGINNING = 1_000.0
DONE = (CheckpointState.COMPLETED, CheckpointState.SETTLED)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A checkpoint as a listing must show it."""

    base: int
    generation: int
    kind: CheckpointKind
    state: CheckpointState
    name: str = ""
    reason: str | None = None
    committables: int = 0
    amendment: int = 0


class Chronicle:
    """Follow the durable facts, and derive what listings must say of them."""

    def __init__(self) -> None:
        self.history = History()
        self.rows: dict[int, Row] = {}
        self.positions: dict[ParticipantName, Snapshot] = {}
        """Snapshots of the newest completed checkpoint."""
        self.generations: dict[int, tuple[str, bool]] = {}
        self.reported: list[tuple[str, int]] = []
        self.names: dict[str, str] = {}

    def see(self, fact: facts.Fact) -> None:
        number = int(getattr(fact, "checkpoint", 0))
        self.history, violation = self.history.after(fact)
        assert violation is None
        match fact:
            case facts.GenerationGranted():
                self.generations[fact.generation] = fact.driver, False
            case facts.GenerationEnded():
                driver, ended = self.generations[fact.generation]
                assert not ended
                self.generations[fact.generation] = driver, True
            case facts.RequestQueued():
                self.names[fact.request.id] = fact.request.name
            case facts.CheckpointTriggered():
                self.rows[number] = Row(
                    base=fact.base,
                    generation=fact.generation,
                    kind=fact.kind,
                    name=self.names.get(fact.request or "", ""),
                    state=CheckpointState.TRIGGERED,
                )
            case facts.CheckpointCompleted():
                state = CheckpointState.SETTLED if fact.settled else CheckpointState.COMPLETED
                self._decide(number, state=state, committables=_committables(fact.snapshots.values()))
                self.positions = dict(fact.snapshots)
            case facts.CheckpointAborted():
                self._decide(number, state=CheckpointState.ABORTED, reason=fact.reason.name)
            case facts.CheckpointUnchanged():
                del self.rows[number]
            case facts.CheckpointSettled():
                self.rows[number] = replace(self.rows[number], state=CheckpointState.SETTLED)
            case facts.CheckpointAmended():
                former = self.positions[fact.participant].committables
                kept = [one for one in former if one.slot not in fact.slots]
                again = tuple(sorted((*kept, *fact.committables), key=lambda one: one.slot))
                self.positions[fact.participant] = replace(self.positions[fact.participant], committables=again)
                count = _committables(self.positions.values())
                self.rows[number] = replace(self.rows[number], amendment=fact.amendment, committables=count)
            case facts.CheckpointRestored():
                self.rows[number] = Row(
                    base=fact.source,
                    generation=fact.generation,
                    kind=CheckpointKind.RESTORE,
                    state=CheckpointState.SETTLED,
                )
                self.positions = dict(fact.snapshots)
            case facts.LossSkipped():
                self._without(number, fact.participant, frozenset(one.slot for one in fact.settlements))
            case facts.SlotsResolved():
                self._without(number, fact.participant, fact.settled)
            case facts.InputSkipped():
                before = {name: snapshot.positions for name, snapshot in self.positions.items()}
                moved = {name for name, snapshot in fact.snapshots.items() if snapshot.positions != before[name]}
                assert moved <= {fact.participant}
                self.rows[number] = Row(
                    base=fact.base, generation=fact.generation, kind=CheckpointKind.SKIP, state=CheckpointState.SETTLED
                )
                self.positions = dict(fact.snapshots)
            case facts.SavepointReleased():
                self.rows[number] = replace(self.rows[number], kind=CheckpointKind.CHECKPOINT)
            case _:
                pass
        if not isinstance(fact, facts.CheckpointTriggered | facts.CheckpointUnchanged):
            self.reported.append((type(fact).__name__, _subject(fact)))

    def _without(self, number: int, sink: ParticipantName, slots: frozenset[int]) -> None:
        """Drop committables that no longer need a commit."""
        kept = tuple(one for one in self.positions[sink].committables if one.slot not in slots)
        self.positions[sink] = replace(self.positions[sink], committables=kept)
        self.rows[number] = replace(self.rows[number], committables=_committables(self.positions.values()))

    def prune(self, keep: int, ordered: int | None) -> None:
        completed = sorted((number for number, row in self.rows.items() if row.state in DONE), reverse=True)
        ordinary = [number for number in completed if self.rows[number].kind is not CheckpointKind.SAVEPOINT]
        first = {number for number in completed if not self.rows[number].base}
        moved = [
            number for number in completed if self.rows[number].kind in (CheckpointKind.RESTORE, CheckpointKind.SKIP)
        ]
        around = completed[completed.index(moved[0]) :][:2] if moved else []
        for number in set(ordinary[keep:]) - {self.history.last, ordered, *first, *around}:
            del self.rows[number]

    def _decide(self, number: int, *, state: CheckpointState, reason: str | None = None, committables: int = 0) -> None:
        self.rows[number] = replace(self.rows[number], state=state, reason=reason, committables=committables)


def _committables(snapshots: object) -> int:
    assert hasattr(snapshots, "__iter__")
    return sum(len(snapshot.committables) for snapshot in snapshots)


def _subject(fact: facts.Fact) -> int:
    """Return the checkpoint that the history names for this fact."""
    source = getattr(fact, "source", None) if type(fact).__name__ == "RestoreRequested" else None
    request = getattr(fact, "request", None) if type(fact).__name__.startswith("Request") else None
    named = source.id if source is not None else request.checkpoint if request is not None else None
    return int(named if named is not None else getattr(fact, "checkpoint", 0))


@contextmanager
def failing_commit(*, durable: bool) -> Iterator[None]:
    """Make the next commit raise an error, after the disk has it if ``durable``, otherwise before."""

    def fail(connection: Connection) -> None:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        raw.commit() if durable else raw.rollback()  # a database rolls back what it could not write
        raise OperationalError("COMMIT", None, OSError("disk I/O error"))

    event.listen(Engine, "commit", fail)
    try:
        yield
    finally:
        event.remove(Engine, "commit", fail)


class StoreMachine(RuleBasedStateMachine):
    """One job, one store, and every event that may happen to both."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.store = place.open()
        self.now = BEGINNING
        self.state = JobState(durable=Durable(job=JOB, store_id=self.store.store_id))
        self.chronicle = Chronicle()

    def teardown(self) -> None:
        self.store.close()

    @rule(moves=st.lists(a_move, min_size=1, max_size=8))
    def things_happen(self, moves: list[Move]) -> None:
        self._play(*moves)

    @rule(count=st.integers(1, 3), choice=st.sampled_from([1, 2, 5, 7]))
    def all_goes_well(self, count: int, choice: int) -> None:
        """Mostly one checkpoint per count, from its trigger to its settlement."""
        self._play(*[Move("go", 0.5, 0, choice)] * 5 * count)

    @rule(before=st.integers(1, 4))
    def a_transaction_is_lost(self, before: int) -> None:
        """A transaction is lost if one waits for settlement; a job whose sink replays then replays it."""
        self._play(*[Move("go", 0.5, 0, 1)] * before, Move("go", 0.1, 0, 11), *[Move("go", 0.1, 0, 1)] * 3)

    @rule(before=st.integers(4, 8), found=st.sampled_from([8, 10]), choices=st.lists(st.integers(0, 11), max_size=3))
    def a_person_decides(self, before: int, found: int, choices: list[int]) -> None:
        """Halt a job whose sink halts on losses or has one in doubt; an operator rules, and perhaps skips input."""
        self._play(Move("open", 0.1, 0, 0), *[Move("go", 0.5, 0, 6)] * before, Move("go", 0.1, 0, found))
        self._play(Move("close", 0.1, 0, 1))
        self._play(*[Move("resolve", 0.1, 0, choice) for choice in choices], Move("skip", 0.1, 0, before))
        self._play(*[Move("go", 0.1, 0, 5)] * 3)

    @rule(choice=st.integers(0, 11), released=st.booleans())
    def a_person_wants_a_savepoint(self, choice: int, released: bool) -> None:
        self._play(Move("request", 0.1, 0, choice | 1), *[Move("go", 0.1, 0, 5)] * 5)
        if released:
            self._play(Move("release", 0.1, 0, 0))

    @rule(choice=st.integers(0, 11), then=st.integers(0, 2))
    def a_person_goes_back(self, choice: int, then: int) -> None:
        self._play(Move("close", 0.1, 0, 1), Move("restore", 0.1, 0, choice))
        self.old_rows_are_removed(keep=1)
        self._play(*[Move("go", 0.1, 0, 5)] * then)

    def _play(self, *moves: Move) -> None:
        for move in moves:
            state, ready = self._step(move)
            if ready.facts:
                self.store.apply([(state.durable, ready.facts)], at=AT)
            if ready.note is not None and self.chronicle.history.generation:
                self.store.note(JOB, [(ready.note, 1)], at=AT)
            self._durably(state, ready)
            self._answered(ready)
            self._look()

    @rule()
    def the_coordinator_starts_anew(self) -> None:
        self._start()
        self._look()

    @rule(move=a_move, durable=st.booleans())
    def a_write_fails(self, move: Move, durable: bool) -> None:
        state, ready = self._step(move)
        if not ready.facts:
            return
        with failing_commit(durable=durable), pytest.raises(StoreError, match="unknown"):
            self.store.apply([(state.durable, ready.facts)], at=AT)
        with pytest.raises(StoreError, match="unknown"):
            self.store.load_jobs()
        if durable:
            self._durably(state, replace(ready, note=None))
        self._start()
        self._look()

    @rule(keep=st.integers(1, 3))
    def old_rows_are_removed(self, keep: int) -> None:
        restore = self.state.durable.restore
        assert self.store.prune([(JOB, keep)])
        self.chronicle.prune(keep, restore.source.id if restore is not None else None)
        self._look()

    @rule(durable=st.booleans())
    def a_removal_fails(self, durable: bool) -> None:
        restore = self.state.durable.restore
        with failing_commit(durable=durable):
            assert self.store.prune([(JOB, 1)]) is False
        if durable:
            self.chronicle.prune(1, restore.source.id if restore is not None else None)
        self._look()

    def _step(self, move: Move) -> tuple[JobState, Ready]:
        self.now += move.wait
        happening = event_of(move, self.state, self.now, self.store)
        if happening is None:
            return self._step(replace(move, kind="tick", wait=0.0))
        return step(self.state, happening)

    def _durably(self, state: JobState, ready: Ready) -> None:
        self.state = state
        for fact in ready.facts:
            self.chronicle.see(fact)
            if isinstance(fact, facts.CheckpointTriggered):
                assert 0 <= fact.waited_s <= self.now - BEGINNING, "it cannot have waited longer than there is a job"
        if ready.note is not None and self.chronicle.history.generation:
            self.chronicle.reported.append((ready.note.what, ready.note.checkpoint))

    def _answered(self, ready: Ready) -> None:
        grant = ready.answer.grant
        if isinstance(grant, Grant) and ready.answer.verdict is Verdict.ACCEPTED:
            assert (grant.completed.id if grant.completed is not None else 0) == self.chronicle.history.last
            restored = dict(grant.completed.snapshots) if grant.completed is not None else {}
            assert restored == self.chronicle.positions, "it begins with other positions than the last completed ones"

    def _start(self) -> None:
        self.store = self.place.reopened(self.store)
        jobs = self.store.load_jobs()
        assert jobs == ([self.state.durable] if self.chronicle.reported else [])
        self.state = restart(jobs[0], self.now) if jobs else JobState(durable=self.state.durable)

    def _look(self) -> None:
        """Compare what the store says with what was decided."""
        chronicle, durable = self.chronicle, self.state.durable
        assert self.store.load_jobs() == ([durable] if chronicle.reported else [])
        assert (durable.last_id, durable.base) == (chronicle.history.burnt, chronicle.history.last)
        if durable.base:
            assert self.store.completed(JOB, durable.base) == durable.completed
        listed = {
            record.checkpoint: Row(
                base=record.base,
                generation=record.generation,
                kind=record.kind,
                name=record.name,
                state=record.state,
                reason=record.abort_reason.name if record.abort_reason is not None else None,
                committables=record.committables,
                amendment=record.amendment,
            )
            for record in self.store.checkpoints(JOB, 1_000)
        }
        assert listed == chronicle.rows
        generations = {
            one.generation: (one.driver, one.ended_at is not None) for one in self.store.generations(JOB, 99)
        }
        assert generations == chronicle.generations
        reported = [(entry.event, entry.checkpoint) for entry in reversed(self.store.history(JOB, 1_000))]
        assert reported == chronicle.reported


# Thousands of reads. On a server each waits for an answer: slow, and beyond the hang guard of other tests. A quarter of
# the lives there runs every statement; what decides above the statements is the same for both.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
def test_every_read_returns_what_was_decided_whatever_fails(place: Place) -> None:
    run_state_machine_as_test(
        lambda: StoreMachine(place.fresh()),  # type: ignore[arg-type]  # a factory will do
        settings=settings(max_examples=examples(5 if place.is_postgres else 20), stateful_step_count=20, deadline=None),
    )


def test_after_a_restart_a_checkpoint_has_waited_since_then_at_most() -> None:
    state = JobState(durable=Durable(job=JOB, store_id="this"))
    state, _ = step(state, to_event(Move("go", 0.0, 0, 0), state, BEGINNING))
    state = restart(state.durable, BEGINNING + 100)
    _, ready = step(state, to_event(Move("go", 0.0, 0, 0), state, BEGINNING + 101))
    assert [fact.waited_s for fact in ready.facts if isinstance(fact, facts.CheckpointTriggered)] == [1.0]
