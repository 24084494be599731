"""Retention removes the oldest rows, never what a job continues from; a failed removal loses nothing."""

from contextlib import closing

import pytest

from onceward.coordinator.store import retention
from onceward.coordinator.store.audit import MAX_DETAIL
from onceward.coordinator.store.retention import KEPT_ABORTED, KEPT_GENERATIONS, KEPT_HISTORY
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Note, Verdict
from onceward.protocol.facts import AbortReason, CheckpointSettled, LossRecorded, SavepointReleased
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    Generation,
    JobName,
    Outcome,
    Settlement,
)
from tests.support.events import SINK
from tests.support.places import Place
from tests.support.stored_jobs import AT, JOB, StoredJob, ids

FLOOD = Note(
    what="Renew",
    verdict=Verdict.FENCED,
    generation=Generation(1),
    checkpoint=CheckpointId(0),
    participant="",
    detail="",
)


def refuse_removals(place: Place, table: str, when: str = "true") -> None:
    """Make the database fail when a row is removed, like a bad sector would."""
    if place.is_postgres:
        place.run(
            "CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN IF {when} THEN RAISE 'bad'; END IF; RETURN OLD; END $$",
            f"CREATE TRIGGER bad BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION bad()",
        )
    else:
        place.run(f"CREATE TRIGGER bad BEFORE DELETE ON {table} WHEN {when} BEGIN SELECT RAISE(ABORT, 'bad'); END")


@pytest.mark.parametrize("keep", [1, 3, 100])
def test_the_newest_completed_checkpoints_stay_and_the_oldest_go(store: Store, keep: int) -> None:
    job = StoredJob(store)
    job.open()
    for _ in range(7):
        job.checkpoints(1)
        assert store.prune([(JOB, keep)])
    assert ids(store) == sorted({1, *range(7, 7 - min(keep, 7), -1)}, reverse=True)
    assert store.load_jobs() == [job.durable]


def test_the_first_positions_and_those_around_the_newest_restore_are_kept(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(3)
    for _ in range(2):
        job.end()
        job.order_restore(1)
        job.restore()
        job.checkpoints(3)
    store.prune([(JOB, 1)])
    kept = {one.checkpoint: one for one in store.checkpoints(JOB, 100)}
    newest, restored = max(kept), max(number for number, one in kept.items() if one.kind is CheckpointKind.RESTORE)
    assert set(kept) == {1, restored - 1, restored, newest}
    assert newest - restored == 3


def test_many_checkpoints_are_removed_in_parts_the_oldest_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PRUNED_AT_ONCE", 3)
    job = StoredJob(store)
    job.open()
    job.checkpoints(10)
    for oldest in (5, 8, 9, 9):
        assert store.prune([(JOB, 2)])
        assert ids(store) == [*range(10, oldest - 1, -1), 1], "the job's first positions stay"
    assert store.load_jobs() == [job.durable]


def test_savepoints_are_never_removed_and_take_no_place_of_others(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(1)
    for _ in range(3):
        job.checkpoints(1, kind=CheckpointKind.SAVEPOINT)
        job.checkpoints(2)
    store.prune([(JOB, 2)])
    assert ids(store) == [10, 9, 8, 5, 2, 1]


def test_the_newest_that_is_no_savepoint_stays_behind_newer_savepoints(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(3)
    job.checkpoints(3, kind=CheckpointKind.SAVEPOINT)
    store.prune([(JOB, 1)])
    assert ids(store) == [6, 5, 4, 3, 1]


def test_a_released_savepoint_is_removed_like_any_other(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(1)
    job.checkpoints(1, kind=CheckpointKind.SAVEPOINT)
    job.checkpoints(2)
    job.write(SavepointReleased(checkpoint=CheckpointId(2)))
    store.prune([(JOB, 1)])
    assert ids(store) == [4, 1]


def test_the_newest_completed_checkpoint_stays_while_its_commits_are_not_proved(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(2)
    job.trigger()
    job.complete()
    job.trigger()
    store.prune([(JOB, 1)])
    assert ids(store) == [4, 3, 1]
    assert store.load_jobs() == [job.durable]


def test_a_damaged_row_that_looks_completed_does_not_push_out_the_newest_one(store: Store, place: Place) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(1)
    job.trigger()
    job.abort(AbortReason.EXPIRED)
    store.close()
    place.change("UPDATE checkpoints SET state = 'settled' WHERE state = 'aborted'")
    with closing(place.open()) as store:
        store.prune([(JOB, 1)])
    assert place.loaded() == [job.durable]


@pytest.mark.parametrize("kind", [CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT])
def test_the_source_of_an_ordered_restore_stays_until_the_restore_is_done(
    store: Store, place: Place, kind: CheckpointKind
) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(1)
    job.checkpoints(1, kind=kind)
    job.checkpoints(4)
    job.end()
    job.order_restore(2)
    store.prune([(JOB, 1)])
    assert ids(store) == [6, 2, 1]
    with closing(place.reopened(store)) as store:
        store.prune([(JOB, 1)])
        assert store.load_jobs() == [job.durable]
        again = StoredJob(store, known=job.durable)
        again.restore()
        store.prune([(JOB, 1)])
        assert store.load_jobs() == [again.durable], "it begins with the source's positions, whatever becomes of it"
        assert ids(store) == ([7, 6, 2, 1] if kind is CheckpointKind.SAVEPOINT else [7, 6, 1])


def test_aborted_checkpoints_are_bounded_and_push_out_no_completed_one(store: Store) -> None:
    job, other = StoredJob(store), StoredJob(store, JobName("payments"))
    other.open()
    other.trigger()
    other.abort(AbortReason.EXPIRED)
    job.open()
    job.checkpoints(1)
    for _ in range(KEPT_ABORTED + 50):
        job.trigger()
        job.abort(AbortReason.EXPIRED)
    store.prune([(JOB, 1)])
    assert ids(store, other.durable.job) == [1]
    aborted = ids(store, states=[CheckpointState.ABORTED])
    assert aborted == list(range(KEPT_ABORTED + 51, 51, -1))
    assert ids(store)[len(aborted) :] == [1]


def test_a_busy_neighbour_pushes_out_nothing_and_lends_no_room(store: Store) -> None:
    """Each job is pruned by its own rows, whichever job is busier."""
    quiet, busy = StoredJob(store), StoredJob(store, JobName("payments"))
    for job, times in ((quiet, 2), (busy, KEPT_ABORTED + 3)):
        for _ in range(times):
            job.open()
            job.checkpoints(1)
            job.trigger()
            job.abort(AbortReason.EXPIRED)
            job.end()
        store.note(job.durable.job, [(FLOOD, each) for each in range(times * 10)], at=AT)

    def rows(job: StoredJob) -> tuple[list[int], list[Generation], int]:
        name = job.durable.job
        generations = [one.generation for one in store.generations(name, 1_000)]
        return ids(store, name), generations, len(store.history(name, 10 * KEPT_HISTORY))

    before = rows(quiet), rows(busy)
    store.prune([(quiet.durable.job, 2)])
    assert (rows(quiet), rows(busy)) == before
    store.prune([(busy.durable.job, 2)])
    assert rows(quiet) == before[0]
    checkpoints, generations, entries = rows(busy)
    last = busy.durable.last_id
    assert checkpoints == sorted([1, last - 1, last - 3, *range(last, last - 2 * KEPT_ABORTED, -2)], reverse=True)
    assert generations == list(range(KEPT_ABORTED + 3, 3, -1))
    assert entries < before[1][2]


def test_a_job_without_a_record_is_pruned_too(store: Store, place: Place) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(3)
    store.close()
    place.change("DELETE FROM jobs WHERE job = 'orders'")
    with closing(place.open()) as store:
        assert store.prune([(JOB, 1)])
        assert ids(store) == [3, 1]


def test_a_removal_that_fails_names_its_jobs(store: Store, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    store.close()
    refuse_removals(place, "checkpoints")
    with closing(place.open()) as store:
        for name in ("orders", "payments"):
            job = StoredJob(store, JobName(name))
            job.open()
            job.checkpoints(3)
        assert store.prune([(JOB, 1), (JobName("payments"), 1)]) is False
    assert "event=retention_failed jobs=orders,payments" in caplog.text


def test_generations_are_bounded_and_the_newest_stay(store: Store) -> None:
    job = StoredJob(store)
    for _ in range(KEPT_GENERATIONS + 5):
        job.open()
        job.end()
    store.prune([(JOB, 1)])
    listed = [one.generation for one in store.generations(JOB, 1_000)]
    assert listed == list(range(KEPT_GENERATIONS + 5, 5, -1))


def test_the_history_is_bounded_and_the_newest_stays(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    store.note(JOB, [(FLOOD, count) for count in range(KEPT_HISTORY)], at=AT)
    job.checkpoints(1)
    store.prune([(JOB, 1)])
    entries = store.history(JOB, 10 * KEPT_HISTORY)
    assert [one.event for one in entries[:2]] == ["CheckpointSettled", "CheckpointCompleted"]
    assert len(entries) == KEPT_HISTORY + 2, "decisions push out nothing else, and nothing else them"
    assert entries[-1].count == 0
    store.note(JOB, [(FLOOD, KEPT_HISTORY)], at=AT)
    store.prune([(JOB, 1)])
    entries = store.history(JOB, 10 * KEPT_HISTORY)
    assert len(entries) == KEPT_HISTORY + 2
    assert (entries[0].count, entries[-1].count) == (KEPT_HISTORY, 1)


def test_neither_a_flood_of_refusals_nor_a_healthy_year_evicts_older_events(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(1)
    store.note(JOB, [(FLOOD, 1)] * (KEPT_HISTORY + 1), at=AT)
    store.prune([(JOB, 1)])
    oldest = [one.event for one in store.history(JOB, 10 * KEPT_HISTORY)][KEPT_HISTORY:]
    assert oldest == ["CheckpointSettled", "CheckpointCompleted"]
    again = CheckpointSettled(checkpoint=job.durable.base, took_s=0.0)
    job.write(*[again] * (KEPT_HISTORY + 1))
    store.prune([(JOB, 1)])
    oldest = [one.event for one in store.history(JOB, 10 * KEPT_HISTORY)][KEPT_HISTORY:]
    assert oldest == ["Renew"] * KEPT_HISTORY


def test_an_entry_of_the_history_is_bounded_and_its_evidence_is_whole(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger()
    job.complete()
    evidence = tuple(Settlement(slot=slot, outcome=Outcome.LOST, evidence="CompleteAbort") for slot in range(1_000))
    job.write(LossRecorded(checkpoint=job.durable.base, participant=SINK.name, settlements=evidence))
    reported = store.history(JOB, 1)[0].detail
    assert len(reported) == MAX_DETAIL
    assert reported.startswith("slot 0: CompleteAbort; slot 1: CompleteAbort; ")
    details = store.checkpoint(JOB, CheckpointId(1))
    assert details is not None
    assert tuple(one.settlement for one in details.settlements) == evidence


def test_evidence_goes_with_its_checkpoint(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(1)
    for outcome in (Outcome.IN_DOUBT, Outcome.LOST):
        job.trigger()
        job.complete()
        evidence = (Settlement(slot=1, outcome=outcome, evidence="seen"),)
        job.write(LossRecorded(checkpoint=job.durable.base, participant=SINK.name, settlements=evidence))
        job.settle()
    store.prune([(JOB, 1)])
    details = store.checkpoint(JOB, CheckpointId(3))
    assert details is not None
    assert [one.settlement.outcome for one in details.settlements] == [Outcome.LOST]
    assert store.checkpoint(JOB, CheckpointId(2)) is None


def test_a_removal_that_fails_loses_nothing_and_the_next_one_does_it(store: Store, place: Place) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(5)
    store.close()
    refuse_removals(place, "history", "(SELECT status FROM jobs WHERE job = OLD.job) = 'running'")
    with closing(place.open()) as store:
        job = StoredJob(store, known=job.durable)
        store.note(JOB, [(FLOOD, 1)] * KEPT_HISTORY, at=AT)
        assert store.prune([(JOB, 1)]) is False
        assert ids(store) == [5, 4, 3, 2, 1], "what was removed before it failed is rolled back"
        job.checkpoints(1)
        assert store.prune([(JOB, 1)]) is False
        job.end()
        assert store.prune([(JOB, 1)]) is True
        assert ids(store) == [6, 1]
        refused = [one for one in store.history(JOB, 10 * KEPT_HISTORY) if one.verdict is not None]
        assert KEPT_HISTORY - 10 < len(refused) < KEPT_HISTORY
    assert place.loaded() == [job.durable]
