"""A whole job, without Spark and a broker, that copies lines of files to two tables by one commit."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from custom_source import LinesSource

from onceward import CheckpointSettings, Output
from onceward.common.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE, KillPoint
from onceward.dev.managed_process import ManagedProcess
from tests.support.processes import coordinator_command, free_address
from tests.support.rest_catalogue import RestCatalogue
from tests.support.sparkless import SparklessPipeline
from tests.support.waiting import wait_until
from tests.unit.sinks.iceberg.tables import Table
from tests.unit.sinks.iceberg.test_together import BOTH

EXAMPLES = str(Path(__file__).resolve().parents[4] / "examples")
JOB = "import sys; from tests.unit.sinks.iceberg.test_together_job import run; run(*sys.argv[1:])"


def run(places: str, lines: str, state: str) -> None:
    """Copy what the files have now to both tables."""
    tables = [Table.at(json.dumps(one)) for one in json.loads(places)]
    SparklessPipeline(
        job="lines",
        source=LinesSource(lines, bounded=True),
        outputs={table.name.rpartition(".")[2]: Output(table.sink(together=True)) for table in tables},
        state_dir=state,
        settings=CheckpointSettings(interval=0, lease="1s", stream_grace="100ms", orphan_grace="1s"),
    ).run()


class Job:
    """A job that copies lines of a file to both tables of a catalogue."""

    def __init__(self, catalogue: RestCatalogue, at: Path) -> None:
        self.catalogue, self._at = catalogue, at
        self.tables = [Table(catalogue.settings, name=name) for name in BOTH]
        for folder in ("lines", "once"):
            (at / folder).mkdir()
        self.written: list[bytes] = []

    def add(self, lines: int = 100) -> None:
        new = [b"%d" % number for number in range(len(self.written), len(self.written) + lines)]
        with (self._at / "lines" / "a.log").open("ab") as file:
            file.writelines(line + b"\n" for line in new)
        self.written += new

    def run(self, kill: str = "") -> int:
        environment = {
            **os.environ,
            "PYTHONPATH": EXAMPLES,
            KILL_POINT_VARIABLE: kill,
            KILL_ONCE_VARIABLE: str(self._at / "once"),
        }
        places = json.dumps([json.loads(table.place) for table in self.tables])
        arguments = [sys.executable, "-c", JOB, places, str(self._at / "lines"), str(self._at / "state")]
        ran = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=150)
        assert ran.returncode in (0, -9), ran.stderr
        return ran.returncode

    @contextmanager
    def coordinator(self) -> Iterator[None]:
        """A coordinator that settles for dead drivers, on the store of the last one."""
        systems = self._at / "systems.toml"
        systems.write_text(
            "".join(
                f'[systems.{table.name.rpartition(".")[2]}]\nkind = "iceberg"\ntable = "{table.name}"\n'
                f'catalog = {{ type = "rest", uri = "{table.settings["uri"]}" }}\n'
                for table in self.tables
            )
        )
        command = coordinator_command(free_address(), f"sqlite:///{self._at}/state/store.db")
        serving = ManagedProcess("coordinator", [*command, "--systems", str(systems)], self._at / "serve.log")
        try:
            yield
        finally:
            serving.end()

    def values(self) -> list[list[bytes]]:
        return [table.values() for table in self.tables]


@pytest.mark.kill
def test_a_job_that_is_killed_has_each_checkpoint_in_both_tables_by_one_commit(
    small: RestCatalogue, tmp_path: Path
) -> None:
    job = Job(small, tmp_path)
    job.add()
    assert job.run(KillPoint.DRIVER_AFTER_DECISION) == -9
    assert job.run() == 0
    job.add()
    assert job.run() == 0
    assert job.values() == [sorted(job.written)] * 2
    assert small.commits() == [BOTH] * 2


@pytest.mark.kill
def test_a_coordinator_commits_both_tables_of_a_dead_driver_by_one_commit(small: RestCatalogue, tmp_path: Path) -> None:
    job = Job(small, tmp_path)
    job.add()
    assert job.run(KillPoint.DRIVER_AFTER_DECISION) == -9
    assert job.values() == [[]] * 2
    with job.coordinator():
        wait_until(small.commits, "the coordinator has committed", limit_s=120)
        wait_until(lambda: job.values() == [sorted(job.written)] * 2, "both tables have the checkpoint")
    assert job.run() == 0
    assert job.values() == [sorted(job.written)] * 2
    assert small.commits() == [BOTH]
