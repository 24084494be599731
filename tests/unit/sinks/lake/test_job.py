"""A whole job, without Spark and a broker: lines of files go into a table exactly once, wherever it is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from custom_source import LinesSource

from onceward import CheckpointSettings
from onceward.common.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE, KillPoint
from tests.support.sparkless import SparklessPipeline
from tests.unit.sinks.lake.conftest import PLACES, new_place
from tests.unit.sinks.lake.places import LakePlace

EXAMPLES = str(Path(__file__).resolve().parents[4] / "examples")
JOB = "import sys; from tests.unit.sinks.lake.test_job import run; run(*sys.argv[1:])"
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


ICEBERG_POINTS = (KillPoint.DRIVER_AFTER_PRE_COMMIT, KillPoint.DRIVER_AFTER_DECISION, KillPoint.DRIVER_AFTER_SETTLE)
"""The driver is the same; these are about the commit."""


def run(kind: str, place: str, lines: str, state: str, sink: str = "sink") -> None:
    """Copy what the files have now."""
    SparklessPipeline(
        job="lines",
        source=LinesSource(lines, bounded=True),
        sink=PLACES[kind].at(place).sink(sink),
        state_dir=state,
        settings=CheckpointSettings(interval=0, lease="1s", stream_grace="100ms"),
    ).run()


class Place:
    def __init__(self, at: Path, kind: str) -> None:
        self.table: LakePlace = new_place(kind, at)
        self.lines, self.state, self._once = at / "lines", at / "state", at / "once"
        for folder in (self.lines, self._once):
            folder.mkdir()
        self.written: list[bytes] = []
        self.said = ""
        """By the last run, on standard error."""

    def add(self, number: int) -> None:
        lines = [b"%d.%d" % (number, line) for line in range(100)]
        for name in ("a", "b"):
            with (self.lines / f"{name}.log").open("ab") as file:
                file.writelines(name.encode() + line + b"\n" for line in lines)
            self.written += [name.encode() + line for line in lines]

    def run(self, kill: str = "", *, exits: int = 0, sink: str = "sink") -> int:
        environment = {
            **os.environ,
            "PYTHONPATH": EXAMPLES,
            KILL_POINT_VARIABLE: kill,
            KILL_ONCE_VARIABLE: str(self._once),
        }
        arguments = [
            sys.executable,
            "-c",
            JOB,
            self.table.kind,
            self.table.place,
            str(self.lines),
            str(self.state),
            sink,
        ]
        ran = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=150)
        assert ran.returncode in (exits, -9), ran.stderr
        self.said = ran.stderr
        return ran.returncode


@pytest.mark.parametrize("kind", PLACES)
def test_a_job_copies_each_line_once_over_two_runs(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path, kind)
    for number in range(2):
        place.add(number)
        assert place.run() == 0
        assert place.table.values() == sorted(place.written)
    assert place.table.commits() == 2, "a checkpoint is one commit"


@pytest.mark.kill
@pytest.mark.parametrize(
    ("kind", "point"), [*(("delta", point) for point in POINTS), *(("iceberg", point) for point in ICEBERG_POINTS)]
)
def test_a_job_that_is_killed_copies_each_line_once(tmp_path: Path, kind: str, point: KillPoint) -> None:
    place = Place(tmp_path, kind)
    place.add(0)
    assert place.run(point) == -9
    assert place.run() == 0
    assert place.table.values() == sorted(place.written)
    assert place.table.files() == place.table.files_in_it(), "what the killed run left is deleted"


@pytest.mark.kill
@pytest.mark.parametrize("kind", PLACES)
def test_files_that_are_gone_after_the_decision_are_written_again(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path, kind)
    place.add(0)
    assert place.run(KillPoint.DRIVER_AFTER_DECISION) == -9
    (file,) = place.table.files()
    (place.table.files_in / file).unlink()  # as a VACUUM without retention does
    for number in (1, 2):
        assert place.run() == 0
        assert place.table.values() == sorted(place.written)
        place.add(number)
    assert place.table.files() == place.table.files_in_it()
