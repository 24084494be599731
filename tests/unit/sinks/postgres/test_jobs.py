"""A whole job with a coordinator in its process: killed at each step, its table has every line exactly once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.common.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE, KillPoint
from tests.support.waiting import wait_until
from tests.unit.sinks.postgres.database import Database

HERE = Path(__file__).parent
ROOT = HERE.parents[3]

POINTS = [
    KillPoint.TASK_AFTER_BEGIN,
    KillPoint.TASK_MID_WRITE,
    KillPoint.TASK_AFTER_FLUSH,
    KillPoint.DRIVER_AFTER_VOTES,
    KillPoint.DRIVER_AFTER_PRE_COMMIT,
    KillPoint.DRIVER_AFTER_ACKNOWLEDGE,
    KillPoint.DRIVER_AFTER_DECISION,
    KillPoint.DRIVER_AFTER_CLAIM_RENEWAL,
    KillPoint.DRIVER_BETWEEN_END_TXN,
    KillPoint.DRIVER_AFTER_END_TXN,
    KillPoint.DRIVER_AFTER_SETTLE,
]


def write(files: Path, checkpoint: int) -> list[bytes]:
    """Add lines to two files, so that a checkpoint has two slots."""
    lines = [b"%d-%d-%d" % (checkpoint, file, line) for file in range(2) for line in range(100)]
    for file in range(2):
        with (files / f"{file}.log").open("ab") as out:
            out.writelines(line + b"\n" for line in lines[file * 100 : (file + 1) * 100])
    return lines


@pytest.mark.kill
@pytest.mark.parametrize("point", POINTS)
def test_a_job_that_is_killed_has_written_every_line_once_when_it_is_started_again(
    point: KillPoint, database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE lines (value bytea)")
    files, state, once = tmp_path / "files", tmp_path / "state", tmp_path / "once"
    for each in (files, state, once):
        each.mkdir(mode=0o700)
    wanted = write(files, 0)

    def start() -> "subprocess.Popen[bytes]":
        environment = {
            **os.environ,
            KILL_POINT_VARIABLE: f"{point.value}:2",
            KILL_ONCE_VARIABLE: str(once),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}",
        }
        command = [sys.executable, str(HERE / "lines_job.py"), database.dsn, str(files), str(state)]
        return subprocess.Popen(command, env=environment, cwd=ROOT)

    def written() -> list[bytes]:
        return sorted(value for (value,) in database.rows("SELECT value FROM lines"))

    def ended_or_done() -> bool:
        return job.poll() is not None or len(written()) >= len(wanted)

    job = start()
    try:
        for checkpoint in range(1, 4):  # the point is reached for the second time by then
            if job.poll() is not None:
                break
            wait_until(ended_or_done, "a checkpoint, or the kill")
            wanted += write(files, checkpoint)
        assert job.wait(60) == -signal.SIGKILL
        job = start()
        wait_until(ended_or_done, "all lines are there")
        wanted += write(files, 9)
        wait_until(ended_or_done, "the job continues")
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 0
    finally:
        job.kill()
        job.wait()
    assert written() == sorted(wanted)
    assert database.names() == [], "no staging table is left"
