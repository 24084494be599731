"""The store keeps exactly what the core decided, and lists it."""

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from typing import cast

import pytest
from hypothesis import given, settings
from sqlalchemy import String, event

from onceward.coordinator.store.codec import phases_from_text, phases_to_text
from onceward.coordinator.store.errors import NoSuchCheckpointError, StoreError
from onceward.coordinator.store.reading import LastCompleted
from onceward.coordinator.store.schema import metadata, text_checksum
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Note, Verdict
from onceward.protocol.core import step
from onceward.protocol.durable import Durable
from onceward.protocol.facts import (
    AbortReason,
    CheckpointAmended,
    CheckpointUnchanged,
    Fact,
    JobHalted,
    LossRecorded,
)
from onceward.protocol.phases import Phase, Phases
from onceward.protocol.state import JobState, restart
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    Generation,
    JobName,
    Outcome,
    Settlement,
)
from tests.conftest import examples
from tests.support.documents import committable
from tests.support.events import SINK
from tests.support.histories import Move, moves
from tests.support.places import Place
from tests.support.stored_jobs import AT, JOB, StoredJob, event_of, ids, snapshots

LATER = AT + timedelta(seconds=5)
LATE = Note(
    what="Acknowledge",
    verdict=Verdict.FENCED,
    generation=Generation(7),
    checkpoint=CheckpointId(3),
    participant="sink",
    detail="a newer generation owns the job",
)
LOST = Settlement(slot=1, outcome=Outcome.LOST, evidence="CompleteAbort at (7, 3)")


def test_a_restart_reads_every_decision_of_the_core(place: Place) -> None:
    @given(moves)
    @settings(max_examples=examples(10 if place.is_postgres else 40), deadline=None)  # a server takes longer
    def reads_it(history: list[Move]) -> None:
        _reads_every_decision(place.fresh(), history)

    reads_it()


def _reads_every_decision(place: Place, history: list[Move]) -> None:
    now, known = 50.0, False
    with closing(place.open()) as store:
        state = JobState(durable=Durable(job=JOB, store_id=store.store_id))
        for move in history:
            now += move.wait
            event = event_of(move, state, now, store)
            if move.kind == "restart":
                state = restart(state.durable, now)
            elif event is not None:
                state, ready = step(state, event)
                if ready.facts:
                    store.apply([(state.durable, ready.facts)], at=AT)
                    store.prune([(JOB, 1)])
                    known = True
        store_id = store.store_id
    assert place.loaded() == ([state.durable] if known else [])
    assert state.durable.store_id == store_id


@pytest.mark.parametrize(
    ("call", "doing"),
    [
        (lambda store: store.load_jobs(), "reading the jobs"),
        (lambda store: store.last_completed_by_job(), "listing jobs"),
        (lambda store: store.last_completed(JOB), "describing job orders"),
        (lambda store: store.checkpoints(JOB, 1), "listing checkpoints of job orders"),
        (lambda store: store.checkpoint(JOB, CheckpointId(7)), "reading checkpoint 7 of job orders"),
        (lambda store: store.completed(JOB, CheckpointId(7)), "reading checkpoint 7 of job orders"),
        (lambda store: store.unfinished(), "listing unfinished checkpoints"),
        (lambda store: store.losses(None, 1, acknowledged=True), "listing losses"),
        (lambda store: store.generations(JOB, 1), "listing generations of job orders"),
        (lambda store: store.history(JOB, 1), "listing the history of job orders"),
        (lambda store: store.note(JOB, [(LATE, 1)], at=AT), "noting refused calls of job orders"),
        (
            lambda store: store.apply([(Durable(job=JobName(name), store_id=""), []) for name in "cab"], at=AT),
            "writing 0 facts of a, b, c",
        ),
    ],
)
def test_a_failure_names_the_operation(store: Store, call: Callable[[Store], object], doing: str) -> None:
    with store._database.connection.begin():
        for table in ("jobs", "checkpoints", "losses", "generations", "history"):
            store._database.connection.exec_driver_sql(f"DROP TABLE {table}")
    with pytest.raises(
        StoreError, match=rf"The store failed while {doing}: (no such table|relation \S+ does not exist)"
    ):
        call(store)


@pytest.mark.parametrize("limit", [1, 2])
def test_listings_end_at_the_requested_limit(store: Store, limit: int) -> None:
    job = StoredJob(store)
    for _ in range(3):
        job.open()
        job.lose(LOST)
        job.settle()
        job.end()
    listings = (store.checkpoints, store.generations, store.history)
    assert [len(listing(JOB, limit)) for listing in listings] == [limit] * 3
    assert len(store.losses([JOB], limit, acknowledged=False)) == limit


# -- checkpoints


def test_listings_show_times_durations_and_sizes_of_checkpoints(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger(waited=0.25)
    job.complete(ran=1.5, decided=0.125, at=AT + timedelta(seconds=2))
    job.settle(took=0.000_004, at=LATER)
    job.trigger()
    job.abort(AbortReason.DECLINED, "sink: no", ran=0.5, at=LATER)
    job.trigger()
    running, aborted, settled = store.checkpoints(JOB, 10)
    assert (running.checkpoint, running.state, running.decided_at) == (3, CheckpointState.TRIGGERED, None)
    assert running.ran is None
    assert (aborted.state, aborted.abort_reason, aborted.detail) == (
        CheckpointState.ABORTED, AbortReason.DECLINED, "sink: no"
    )  # fmt: skip
    assert (aborted.base, aborted.decided_at, aborted.ran, aborted.settled) == (1, LATER, timedelta(seconds=0.5), None)
    assert (aborted.generation, aborted.name, aborted.amendment, running.detail) == (1, "", 0, "")
    assert (settled.state, settled.kind) == (CheckpointState.SETTLED, CheckpointKind.CHECKPOINT)
    assert (settled.triggered_at, settled.decided_at, settled.settled_at) == (AT, AT + timedelta(seconds=2), LATER)
    durations = (settled.waited, settled.ran, settled.decided, settled.settled)
    assert durations == tuple(timedelta(seconds=seconds) for seconds in (0.25, 1.5, 0.125, 0.000_004))
    assert (settled.records_read, settled.bytes_read) == (10, 100)
    assert (settled.records_written, settled.bytes_written, settled.committables) == (9, 90, 2)


def test_phases_are_kept_with_their_checkpoint_and_unknown_ones_stay_unknown(store: Store, place: Place) -> None:
    some: Phases = {Phase.PLAN: timedelta(0), Phase.FLUSH: timedelta(microseconds=1_234_567)}
    every: Phases = {phase: timedelta(seconds=number, microseconds=7) for number, phase in enumerate(Phase)}
    job = StoredJob(store)
    job.open()
    for phases in (some, every):
        job.trigger()
        job.complete(phases=phases)
        job.settle()
    job.trigger()
    job.abort(AbortReason.DECLINED, phases=some)
    job.trigger()
    job.complete()
    with closing(place.reopened(store)) as again:
        listed = {one.checkpoint: one.phases for one in again.checkpoints(JOB, 9)}
        described = again.checkpoint(JOB, CheckpointId(2))
    assert listed == {1: some, 2: every, 3: some, 4: {}}
    assert described is not None
    assert described.summary.phases == every
    assert place.loaded() == [job.durable]


def test_a_phase_keeps_its_place_in_the_store_wherever_it_happens() -> None:
    assert sorted(phase.place for phase in Phase) == list(range(len(Phase)))
    stored = {phase: timedelta(microseconds=1 + phase.place) for phase in Phase}
    known = ["idle", "plan", "schedule", "queue", "read", "transform", "read+transform", "produce", "flush", "vote"]
    text = ",".join(str(1 + place) for place in range(len(Phase)))
    assert phases_to_text(stored) == text
    assert phases_from_text(text) == stored
    assert [phase.value for phase in phases_from_text("1,2,3,4,5,6,7,8,9,10")] == known, "an older program knew fewer"


def test_the_phases_of_an_ordinary_checkpoint_take_little_room() -> None:
    usual: Phases = {phase: timedelta(milliseconds=250.5) for phase in Phase if phase is not Phase.READ_TRANSFORM}
    assert len(phases_to_text(usual) or "") <= 100


def test_a_decided_checkpoint_is_not_settled_before_its_commits_are_proved(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger()
    job.complete(at=LATER)
    (record,) = store.checkpoints(JOB, 10)
    assert (record.state, record.decided_at) == (CheckpointState.COMPLETED, LATER)
    assert (record.settled_at, record.settled) == (None, None)


def test_a_checkpoint_with_nothing_to_commit_is_settled_by_its_decision(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger()
    job.complete(settled=True, at=LATER)
    (record,) = store.checkpoints(JOB, 10)
    assert (record.state, record.settled_at, record.settled) == (CheckpointState.SETTLED, LATER, timedelta())


def test_savepoints_keep_their_names_until_they_are_released(store: Store, place: Place) -> None:
    from onceward.protocol.facts import SavepointReleased

    job = StoredJob(store)
    job.open()
    job.trigger(kind=CheckpointKind.SAVEPOINT, name="before-upgrade")
    job.complete(settled=True)
    (record,) = store.checkpoints(JOB, 10)
    assert (record.kind, record.name) == (CheckpointKind.SAVEPOINT, "before-upgrade")
    job.write(SavepointReleased(checkpoint=CheckpointId(1)))
    (record,) = store.checkpoints(JOB, 10)
    assert (record.kind, record.name) == (CheckpointKind.CHECKPOINT, "before-upgrade")
    store.close()
    assert place.loaded() == [job.durable]


def test_an_unchanged_checkpoint_leaves_no_row_and_its_id_stays_taken(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger()
    job.write(CheckpointUnchanged(checkpoint=CheckpointId(1)))
    assert store.checkpoints(JOB, 10) == []
    assert store.load_jobs()[0].last_id == 1


def test_a_checkpoint_that_left_no_row_has_no_details(store: Store) -> None:
    assert store.checkpoint(JOB, CheckpointId(1)) is None
    with pytest.raises(NoSuchCheckpointError, match="checkpoint 1 of job orders is not in the store"):
        store.completed(JOB, CheckpointId(1))
    assert store.load_jobs() == [], "asking for what is not there is no failure of the store"


def test_outcomes_that_halted_a_job_are_kept_as_evidence(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger()
    job.complete()
    settlements = (Settlement(slot=0, outcome=Outcome.COMMITTED, evidence="NONE"), LOST)
    job.halt(*settlements)
    job.halt(*settlements)  # reported again
    details = store.checkpoint(JOB, CheckpointId(1))
    assert details is not None
    assert tuple(recorded.settlement for recorded in details.settlements) == settlements
    assert {(recorded.participant, recorded.recorded_at) for recorded in details.settlements} == {(SINK.name, AT)}
    assert details.snapshots == snapshots(1)
    (durable,) = store.load_jobs()
    assert (durable.status, durable.status_detail, durable.lost) == (JobStatus.HALTED, "it is lost", True)


def test_replayed_slots_take_the_place_of_the_lost_ones_which_stay_as_evidence(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger()
    job.complete()
    job.write(LossRecorded(checkpoint=CheckpointId(1), participant=SINK.name, settlements=(LOST,)))
    again = committable(1, again=True)
    job.write(
        CheckpointAmended(
            checkpoint=CheckpointId(1),
            participant=SINK.name,
            amendment=1,
            slots=frozenset({1}),
            committables=(again,),
        )
    )
    assert store.load_jobs() == [job.durable]
    details = store.checkpoint(JOB, CheckpointId(1))
    assert details is not None
    assert details.snapshots[SINK.name].committables[1] == again
    assert (details.summary.amendment, details.summary.committables) == (1, 2)
    assert [one.settlement for one in details.settlements] == [LOST]


def test_checksums_are_as_long_as_their_columns() -> None:
    columns = [column for table in metadata.sorted_tables for column in table.columns if "checksum" in column.name]
    assert {cast(String, column.type).length for column in columns} == {len(text_checksum("any text"))}


def test_a_start_and_a_list_of_jobs_read_no_history(store: Store, place: Place) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(3)
    store.close()
    asked: list[str] = []
    with closing(place.open()) as store:
        event.listen(store._database.connection, "before_cursor_execute", lambda *said: asked.append(said[2]))
        assert store.load_jobs() == [job.durable]
        store.last_completed_by_job()
        store.unfinished()
    assert asked
    assert not [one for one in asked if any(table in one for table in ("history", "settlements", "losses"))]


# -- jobs, generations, history


def test_jobs_are_listed_with_their_newest_completed_checkpoint(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    assert store.last_completed_by_job() == {JOB: LastCompleted()}
    job.trigger()
    job.complete(at=LATER)
    job.settle()
    job.trigger()
    assert store.last_completed_by_job() == {JOB: LastCompleted(id=CheckpointId(1), at=LATER)}
    assert store.last_completed(JOB) == store.last_completed_by_job()[JOB]


def test_checkpoints_are_unfinished_until_they_are_settled_or_aborted(store: Store) -> None:
    jobs = [StoredJob(store, JobName(name)) for name in ("bills", "orders")]
    bills, orders = jobs
    for job in jobs:
        job.open()
        job.checkpoints(3)  # settled
    assert store.unfinished() == []
    orders.trigger(waited=1.5)
    orders.complete(at=LATER)
    orders.trigger()
    bills.trigger()
    bills.abort(AbortReason.DECLINED)
    found = store.unfinished()
    assert {job for job, _ in found} == {"orders"}
    completed, pending = sorted((one for _, one in found), key=lambda one: one.checkpoint)
    assert (completed.checkpoint, completed.state) == (4, CheckpointState.COMPLETED)
    assert (completed.triggered_at, completed.decided_at) == (AT, LATER)
    assert completed.waited.total_seconds() == 1.5
    assert (pending.checkpoint, pending.state, pending.decided_at) == (5, CheckpointState.TRIGGERED, None)
    orders.settle()
    assert [one.checkpoint for _, one in store.unfinished()] == [5]


def test_generations_are_listed_with_their_driver_and_their_end(store: Store) -> None:
    job = StoredJob(store)
    job.open("d1")
    job.end(at=LATER)
    job.open("d2", at=LATER)
    second, first = store.generations(JOB, 10)
    assert (first.generation, first.driver, first.granted_at, first.ended_at) == (1, "d1", AT, LATER)
    assert first.detail == "it left"
    assert (second.generation, second.driver, second.granted_at, second.ended_at) == (2, "d2", LATER, None)
    assert second.detail == ""
    assert [one.generation for one in store.generations(JOB, 1)] == [2]


def test_the_history_lists_events_newest_first(store: Store) -> None:
    job = StoredJob(store)
    job.open("d1")
    job.trigger()
    job.complete(at=LATER)
    job.settle()
    job.trigger()
    job.abort(AbortReason.EXPIRED, "no answer from sink within 4 s")
    reported = [(one.event, one.generation, one.checkpoint, one.verdict) for one in reversed(store.history(JOB, 10))]
    assert reported == [
        ("GenerationGranted", 1, 0, None),
        ("StatusChanged", 1, 0, None),
        ("CheckpointCompleted", 1, 1, None),
        ("CheckpointSettled", 1, 1, None),
        ("CheckpointAborted", 1, 2, None),
    ]
    newest, *_, completed, _, granted = store.history(JOB, 10)
    assert newest.detail == (
        "it was not acknowledged in time: no answer from sink within 4 s, a counted failure"
    )  # fmt: skip
    assert (completed.at, completed.detail) == (LATER, "2 committables")
    assert granted.detail == "to driver d1 with source, sink"


def test_the_history_has_every_step_of_one_write(store: Store) -> None:
    one, other = StoredJob(store), StoredJob(store, JobName("payments"))
    steps: list[tuple[Durable, Sequence[Fact]]] = []
    for job in (one, other):
        job.open()
        for _ in range(2):
            halted = JobHalted(checkpoint=CheckpointId(0), participant=SINK.name, settlements=(), reason="declined")
            steps.append((job.durable, [halted, halted]))
    store.apply(steps, at=LATER)
    for job in (one, other):
        reported = [entry.event for entry in store.history(job.durable.job, 10)]
        assert reported == ["JobHalted"] * 4 + ["StatusChanged", "GenerationGranted"]


def test_refused_calls_are_in_the_history_with_how_often(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    store.note(JOB, [(LATE, 41)], at=LATER)
    (noted, *_) = store.history(JOB, 10)
    assert (noted.event, noted.verdict, noted.generation, noted.checkpoint) == ("Acknowledge", Verdict.FENCED, 7, 3)
    assert (noted.participant, noted.detail, noted.count, noted.at) == ("sink", LATE.detail, 41, LATER)
    assert store.load_jobs() == [job.durable], "the protocol does not read what was refused"


def test_after_a_restore_the_history_forks_visibly(store: Store, place: Place) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(3)
    job.end()
    job.order_restore(1, "ann: bad input since noon")
    job.restore(at=LATER)
    job.checkpoints(1)
    assert [(one.checkpoint, one.base, one.kind.value) for one in store.checkpoints(JOB, 10)] == [
        (5, 4, "checkpoint"), (4, 1, "restore"), (3, 2, "checkpoint"), (2, 1, "checkpoint"), (1, 0, "checkpoint")
    ]  # fmt: skip
    fork = store.checkpoints(JOB, 10)[1]
    assert (fork.state, fork.decided_at, fork.detail) == (
        CheckpointState.SETTLED, LATER, "instead of 3: ann: bad input since noon"
    )  # fmt: skip
    reported = {one.event: one.detail for one in store.history(JOB, 100)}
    assert reported["CheckpointRestored"] == (
        "begins again after checkpoint 1 instead of checkpoint 3: ann: bad input since noon"
    )
    assert reported["RestoreRequested"] == "ann: bad input since noon"
    assert store.completed(JOB, CheckpointId(4)).snapshots.keys() == snapshots(1).keys()
    assert store.completed(JOB, CheckpointId(4)).snapshots[SINK.name].committables == ()
    store.close()
    assert place.loaded() == [job.durable]


def test_an_ordered_restore_survives_until_it_is_done(store: Store, place: Place) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(2)
    job.end()
    job.order_restore(1)
    store.close()
    (durable,) = place.loaded()
    assert durable == job.durable
    assert durable.restore is not None
    assert (durable.restore.source.id, durable.restore.reason, durable.base) == (1, "ann: bad input", 2)


def test_jobs_of_one_store_do_not_touch_each_other(store: Store) -> None:
    one, other = StoredJob(store), StoredJob(store, JobName("payments"))
    for job in (one, other):
        job.open()
        job.checkpoints(1)
    one.checkpoints(2)
    assert store.prune([(JOB, 1)])
    assert (ids(store), ids(store, other.durable.job)) == ([3, 1], [1])
    assert {entry.checkpoint for entry in store.history(other.durable.job, 100)} == {0, 1}
    assert store.load_jobs() == [one.durable, other.durable]
