"""The store remembers exactly what the core decided, for one process at a time, and misreads nothing."""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from coordinator.errors import ExitCode, StoreError
from coordinator.protocol.core import step
from coordinator.protocol.facts import (
    AbortReason,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointSettled,
    CheckpointTriggered,
    CheckpointUnchanged,
    Fact,
    GenerationGranted,
    JobHalted,
)
from coordinator.protocol.settings import CheckpointSettings
from coordinator.protocol.state import Durable, JobState, restart
from coordinator.protocol.values import (
    CheckpointId,
    Committable,
    Document,
    Generation,
    JobName,
    Outcome,
    Settlement,
    Snapshot,
)
from coordinator.store.engine import connect
from coordinator.store.errors import StoreDamagedError, StoreUnusableError
from coordinator.store.filesystem import filesystem_of, refuse_network_filesystem
from coordinator.store.records import CheckpointState
from coordinator.store.store import Store
from tests.unit.protocol.histories import SINK, SOURCE, Move, moves, to_event

JOB = JobName("orders")
AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
GRANTED = GenerationGranted(
    generation=Generation(1),
    driver="d1",
    participants=(SOURCE, SINK),
    settings=CheckpointSettings(),
    first_id=CheckpointId(0),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "store.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{file}")
    yield store
    store.close()


def reopened(store: Store, file: Path) -> Store:
    store.close()
    return Store.open(f"sqlite:///{file}")


def snapshots(checkpoint: int, slots: int = 2) -> dict[object, Snapshot]:
    document = Document(kind="test", version=1, body={"of": checkpoint})
    committables = tuple(Committable(slot=slot, document=document) for slot in range(slots))
    return {
        SOURCE.name: Snapshot(positions=document, records=10),
        SINK.name: Snapshot(committables=committables, records=9, bytes=90),
    }


def triggered(checkpoint: int, base: int) -> CheckpointTriggered:
    return CheckpointTriggered(checkpoint=CheckpointId(checkpoint), base=CheckpointId(base), generation=Generation(1))


def completed(checkpoint: int, *, keep: int = 10, settled: bool = False) -> CheckpointCompleted:
    return CheckpointCompleted(
        checkpoint=CheckpointId(checkpoint),
        snapshots=snapshots(checkpoint),  # type: ignore[arg-type]
        settled=settled,
        keep=keep,
    )


def one_checkpoint(checkpoint: int, base: int, *, keep: int = 10) -> list[Fact]:
    return [
        triggered(checkpoint, base),
        completed(checkpoint, keep=keep),
        CheckpointSettled(checkpoint=CheckpointId(checkpoint)),
    ]


# -- it remembers


@given(moves)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happened_a_restart_reads_what_the_core_had_decided(tmp_path: Path, history: list[Move]) -> None:
    file = tmp_path / os.urandom(8).hex() / "store.db"
    now = 50.0
    with closing(Store.open(f"sqlite:///{file}")) as store:
        state = JobState(durable=Durable(job=JOB, store_id=store.store_id))
        for move in history:
            now += move.wait
            if move.kind == "restart":
                state = restart(state.durable, now)
                continue
            state, ready = step(state, to_event(move, state, now))
            if ready.facts:
                store.apply(JOB, ready.facts, at=AT)
        store_id = store.store_id
    with closing(Store.open(f"sqlite:///{file}")) as store:
        assert store.store_id == store_id
        assert store.load_jobs() == ([state.durable] if state.durable.generation else [])


def test_listings_tell_the_times_and_counts_of_checkpoints(store: Store) -> None:
    store.apply(JOB, [GRANTED, *one_checkpoint(1, 0), triggered(2, 1)], at=AT)
    aborted = CheckpointAborted(checkpoint=CheckpointId(2), reason=AbortReason.DECLINED, detail="sink: no")
    store.apply(JOB, [aborted, triggered(3, 1)], at=AT)
    newest, second, first = store.checkpoints(JOB, 10)
    assert (newest.state, newest.decided_at) == (CheckpointState.TRIGGERED, None)
    assert (second.state, second.abort_reason, second.detail) == (
        CheckpointState.ABORTED,
        AbortReason.DECLINED,
        "sink: no",
    )
    assert (first.state, first.triggered_at, first.decided_at, first.settled_at) == (
        CheckpointState.SETTLED,
        AT,
        AT,
        AT,
    )
    assert (first.records_read, first.records_written, first.committables) == (10, 9, 2)
    (job,) = store.jobs()
    assert (job.job, job.completed, job.completed_at, job.last_id, job.settled) == (JOB, 1, AT, 3, True)


def test_an_unchanged_checkpoint_leaves_no_row(store: Store) -> None:
    store.apply(JOB, [GRANTED, triggered(1, 0)], at=AT)
    store.apply(JOB, [CheckpointUnchanged(checkpoint=CheckpointId(1))], at=AT)
    assert store.checkpoints(JOB, 10) == []
    assert store.load_jobs()[0].last_id == 1


def test_outcomes_that_halted_a_job_are_kept_as_evidence(store: Store) -> None:
    store.apply(JOB, [GRANTED, triggered(1, 0), completed(1)], at=AT)
    settlements = (
        Settlement(slot=0, outcome=Outcome.COMMITTED, evidence="NONE"),
        Settlement(slot=1, outcome=Outcome.LOST, evidence="CompleteAbort at (7, 3)"),
    )
    halted = JobHalted(
        checkpoint=CheckpointId(1), participant=SINK.name, settlements=settlements, reason="slot 1 is lost"
    )
    store.apply(JOB, [halted], at=AT)
    store.apply(JOB, [halted], at=AT)  # reported again
    details = store.checkpoint(JOB, CheckpointId(1))
    assert details is not None
    assert tuple(recorded.settlement for recorded in details.settlements) == settlements
    assert details.snapshots == snapshots(1)
    (durable,) = store.load_jobs()
    assert (durable.status, durable.lost) == ("halted", True)


@pytest.mark.parametrize("keep", [1, 3])
def test_retention_keeps_the_newest_completed_checkpoints_and_never_drops_the_last(store: Store, keep: int) -> None:
    store.apply(JOB, [GRANTED], at=AT)
    for checkpoint in range(1, 8):
        store.apply(JOB, one_checkpoint(checkpoint, checkpoint - 1, keep=keep), at=AT)
    assert [record.id for record in store.checkpoints(JOB, 100)] == list(range(7, 7 - keep, -1))
    durable = store.load_jobs()[0]
    assert durable.completed is not None
    assert durable.completed.id == 7


def test_aborted_checkpoints_are_bounded_and_do_not_push_out_completed_ones(store: Store) -> None:
    store.apply(JOB, [GRANTED, *one_checkpoint(1, 0, keep=1)], at=AT)
    for checkpoint in range(2, 152):
        facts: list[Fact] = [
            triggered(checkpoint, 1),
            CheckpointAborted(checkpoint=CheckpointId(checkpoint), reason=AbortReason.EXPIRED, detail=""),
        ]
        store.apply(JOB, facts, at=AT)
    kept = [record.id for record in store.checkpoints(JOB, 1000)]
    assert kept == [*range(151, 51, -1), 1]


def test_jobs_of_one_store_do_not_touch_each_other(store: Store) -> None:
    other = JobName("payments")
    for job in (JOB, other):
        store.apply(job, [GRANTED, *one_checkpoint(1, 0, keep=1)], at=AT)
    store.apply(JOB, one_checkpoint(2, 1, keep=1), at=AT)
    assert [record.id for record in store.checkpoints(other, 10)] == [1]
    assert [durable.job for durable in store.load_jobs()] == [JOB, other]


# -- one process, one schema, a place that can be trusted


def test_a_second_process_is_refused_with_the_holders_process_id(store: Store, file: Path) -> None:
    code = "import sys; from coordinator.store.store import Store; Store.open(sys.argv[1])"
    second = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{file}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "StoreUnusableError" in second.stderr
    assert f"in use by process {os.getpid()}" in second.stderr
    store.apply(JOB, [GRANTED], at=AT)


def test_removing_the_lock_file_lets_no_second_process_in(store: Store, file: Path) -> None:
    store.apply(JOB, [GRANTED], at=AT)
    file.with_name("store.db.lock").unlink()
    code = "import sys; from coordinator.store.store import Store; Store.open(sys.argv[1])"
    second = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{file}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "StoreUnusableError" in second.stderr


def test_a_decision_is_on_disk_before_it_is_told(file: Path) -> None:
    """NORMAL would lose the last decisions in a power cut: they are synced only when the log is folded in."""
    file.parent.mkdir()
    engine, connection = connect(file)
    try:
        pragmas = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    finally:
        connection.close()
        engine.dispose()
    assert pragmas == ["wal", 2]


def test_a_closed_store_can_be_opened_again(store: Store, file: Path) -> None:
    store.apply(JOB, [GRANTED], at=AT)
    store_id = store.store_id
    with closing(reopened(store, file)) as again:
        assert again.store_id == store_id
        assert again.load_jobs()[0].driver == "d1"


@pytest.mark.parametrize("version", ["2", "0", "nonsense"])
def test_another_schema_version_is_refused_with_both_numbers(store: Store, file: Path, version: str) -> None:
    from coordinator.store.schema import checksum, meta

    store.close()
    row = {"key": "schema_version", "value": version}
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute(
            "UPDATE onceward_meta SET value = ?, checksum = ? WHERE key = 'schema_version'",
            (version, checksum(meta, row)),
        )
    with pytest.raises(StoreUnusableError, match=f"schema version {version}, this program knows version 1") as refused:
        Store.open(f"sqlite:///{file}")
    assert refused.value.exit_code is ExitCode.USAGE


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(StoreUnusableError, match="songs"):
        Store.open(f"sqlite:///{file}")


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "postgresql://host/db", "no url", "sqlite:///a?mode=ro"]
)
def test_urls_that_cannot_hold_decisions_are_refused(url: str) -> None:
    with pytest.raises(StoreUnusableError, match="Nothing was started"):
        Store.open(url)


def test_a_directory_on_a_network_filesystem_is_refused() -> None:
    mounts = (
        "/dev/vda / ext4 rw 0 0\n"
        "server:/share /mnt/team\\040share nfs4 rw 0 0\n"
        "tmpfs /mnt/team\\040share/fast tmpfs rw 0 0\n"
    )
    with pytest.raises(StoreUnusableError, match="nfs4"):
        refuse_network_filesystem(Path("/mnt/team share/state"), mounts)
    refuse_network_filesystem(Path("/mnt/team share/fast/state"), mounts)
    refuse_network_filesystem(Path("/mnt/team"), mounts)
    assert filesystem_of(Path("/mnt/team shared"), mounts) == "ext4"


def test_a_directory_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreUnusableError, match="cannot be opened"):
        Store.open(f"sqlite:///{tmp_path / 'file' / 'store.db'}")


# -- damage is named, never misread


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        (
            "UPDATE checkpoints SET snapshots = replace(snapshots, '\"of\":1', '\"of\":3') WHERE checkpoint = 1",
            "checkpoint=1",
        ),
        ("UPDATE checkpoints SET records_read = records_read ^ 1 WHERE checkpoint = 1", "checkpoint=1"),
        ("UPDATE jobs SET generation = generation + 1", "job=orders"),
        ("UPDATE settlements SET outcome = 'committed'", "participant=sink slot=1"),
        ("UPDATE onceward_meta SET value = 'x' WHERE key = 'store_id'", "key=store_id"),
        ("DELETE FROM checkpoints WHERE checkpoint = 2", "Checkpoint 2, the newest completed one of job orders"),
    ],
)
def test_a_changed_record_is_refused_by_name(store: Store, file: Path, statement: str, named: str) -> None:
    bad = Settlement(slot=1, outcome=Outcome.IN_DOUBT, evidence="no answer")
    halted = JobHalted(checkpoint=CheckpointId(2), participant=SINK.name, settlements=(bad,), reason="in doubt")
    store.apply(JOB, [GRANTED, *one_checkpoint(1, 0), triggered(2, 1), completed(2), halted], at=AT)
    store.close()
    with closing(sqlite3.connect(file)) as raw, raw:
        statement = statement.replace("records_read ^ 1", "records_read + 1")
        assert raw.execute(statement).rowcount == 1
    with pytest.raises(StoreDamagedError, match=named), closing(Store.open(f"sqlite:///{file}")) as damaged:
        damaged.load_jobs()


def test_a_file_cut_at_any_length_gives_the_whole_truth_or_none(store: Store, file: Path, tmp_path: Path) -> None:
    store.apply(JOB, [GRANTED, *one_checkpoint(1, 0)], at=AT)
    whole = store.load_jobs()
    store.close()
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
        # an empty file is a new store, and says so by another id: the claim on the sink's cluster refuses it
        assert read == whole or (length == 0 and opened.store_id != store.store_id), length


def test_a_torn_log_gives_one_of_the_states_that_were_written(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    code = (
        "import os, signal, sys\n"
        "from tests.unit.store.test_store import *\n"
        "store = Store.open(sys.argv[1])\n"
        "store.apply(JOB, [GRANTED], at=AT)\n"
        "for n in range(1, 5): store.apply(JOB, one_checkpoint(n, n - 1), at=AT)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    child = subprocess.run([sys.executable, "-c", code, f"sqlite:///{origin / 'store.db'}"], timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL
    data, log = (origin / "store.db").read_bytes(), (origin / "store.db-wal").read_bytes()
    assert len(log) > 0, "the log was not forced into the file: that is what this is about"
    newest = -1
    for length in sorted({0, 31, 32, *range(33, len(log), max(1, len(log) // 60)), len(log)}):
        place = tmp_path / f"torn-{length}"
        place.mkdir()
        (place / "store.db").write_bytes(data)
        (place / "store.db-wal").write_bytes(log[:length])
        with closing(Store.open(f"sqlite:///{place / 'store.db'}")) as opened:
            jobs = opened.load_jobs()
        found = 0 if not jobs or jobs[0].completed is None else int(jobs[0].completed.id)
        assert found >= newest, "a longer log tells less"
        newest = max(newest, found)
        if jobs and jobs[0].completed is not None:
            assert jobs[0].completed.snapshots == snapshots(found)
            assert jobs[0].completed.settled
    assert newest == 4


# -- failures end it


def test_a_killed_process_leaves_whole_transactions_only(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    code = (
        "import sys\n"
        "from tests.unit.store.test_store import *\n"
        "store = Store.open(sys.argv[1])\n"
        "store.apply(JOB, [GRANTED], at=AT)\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    store.apply(JOB, [triggered(n, n - 1), completed(n)], at=AT)\n"
        "    print(n, flush=True)\n"
        "    store.apply(JOB, [CheckpointSettled(checkpoint=CheckpointId(n))], at=AT)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, f"sqlite:///{file}"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = 0
    for line in child.stdout:
        told = int(line)
        if told == 25:
            child.kill()
            break
    told = max([told, *(int(line) for line in child.stdout if line.endswith("\n"))])
    child.wait()
    log = file.with_name("store.db-wal")
    assert log.stat().st_size > 0
    with closing(Store.open(f"sqlite:///{file}")) as store:
        assert log.stat().st_size == 0, "the log is forced into the file before anything is believed"
        (durable,) = store.load_jobs()
    assert durable.completed is not None
    assert durable.pending is None
    assert durable.completed.id in (told, told + 1), "what was confirmed is there, and at most one more"
    assert durable.completed.snapshots == snapshots(int(durable.completed.id))


def test_a_full_disk_ends_the_store_and_the_next_start_reads_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with closing(Store.open(f"sqlite:///{file}")) as store:
        store.apply(JOB, [GRANTED, *one_checkpoint(1, 0), triggered(2, 1)], at=AT)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = file.with_name("store.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 512, hard))  # no whole page fits
        try:
            with pytest.raises(StoreError, match="unknown") as failed:
                store.apply(JOB, [completed(2)], at=AT)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert failed.value.exit_code is ExitCode.COORDINATOR_LOST
        with pytest.raises(StoreError, match="unknown"):
            store.load_jobs()
    with closing(Store.open(f"sqlite:///{file}")) as store:
        (durable,) = store.load_jobs()
        assert durable.completed is not None
        assert (durable.completed.id, durable.pending) == (1, (2, 1))
