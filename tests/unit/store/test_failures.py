"""A killed process or a failing disk leaves whole transactions, which the next start reads."""

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from onceward.common.errors import ExitCode, StoreError
from onceward.coordinator.store.store import Store
from onceward.protocol.durable import Durable
from onceward.protocol.evolve import evolve
from onceward.protocol.facts import CheckpointTriggered, CheckpointUnchanged, Fact
from onceward.protocol.values import CheckpointId, CheckpointKind, Generation, JobName
from tests.support.places import Place
from tests.support.stored_jobs import AT, JOB, StoredJob, loaded, snapshots

_WRITES_FOUR = """
import os, signal, sys
from onceward.coordinator.store.store import Store
from tests.support.stored_jobs import StoredJob
store = Store.open(sys.argv[1])
job = StoredJob(store)
job.open()
job.checkpoints(4)
os.kill(os.getpid(), signal.SIGKILL)
"""

_WRITES_ON = """
import sys
from onceward.coordinator.store.store import Store
from tests.support.stored_jobs import JOB, StoredJob
store = Store.open(sys.argv[1])
job = StoredJob(store)
job.open()
while True:
    job.trigger()
    job.complete()
    print(job.durable.base, flush=True)
    job.settle()
    store.prune([(JOB, 2)])
"""


def test_a_torn_log_gives_one_of_the_states_that_were_written(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    command = [sys.executable, "-c", _WRITES_FOUR, f"sqlite:///{origin / 'store.db'}"]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    data, log = (origin / "store.db").read_bytes(), (origin / "store.db-wal").read_bytes()
    assert len(log) > 0, "the log was not forced into the file: that is what this is about"
    newest = -1
    for length in sorted({0, 31, 32, *range(33, len(log), max(1, len(log) // 60)), len(log)}):
        place = tmp_path / f"torn-{length}"
        place.mkdir()
        (place / "store.db").write_bytes(data)
        (place / "store.db-wal").write_bytes(log[:length])
        jobs = loaded(place / "store.db")
        found = int(jobs[0].base) if jobs else 0
        assert found >= newest, "a longer log shows less"
        newest = max(newest, found)
        if jobs and jobs[0].completed is not None:
            assert not jobs[0].unreadable
            assert jobs[0].completed.snapshots == snapshots(found)
    assert newest == 4
    assert jobs[0].settled


_A_TERM_BYTES = 3 * 4096 + 1024
"""At most, in the log."""


def test_a_killed_process_leaves_whole_transactions_only(place: Place) -> None:
    command = [sys.executable, "-c", _WRITES_ON, place.url]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    reported = 0
    for line in child.stdout:
        reported = int(line)
        if reported == 25:
            child.kill()
            break
    reported = max([reported, *(int(line) for line in child.stdout if line.endswith("\n"))])
    child.wait()
    child.stdout.close()
    log = None if place.is_postgres else Path(place.url.removeprefix("sqlite:///") + "-wal")
    assert log is None or log.stat().st_size > _A_TERM_BYTES
    with closing(place.open()) as store:
        forced = "the log is forced into the file before anything is believed; then the term of this opening is in it"
        assert log is None or log.stat().st_size <= _A_TERM_BYTES, forced
        (durable,) = store.load_jobs()
        history = store.history(JOB, 10)
    assert durable.completed is not None
    assert durable.completed.id in (reported, reported + 1), "what was confirmed is there, and at most one more"
    assert durable.completed.snapshots == snapshots(durable.completed.id)
    assert durable.pending is None or durable.pending.id == durable.completed.id + 1
    newest = next(entry for entry in history if entry.event == "CheckpointCompleted")
    assert newest.checkpoint == durable.completed.id, "the history is of the same step"


def triggered(checkpoint: int, base: int) -> CheckpointTriggered:
    return CheckpointTriggered(
        checkpoint=CheckpointId(checkpoint),
        base=CheckpointId(base),
        generation=Generation(1),
        kind=CheckpointKind.CHECKPOINT,
        request=None,
        waited_s=0.0,
    )


@contextmanager
def no_room(file: Path) -> Iterator[None]:
    """Leave no room for a whole page in the log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = file.with_name(file.name + "-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 512, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_several_steps_in_one_write_are_atomic(place: Place) -> None:
    with closing(place.open()) as store:
        one, other = StoredJob(store), StoredJob(store, JobName("payments"))
        steps: list[tuple[Durable, Sequence[Fact]]] = []
        for job in (one, other):
            job.open()
            for fact in (triggered(1, 0), CheckpointUnchanged(checkpoint=CheckpointId(1)), triggered(2, 0)):
                job.durable = evolve(job.durable, fact)
                steps.append((job.durable, [fact]))
        store.apply(steps, at=AT)
        assert store.load_jobs() == [one.durable, other.durable]
        bad = evolve(one.durable, CheckpointUnchanged(checkpoint=CheckpointId(2)))
        steps = [(bad, [CheckpointUnchanged(checkpoint=CheckpointId(2))]), (other.durable, [triggered(2, 0)])]
        with pytest.raises(StoreError, match=r"(UNIQUE constraint failed|violates unique constraint)"):
            store.apply(steps, at=AT)
    assert place.loaded() == [one.durable, other.durable]


def test_a_full_disk_ends_the_store_and_the_next_start_reads_the_durable_state(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with closing(Store.open(f"sqlite:///{file}")) as store:
        job = StoredJob(store)
        job.open()
        job.checkpoints(1)
        job.trigger()
        with no_room(file), pytest.raises(StoreError, match="unknown") as failed:
            job.complete()
        assert failed.value.exit_code is ExitCode.COORDINATOR_LOST
        for call in (
            store.load_jobs,
            store.last_completed_by_job,
            lambda: store.prune([(JOB, 1)]),
            lambda: store.note(JOB, [], at=AT),
        ):
            with pytest.raises(StoreError, match="unknown"):
                call()
    assert loaded(file) == [job.durable]
    assert job.durable.pending is not None, "what failed is not there"


def test_a_full_disk_keeps_the_removal_from_its_work_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with closing(Store.open(f"sqlite:///{file}")) as store:
        job = StoredJob(store)
        job.open()
        job.checkpoints(3)
        with no_room(file):
            assert store.prune([(JOB, 1)]) is False
        assert store.load_jobs() == [job.durable]
        job.checkpoints(1)
        assert store.prune([(JOB, 1)]) is True
        assert [one.checkpoint for one in store.checkpoints(JOB, 10)] == [4, 1]
    assert loaded(file) == [job.durable]
