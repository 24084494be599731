"""The figures of processes, and that no process is left, however a benchmark ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.guarded import Guarded
from benchmarks.processes import Process, ProcessTree, process
from benchmarks.scratch import scratch_directory
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
_BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
_CHILD = (
    "import subprocess, sys, time; c = subprocess.Popen(['sleep', '100']); print(c.pid, flush=True); time.sleep(100)"
)
_OTHER_GROUP = _CHILD.replace("'100']", "'100'], start_new_session=True")
_OWNER = """
import sys, time
from pathlib import Path
from benchmarks.guarded import Guarded
Guarded("it", [sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), directory=Path.cwd())
print("started", flush=True)
time.sleep(100)
"""


def lives(pid: int) -> bool:
    found = process(pid)
    return found is not None and not found.ended


def reported(log: Path) -> int:
    """Return the process id that the program has printed."""
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), "the child logs its line")
    return int(log.read_text())


def test_ended_processes_stay_in_the_sum_and_orphans_stay_in_the_tree() -> None:
    tree = ProcessTree(os.getpid())
    own = process(os.getpid())
    assert own is not None

    def one(start: int, parent: int, seconds: float, rss: int) -> Process:
        return Process(start=start, parent=parent, seconds=seconds, rss=rss, ended=False)

    here = {os.getpid(): own, -2: one(5, os.getpid(), 1.0, 100), -3: one(6, -2, 2.0, 50), -9: one(1, 1, 50.0, 9)}
    before = tree.sample(here)
    assert before.cpu_seconds == pytest.approx(own.seconds + 3.0)
    # -2 ended, so -3 has another parent; an unrelated process reuses -2's id; -3 starts a process.
    later = {os.getpid(): own, -2: one(7, 1, 70.0, 9), -3: one(6, 1, 2.5, 60), -4: one(8, -3, 0.25, 10)}
    after = tree.sample(later)
    assert after.cpu_seconds == pytest.approx(own.seconds + 1.0 + 2.5 + 0.25)
    assert after.peak_rss == own.rss + 150


def test_cpu_of_a_whole_tree_is_counted(tmp_path: Path) -> None:
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_BUSY!r}]); {_CHILD}"
    with Guarded("it", [sys.executable, "-c", nested], tmp_path / "log", directory=tmp_path) as running:
        wait_until(lambda: running.tree.sample().cpu_seconds >= 0.2, "the process has used CPU")
        wait_until(lambda: running.tree.sample().peak_pss > 1_000_000, "the memory is sampled")  # sampled once a second


@pytest.mark.parametrize("program", [_CHILD, _OTHER_GROUP])
def test_all_that_a_guarded_process_has_started_ends_with_it(tmp_path: Path, program: str) -> None:
    with Guarded("it", [sys.executable, "-c", program], tmp_path / "log", directory=tmp_path) as running:
        child = reported(tmp_path / "log")
        assert lives(child)
    assert running.exit_code == -signal.SIGKILL
    wait_until(lambda: not lives(child), "the child is gone")


def test_a_killed_benchmark_leaves_no_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, _CHILD, str(log)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        child = reported(log)
    finally:
        owner.kill()
        owner.communicate()
    wait_until(lambda: not lives(child), "the child is gone")


def test_a_program_that_is_not_there_is_no_end_of_all_benchmarks(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="could not be started"):
        Guarded("it", [str(tmp_path / "nothing")], tmp_path / "log", directory=tmp_path)


def test_a_killed_benchmarks_leftovers_are_removed_but_nothing_in_use(tmp_path: Path) -> None:
    left, foreign = tmp_path / "onceward-bench-left", tmp_path / "onceward-bench-foreign"
    for directory in (left, foreign):
        directory.mkdir()
        (directory / "data").touch()
    (left / "in-use").touch()
    with scratch_directory(tmp_path) as first, scratch_directory(tmp_path) as second:
        assert first.exists()
        assert second.exists()
        assert not left.exists()
        assert (foreign / "data").exists(), "without a lock its owner is unknown"
    assert not first.exists()
    assert not second.exists()
