"""A whole job, without Spark and a broker: lines of files go into a Delta table exactly once, wherever it is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from custom_source import LinesSource

from onceward import CheckpointSettings, DeltaSink
from onceward.common.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE, KillPoint
from tests.support.sparkless import SparklessPipeline
from tests.unit.sinks.delta.tables import Table

EXAMPLES = str(Path(__file__).resolve().parents[4] / "examples")
JOB = "import sys; from tests.unit.sinks.delta.test_job import run; run(*sys.argv[1:])"
POINTS = (
    KillPoint.DRIVER_AFTER_CLAIM,
    KillPoint.TASK_AFTER_FLUSH,
    KillPoint.DRIVER_AFTER_VOTES,
    KillPoint.DRIVER_AFTER_PRE_COMMIT,
    KillPoint.DRIVER_AFTER_ACKNOWLEDGE,
    KillPoint.DRIVER_AFTER_DECISION,
    KillPoint.DRIVER_AFTER_CLAIM_RENEWAL,
    KillPoint.DRIVER_AFTER_SETTLE,
)


def run(table: str, lines: str, state: str) -> None:
    """Copy what the files have now."""
    SparklessPipeline(
        job="lines",
        source=LinesSource(lines, bounded=True),
        sink=DeltaSink(table),
        state_dir=state,
        settings=CheckpointSettings(interval=0, lease="1s", stream_grace="100ms"),
    ).run()


class Place:
    def __init__(self, at: Path) -> None:
        self.table = Table(at / "table")
        self.lines, self._state, self._once = at / "lines", at / "state", at / "once"
        for folder in (self.lines, self._once):
            folder.mkdir()
        self.written: list[bytes] = []

    def add(self, number: int) -> None:
        lines = [b"%d.%d" % (number, line) for line in range(100)]
        for name in ("a", "b"):
            with (self.lines / f"{name}.log").open("ab") as file:
                file.writelines(name.encode() + line + b"\n" for line in lines)
            self.written += [name.encode() + line for line in lines]

    def run(self, kill: str = "") -> int:
        environment = {
            **os.environ,
            "PYTHONPATH": EXAMPLES,
            KILL_POINT_VARIABLE: kill,
            KILL_ONCE_VARIABLE: str(self._once),
        }
        arguments = [sys.executable, "-c", JOB, str(self.table.path), str(self.lines), str(self._state)]
        ran = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=150)
        assert ran.returncode in (0, -9), ran.stderr
        return ran.returncode


def test_a_job_copies_each_line_once_over_two_runs(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for number in range(2):
        place.add(number)
        assert place.run() == 0
        assert place.table.values() == sorted(place.written)
    assert place.table.now().version() == 2, "a checkpoint is one commit"


@pytest.mark.kill
@pytest.mark.parametrize("point", POINTS)
def test_a_job_that_is_killed_copies_each_line_once(tmp_path: Path, point: KillPoint) -> None:
    place = Place(tmp_path)
    place.add(0)
    assert place.run(point) == -9
    assert place.run() == 0
    assert place.table.values() == sorted(place.written)
    committed = {uri.rpartition("/")[2] for uri in place.table.now().file_uris()}
    assert place.table.files() == committed, "what the killed run left is deleted"


@pytest.mark.kill
def test_files_that_are_gone_after_the_decision_are_written_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.add(0)
    assert place.run(KillPoint.DRIVER_AFTER_DECISION) == -9
    (first, _) = sorted(place.table.path.glob("*.parquet"))
    first.unlink()  # as a VACUUM without retention does
    for number in (1, 2):
        assert place.run() == 0
        assert place.table.values() == sorted(place.written)
        place.add(number)
    assert place.table.files() == {uri.rpartition("/")[2] for uri in place.table.now().file_uris()}
