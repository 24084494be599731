"""Damage is named, never misread. It stops at most the job that needs the damaged record."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from onceward.common.errors import StoreError
from onceward.coordinator.store.errors import NoSuchCheckpointError, StoreDamagedError
from onceward.coordinator.store.reading import LastCompleted
from onceward.coordinator.store.schema import (
    checkpoints,
    checksum,
    generations,
    history,
    losses,
    settlements,
    text_checksum,
)
from onceward.coordinator.store.store import Store
from onceward.protocol.facts import AbortReason, CheckpointAmended, LossAcknowledged, SavepointReleased
from onceward.protocol.phases import Phase
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
from onceward.wire.rows import (
    CheckpointDescription,
    CheckpointSummary,
    GenerationSummary,
    HistoryEntry,
    LossReport,
    RecordedSettlement,
)
from tests.support.events import SINK
from tests.support.places import Place
from tests.support.stored_jobs import AT, JOB, StoredJob, snapshots

LOST = Settlement(slot=1, outcome=Outcome.LOST, evidence="CompleteAbort")
_OTHER = JobName("payments")
_DAMAGE = r"""UPDATE checkpoints SET snapshots = replace(snapshots, '\"of\"', '\"at\"') WHERE job = 'orders'"""
_REPAIR = r"""UPDATE checkpoints SET snapshots = replace(snapshots, '\"at\"', '\"of\"') WHERE job = 'orders'"""


def three_checkpoints(store: Store, name: JobName = JOB) -> StoredJob:
    """A job with three completed and settled checkpoints and no driver."""
    job = StoredJob(store, name)
    job.open()
    job.checkpoints(3)
    job.end()
    return job


# -- of a completed checkpoint


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (f"{_DAMAGE} AND checkpoint = 3", "checkpoint 3 of job orders is not what was written"),
        ("UPDATE checkpoints SET base = 1 WHERE job = 'orders' AND checkpoint = 3", "not what was written"),
        ("UPDATE checkpoints SET state = 'aborted' WHERE job = 'orders' AND checkpoint = 3", "not what was written"),
        ("DELETE FROM checkpoints WHERE job = 'orders' AND checkpoint = 3", "checkpoint 3 of job orders is not in"),
        ("UPDATE checkpoints SET snapshots = CAST(snapshots AS BLOB) WHERE job = 'orders' AND checkpoint = 3", "not"),
        ("UPDATE checkpoints SET decided_at = 1e300 WHERE job = 'orders' AND checkpoint = 3", "not what was written"),
    ],
)
def test_a_damaged_newest_completed_checkpoint_concerns_its_job_and_names_the_readable_ones(
    store: Store, place: Place, statement: str, why: str
) -> None:
    three_checkpoints(store)
    other = three_checkpoints(store, _OTHER)
    store.close()
    place.change(statement)
    with closing(place.open()) as store:
        orders, payments = store.load_jobs()
        assert payments == other.durable
        assert orders.completed is None
        assert why in orders.unreadable
        assert orders.unreadable.endswith("Completed and readable are: 2, 1")
        assert set(store.last_completed_by_job()) == {JOB, _OTHER}, "it can still be listed"
        assert store.completed(JOB, CheckpointId(2)).id == 2


def test_a_checkpoint_that_another_version_wrote_is_named_and_none_is_readable(store: Store, place: Place) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(1)
    store.close()
    with place.raw() as raw:
        (found,) = raw.execute(select(checkpoints)).mappings()
        row = {**dict(found), "snapshots": '{"source":1}', "snapshots_checksum": text_checksum('{"source":1}')}
        raw.execute(update(checkpoints).values({**row, "checksum": checksum(checkpoints, row)}))
    (durable,) = place.loaded()
    assert durable.unreadable.startswith("checkpoint 1 of job orders cannot be read: ")
    assert durable.unreadable.endswith("Completed and readable are: none")


def test_an_unreadable_record_stays_known_after_later_writes(store: Store, place: Place) -> None:
    job = three_checkpoints(store)
    job.open()
    job.trigger()
    store.close()
    place.change(f"{_DAMAGE} AND checkpoint = 3")
    for round_ in range(2):
        with closing(place.open()) as store:
            (durable,) = store.load_jobs()
            assert "checkpoint 3 of job orders" in durable.unreadable, round_
            again = StoredJob(store, known=durable)
            if round_ == 0:
                again.abort(AbortReason.DRIVER_LOST)
                again.end()
            store.prune([(JOB, 1)])
            assert store.last_completed(JOB).id == 3


def test_a_job_continues_from_an_older_checkpoint_that_an_operator_names(store: Store, place: Place) -> None:
    three_checkpoints(store)
    store.close()
    place.change(f"{_DAMAGE} AND checkpoint = 3")
    with closing(place.open()) as store:
        (durable,) = store.load_jobs()
        job = StoredJob(store, known=durable)
        job.order_restore(2)
    (ordered,) = place.loaded()
    assert ordered == job.durable
    assert ordered.unreadable, "until it is restored"
    with closing(place.open()) as store:
        job = StoredJob(store, known=ordered)
        job.restore()
        newest, unreadable, *_ = store.checkpoints(JOB, 10)
        assert (newest.base, newest.kind) == (2, CheckpointKind.RESTORE)
        assert newest.detail == "instead of one that could not be read: ann: bad input"
        assert unreadable.state is CheckpointState.UNREADABLE
    assert place.loaded() == [job.durable]
    assert job.durable.unreadable == ""


def test_an_older_completed_one_that_is_damaged_is_listed_so_and_never_restored(store: Store, place: Place) -> None:
    job = three_checkpoints(store)
    store.close()
    place.change(f"{_DAMAGE} AND checkpoint = 2")
    with closing(place.open()) as store:
        assert store.load_jobs() == [job.durable]
        states = {one.checkpoint: one.state for one in store.checkpoints(JOB, 10)}
        settled = CheckpointState.SETTLED
        assert states == {1: settled, 2: CheckpointState.UNREADABLE, 3: settled}
        details = store.checkpoint(JOB, CheckpointId(2))
        assert details is not None
        assert (details.summary.state, details.snapshots) == (CheckpointState.UNREADABLE, {})
        with pytest.raises(NoSuchCheckpointError, match="checkpoint 2 of job orders is not what was written"):
            store.completed(JOB, CheckpointId(2))
        assert store.load_jobs() == [job.durable], "asking for it is no failure of the store"


def test_a_requested_restore_with_a_damaged_source_is_neither_done_nor_forgotten(store: Store, place: Place) -> None:
    job = three_checkpoints(store)
    job.order_restore(1)
    store.close()
    place.change(f"{_DAMAGE} AND checkpoint = 1")
    for _ in range(2):
        with closing(place.open()) as store:
            (durable,) = store.load_jobs()
            assert (durable.completed, durable.restore) == (None, None)
            assert "is to be restored, but checkpoint 1 of job orders is not what was written" in durable.unreadable
            assert durable.unreadable.endswith("Completed and readable are: 3, 2")
            StoredJob(store, known=durable).write()
    place.change(_REPAIR + " AND checkpoint = 1")
    assert place.loaded() == [job.durable], "with the former content the order stands as it was given"


@pytest.mark.parametrize("state", ["triggered", "aborted"])
def test_only_completed_checkpoints_are_restored(store: Store, state: str) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger()
    if state == "aborted":
        job.abort(AbortReason.EXPIRED)
    with pytest.raises(NoSuchCheckpointError, match=f"checkpoint 1 of job orders is {state}, not completed"):
        store.completed(JOB, CheckpointId(1))


# -- of other records


def halted_among_others(store: Store) -> StoredJob:
    """A halted job with every kind of row and an undecided checkpoint; and a neighbour."""
    three_checkpoints(store, _OTHER)
    job = StoredJob(store)
    job.open()
    job.checkpoints(3)
    job.halt(Settlement(slot=1, outcome=Outcome.IN_DOUBT, evidence="no answer"))
    job.trigger()
    return job


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE jobs SET generation = generation + 1 WHERE job = 'orders'",
        "UPDATE jobs SET document = replace(document, '\"failures\":0', '\"failures\":1') WHERE job = 'orders'",
        "UPDATE jobs SET document = CAST(document AS BLOB) WHERE job = 'orders'",
        "UPDATE jobs SET document = CAST(x'ff' || document AS TEXT) WHERE job = 'orders'",
        "UPDATE jobs SET job = 'other' WHERE job = 'orders'",
        "DELETE FROM jobs WHERE job = 'orders'",
    ],
)
def test_a_job_whose_record_is_damaged_is_halted_and_its_neighbours_are_not(
    store: Store, place: Place, statement: str
) -> None:
    halted_among_others(store)
    payments = store.load_jobs()[1]
    store.close()
    place.change(statement)
    with closing(place.open()) as store:
        found = {durable.job: durable for durable in store.load_jobs()}
        assert found[_OTHER] == payments
        orders = found[JOB]
        assert (orders.record_damaged, orders.status, orders.completed) == (True, JobStatus.HALTED, None)
        gone = "is missing" if "DELETE" in statement or "SET job" in statement else "is not what was written:"
        assert f"the store's record of job orders {gone}" in orders.unreadable
        assert "damaged" in orders.status_detail
        assert "Completed and readable are: 3, 2, 1" in orders.unreadable, "a new job can begin at their positions"
        assert store.last_completed(JOB) == LastCompleted()


@pytest.mark.parametrize(
    ("statement", "listed"),
    [
        (
            "UPDATE settlements SET outcome = 'committed'",
            lambda store: [one.settlement.evidence for one in details_of(store, 3).settlements],
        ),
        (
            "UPDATE settlements SET evidence = CAST(x'ff' AS TEXT)",
            lambda store: [one.settlement.evidence for one in details_of(store, 3).settlements],
        ),
        (
            "UPDATE generations SET driver = 'd2' WHERE job = 'orders'",
            lambda store: [one.detail for one in store.generations(JOB, 10)],
        ),
        (
            "UPDATE history SET detail = 'all is well' WHERE event = 'JobHalted'",
            lambda store: [one.detail for one in store.history(JOB, 10)],
        ),
        (
            "UPDATE history SET detail = CAST(x'ff' AS TEXT) WHERE event = 'JobHalted'",
            lambda store: [one.detail for one in store.history(JOB, 10)],
        ),
        (
            "UPDATE checkpoints SET base = 0 WHERE state = 'triggered'",
            lambda store: [one.detail for one in store.checkpoints(JOB, 1)],
        ),
    ],
)
def test_damaged_history_is_set_aside_and_listed_as_damaged(
    store: Store, place: Place, statement: str, listed: Callable[[Store], list[str]]
) -> None:
    job = halted_among_others(store)
    store.close()
    place.change(statement)
    with closing(place.open()) as store:
        assert store.load_jobs()[0] == job.durable
        assert sum("not what was written" in one for one in listed(store)) == 1
        again = StoredJob(store, known=job.durable)
        again.abort(AbortReason.DRIVER_LOST)
        again.end()
        again.open()
        again.checkpoints(1)
        assert store.load_jobs()[0] == again.durable, "the job continues"


def details_of(store: Store, checkpoint: int) -> CheckpointDescription:
    details = store.checkpoint(JOB, CheckpointId(checkpoint))
    assert details is not None
    return details


def every_listing(store: Store) -> list[object]:
    """Return everything that listings show of a job."""
    shown: list[object] = []
    for number in (1, 2):
        found = details_of(store, number)
        shown += [found.summary, *found.settlements]
    return [
        *shown,
        *store.checkpoints(JOB, 10),
        *store.losses([JOB], 10, acknowledged=True),
        *store.generations(JOB, 10),
        *store.history(JOB, 100),
    ]


@pytest.mark.parametrize("damaged", ["NULL", "'7'"])
def test_changed_phases_are_noticed(store: Store, place: Place, damaged: str) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger()
    job.abort(AbortReason.DECLINED, phases={Phase.PLAN: timedelta(seconds=1)})
    store.close()
    place.change(f"UPDATE checkpoints SET phases = {damaged}")
    with closing(place.open()) as store:
        (one,) = store.checkpoints(JOB, 9)
    assert (one.state, one.phases) == (CheckpointState.UNREADABLE, {})


def test_nothing_of_a_damaged_record_is_shown_but_its_key(store: Store, place: Place) -> None:
    """Whatever the damaged record's columns say, it looks as if only its key were known."""
    job = StoredJob(store)
    job.open()
    job.lose(LOST)
    job.settle(took=1.0)
    job.write(
        LossAcknowledged(checkpoint=CheckpointId(1), participant=SINK.name, slots=frozenset({1}), reason="ann: known")
    )
    job.trigger(kind=CheckpointKind.SAVEPOINT, name="before-upgrade", waited=0.5)
    job.abort(AbortReason.DECLINED, "no", ran=1.0)
    job.end()
    seen = every_listing(store)
    store.close()
    kept = {"acknowledged_at", "snapshots", "snapshots_checksum", "checksum"}
    with place.raw() as raw:
        for table in (checkpoints, settlements, losses, generations, history):
            keys = {"job", *(column.name for column in table.primary_key)}
            for column in {column.name for column in table.columns} - keys - kept:
                raw.exec_driver_sql(f"UPDATE {table.name} SET {column} = '77' WHERE {column} IS NOT NULL")
    with closing(place.open()) as store:
        (durable,) = store.load_jobs()
        damaged = every_listing(store)
    assert "checkpoint 1 of job orders" in durable.unreadable
    assert len(damaged) == len(seen)
    for one in damaged:
        match one:
            case CheckpointSummary():
                assert one.checkpoint in (1, 2)
                assert "not what was written" in one.detail
                assert one == CheckpointSummary(
                    checkpoint=one.checkpoint,
                    base=CheckpointId(0),
                    generation=Generation(0),
                    kind=CheckpointKind.CHECKPOINT,
                    name="",
                    state=CheckpointState.UNREADABLE,
                    abort_reason=None,
                    detail=one.detail,
                    triggered_at=None,
                    decided_at=None,
                    settled_at=None,
                    waited=timedelta(),
                    ran=None,
                    decided=None,
                    settled=None,
                    records_read=0,
                    records_written=0,
                    bytes_read=0,
                    bytes_written=0,
                    committables=0,
                    amendment=0,
                )
            case RecordedSettlement():
                assert (one.participant, one.settlement.slot, one.recorded_at) == (SINK.name, 1, None)
                assert one.settlement.outcome is Outcome.IN_DOUBT
            case LossReport():
                assert (one.job, one.checkpoint, one.participant, one.settlement.slot) == (JOB, 1, SINK.name, 1)
                assert (one.settlement.outcome, one.reason) == (Outcome.IN_DOUBT, "")
                assert (one.document.kind, one.document.body) == ("unreadable", {})
                assert (one.recorded_at, one.acknowledged_at) == (None, None)
                assert "not what was written" in one.acknowledgement, "the acknowledgement stays"
            case GenerationSummary():
                assert (one.generation, one.driver, one.granted_at, one.ended_at) == (1, "", None, None)
            case HistoryEntry():
                assert (one.at, one.event, one.verdict, one.generation) == (None, "Unreadable", None, 0)
                assert (one.checkpoint, one.participant, one.count) == (0, "", 1)
            case _:
                raise AssertionError(one)


def test_a_loss_whose_key_is_damaged_is_still_listed(store: Store, place: Place) -> None:
    job = StoredJob(store)
    job.open()
    job.lose(LOST)
    store.close()
    place.change("UPDATE losses SET job = 'No Name!', participant = '', checkpoint = 'x', slot = x'00'")
    with closing(place.open()) as store:
        (report,) = store.losses(None, 10, acknowledged=False)
    assert (report.job, report.participant, report.checkpoint, report.settlement.slot) == (
        "unreadable", "unreadable", 0, 0
    )  # fmt: skip
    assert (report.acknowledged_at, report.acknowledgement) == (None, ""), "it is not acknowledged"


def test_a_record_that_ends_after_it_was_damaged_is_named_in_the_log(
    store: Store, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger()
    store.close()
    with place.raw() as raw:
        raw.exec_driver_sql("UPDATE generations SET driver = 'd2'")
        raw.exec_driver_sql("UPDATE checkpoints SET base = 7")
    with closing(place.open()) as store:
        job = StoredJob(store, known=job.durable)
        job.abort(AbortReason.DRIVER_LOST)
        job.end()
        assert "not what was written" in store.generations(JOB, 1)[0].detail
    for what in ("checkpoint 1", "generation 1"):
        assert f'job=orders event=damaged detail="the record of {what} is not what was written"' in caplog.text


def test_a_store_that_does_not_know_itself_is_refused(store: Store, place: Place) -> None:
    store.close()
    place.change("UPDATE onceward_meta SET value = 'x' WHERE key = 'store_id'")
    with pytest.raises(StoreDamagedError, match="record store_id is not what was written"):
        place.open()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE checkpoints SET waited = 1 WHERE checkpoint = 4",
        "UPDATE checkpoints SET name = CAST(x'ff' AS TEXT) WHERE checkpoint = 4",
        "DELETE FROM checkpoints WHERE checkpoint = 4",
    ],
)
@pytest.mark.parametrize("state", ["triggered", "completed"])
def test_a_record_that_is_damaged_before_it_is_changed_is_written_again_from_memory(
    store: Store, place: Place, statement: str, state: str
) -> None:
    job = three_checkpoints(store)
    job.open()
    job.trigger()
    if state == "completed":
        job.complete()
    store.close()
    place.change(statement)
    later = AT + timedelta(seconds=5)
    with closing(place.open()) as store:
        job = StoredJob(store, known=job.durable)
        if state == "triggered":
            job.complete(at=later)
            details = details_of(store, 4)
            assert (details.summary.state, details.summary.settled_at) == (CheckpointState.COMPLETED, None)
        job.settle(at=later)
        details = details_of(store, 4)
        assert (details.summary.state, details.summary.base) == (CheckpointState.SETTLED, 3)
        assert (details.summary.decided_at, details.summary.settled_at) == (later, later)
        assert (details.summary.name, details.summary.waited, details.summary.amendment) == ("", timedelta(), 0)
        assert (details.summary.records_read, details.summary.records_written) == (10, 9)
        assert details.snapshots == snapshots(4)
        assert "its record was damaged" in details.summary.detail
        assert store.load_jobs() == [job.durable]


def test_a_record_that_is_damaged_between_its_decision_and_its_settling_is_repaired(store: Store, place: Place) -> None:
    job = three_checkpoints(store)
    job.open()
    job.trigger()
    job.complete()
    database = store._database.connection  # nothing else reaches the file while the store is open
    with database.begin():
        database.exec_driver_sql("UPDATE checkpoints SET waited = 1 WHERE checkpoint = 4")
    job.settle()
    store.close()
    with closing(place.open()) as store:
        assert store.load_jobs() == [job.durable]
        details = details_of(store, 4)
        assert (details.summary.state, details.summary.waited) == (CheckpointState.SETTLED, timedelta())
        assert details.snapshots == snapshots(4)


@pytest.mark.parametrize("settled", [False, True])
def test_a_savepoint_whose_record_is_damaged_is_released_as_it_was(store: Store, place: Place, settled: bool) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger(name="the-one-before")
    job.complete()
    job.settle()
    job.trigger(kind=CheckpointKind.SAVEPOINT, name="before-upgrade")
    job.complete()
    again = CheckpointAmended(
        checkpoint=CheckpointId(2), participant=SINK.name, amendment=3, slots=frozenset({1}), committables=()
    )
    job.write(again)
    if settled:
        job.settle()
    store.close()
    place.change("UPDATE checkpoints SET base = 7 WHERE checkpoint = 2")
    later = AT + timedelta(seconds=5)
    with closing(place.open()) as store:
        job = StoredJob(store, known=job.durable)
        job.write(SavepointReleased(checkpoint=CheckpointId(2)), at=later)
        assert store.load_jobs() == [job.durable]
        record = details_of(store, 2).summary
    state = CheckpointState.SETTLED if settled else CheckpointState.COMPLETED
    assert (record.state, record.decided_at, record.settled_at) == (state, later, later if settled else None)
    assert (record.kind, record.name, record.amendment) == (CheckpointKind.CHECKPOINT, "before-upgrade", 3)
    assert (record.base, record.committables) == (1, 1)


@pytest.mark.parametrize("content", [b"SQLite format 3\0" + bytes(300), b"no database at all\n" * 60])
def test_a_file_that_is_no_whole_database_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "store.db"
    file.write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"store\.db is not a whole SQLite database"):
        Store.open(f"sqlite:///{file}")
    assert file.read_bytes() == content


def test_every_damaged_page_found_on_opening_is_reported(sqlite: Store, file: Path) -> None:
    three_checkpoints(sqlite)
    sqlite.close()
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute("UPDATE sqlite_master SET sql = replace(sql, 'detail TEXT NOT NULL', 'detail TEXT CHECK (0)')")
    with pytest.raises(StoreDamagedError, match=r"is damaged: CHECK constraint failed in [a-z]+; CHECK constraint"):
        Store.open(f"sqlite:///{file}")


def test_a_file_cut_at_any_length_gives_the_whole_truth_or_none(sqlite: Store, file: Path, tmp_path: Path) -> None:
    three_checkpoints(sqlite)
    whole = sqlite.load_jobs()
    sqlite.close()
    content = file.read_bytes()
    for length in {0, 1, 99, 100, 511, 4095, 4096, 4097, len(content) // 2, len(content) - 4096, len(content) - 1}:
        cut = tmp_path / f"cut-{length}" / "store.db"
        cut.parent.mkdir()
        cut.write_bytes(content[:length])
        try:
            with closing(Store.open(f"sqlite:///{cut}")) as opened:
                read = opened.load_jobs()
        except StoreError:
            continue
        # an empty file is a new store with another id: the claim on the sink's cluster refuses it
        assert read == whole or (length == 0 and opened.store_id != sqlite.store_id), length


def test_a_wrong_byte_anywhere_gives_the_truth_or_less_and_never_something_else(
    sqlite: Store, file: Path, tmp_path: Path
) -> None:
    whole = three_checkpoints(sqlite).durable
    sqlite.close()
    content = file.read_bytes()
    places = [place for place, byte in enumerate(content) if byte]
    copy = tmp_path / "copy" / "store.db"
    copy.parent.mkdir()
    refused = unreadable = 0
    for number, place in enumerate(places[:: len(places) // 150]):
        wrong = bytearray(content)
        wrong[place] ^= (1, 0x80)[number % 2]
        copy.write_bytes(wrong)
        for beside in copy.parent.glob("store.db-*"):
            beside.unlink()
        try:
            with closing(Store.open(f"sqlite:///{copy}")) as opened:
                read = opened.load_jobs()
                for listing in (opened.checkpoints, opened.generations, opened.history):
                    listing(JOB, 10)
                opened.last_completed_by_job()
        except StoreError:
            refused += 1
            continue
        for durable in read:
            unreadable += bool(durable.unreadable)
            if not durable.record_damaged:
                without = replace(whole, completed=None, unreadable=durable.unreadable)
                assert durable == (without if durable.unreadable else whole), place
        assert read or opened.store_id != sqlite.store_id, place
    assert refused > 50
    assert unreadable > 2
