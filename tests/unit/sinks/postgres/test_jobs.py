"""A whole job with a coordinator in its process: killed at each step, its table has every line exactly once."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.common.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE, KillPoint
from tests.support.commands import onceward
from tests.support.database import Database
from tests.support.waiting import wait_until

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


class Job:
    """Copies lines into a table, and dies the second time that it comes to a point."""

    def __init__(self, database: Database, at: Path, point: KillPoint, *, dsn: str = "") -> None:
        """``dsn``: where the job connects to, if not to ``database``."""
        database.run("CREATE TABLE lines (value bytea)")
        self.database, self._point, self._dsn = database, point, dsn or database.dsn
        self._files, self.state, self._once = at / "files", at / "state", at / "once"
        for each in (self._files, self.state, self._once):
            each.mkdir(mode=0o700)
        self.wanted: list[bytes] = []
        self._checkpoints = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def add(self) -> None:
        """Add lines to two files, so that a checkpoint has two slots."""
        self._checkpoints += 1
        for file in range(2):
            lines = [b"%d-%d-%d" % (self._checkpoints, file, line) for line in range(100)]
            with (self._files / f"{file}.log").open("ab") as out:
                out.writelines(line + b"\n" for line in lines)
            self.wanted += lines

    def start(self) -> "subprocess.Popen[bytes]":
        environment = {
            **os.environ,
            KILL_POINT_VARIABLE: f"{self._point.value}:2",
            KILL_ONCE_VARIABLE: str(self._once),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}",
        }
        command = [sys.executable, str(HERE / "lines_job.py"), self._dsn, str(self._files), str(self.state)]
        self._process = subprocess.Popen(command, env=environment, cwd=ROOT)
        return self._process

    def run_until_killed(self) -> None:
        process = self.start()
        for _ in range(4):  # the point is reached for the second time by then
            self.add()
            wait_until(lambda: process.poll() is not None or self.is_done(), "a checkpoint, or the kill")
            if process.poll() is not None:
                break
        assert process.wait(60) == -signal.SIGKILL

    def run_to_the_end(self) -> None:
        process = self.start()
        wait_until(lambda: process.poll() is not None or self.is_done(), "all lines are there")
        self.add()
        wait_until(lambda: process.poll() is not None or self.is_done(), "the job continues")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert self.written() == sorted(self.wanted)
        assert self.database.names() == [], "no staging table is left"

    def written(self) -> list[bytes]:
        return sorted(value for (value,) in self.database.rows("SELECT value FROM lines"))

    def is_done(self) -> bool:
        return len(self.written()) >= len(self.wanted)


@pytest.mark.kill
@pytest.mark.parametrize("point", POINTS)
def test_a_job_that_is_killed_has_written_every_line_once_when_it_is_started_again(
    point: KillPoint, database: Database, tmp_path: Path
) -> None:
    with Job(database, tmp_path, point) as job:
        job.run_until_killed()
        job.run_to_the_end()


@pytest.mark.kill
def test_rows_that_are_gone_after_the_decision_are_written_again(database: Database, tmp_path: Path) -> None:
    with Job(database, tmp_path, KillPoint.DRIVER_AFTER_DECISION) as job:
        job.run_until_killed()
        assert len(job.written()) < len(job.wanted)
        database.run(
            "DELETE FROM onceward_sink.staged", *(f'DROP TABLE onceward_sink."{one}"' for one in database.names())
        )
        job.run_to_the_end()


@pytest.mark.slow
@pytest.mark.parametrize("remedy", ["the row is removed", "the rows are given up"])
def test_a_row_that_a_unique_index_refuses_halts_the_job_until_a_person_acts(
    remedy: str, database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Job(database, tmp_path, KillPoint.ORPHAN_AFTER_COMMIT) as job:  # which no driver passes
        database.run("ALTER TABLE lines ADD UNIQUE (value)", "INSERT INTO lines VALUES ('1-1-7')")
        job.add()
        for _ in range(2):
            assert job.start().wait(60) == 4
            said = capfd.readouterr().err
            assert 'violates unique constraint "lines_value_key" (Key (value)=(\\x312d312d37) already exists)' in said
            assert job.written() == [b"1-1-7"]
        (command,) = set(re.findall(r"onceward (resolve lines --sink sink --give-up all)", said))
        if remedy == "the row is removed":
            database.run("DELETE FROM lines")
        else:
            systems = tmp_path / "systems.toml"
            systems.write_text(f'[systems.bi]\nkind = "postgres"\ndsn = "{database.dsn}"\n')
            more = ("--reason", "a double", "--yes", "--systems", str(systems), "--state-dir", str(job.state))
            resolved = onceward(*command.split(), *more)
            assert resolved.returncode == 0, resolved.stderr
            job.wanted = [b"1-1-7"]
        job.run_to_the_end()
