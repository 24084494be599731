"""An output that a job no longer has: it is listed until a person closes it, and then it leaves nothing behind."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from onceward import CheckpointSettings, DeltaSink, KafkaSink, KafkaSource, Output
from onceward.common.errors import ConfigurationError, RefusedError
from onceward.operate.cli import app
from onceward.protocol.events import CloseReason
from onceward.protocol.values import JobName
from onceward.sinks.lake.identifiers import StagedName, staged_folder
from tests.support.sink_job import SinkJob
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics

pytestmark = pytest.mark.timeout(180)

RECORDS = 20


class Bench:
    """A job that copies a topic to another one and to a table, and the command line."""

    def __init__(self, topics: Topics, job: JobName, directory: Path) -> None:
        self.topics, self.job, self.directory = topics, job, directory
        self.source, self.sink, self.table = topics.create("in"), topics.create("out"), directory / "table"
        DeltaTable.create(self.table, pa.schema([("key", pa.binary()), ("value", pa.binary())]))
        self.systems = directory / "systems.toml"
        self.systems.write_text(
            f'[systems.main]\nkind = "kafka"\nbootstrap_servers = "{topics.servers}"\n'
            f'[systems.lake]\nkind = "delta"\ntable = "{self.table}"\n'
        )
        self._written = 0

    def run(self, *outputs: str) -> None:
        """Copy new records to some of the outputs ``topic`` and ``lake``."""
        self.topics.fill(self.source, [b"%d" % number for number in range(self._written, self._written + RECORDS)])
        self._written += RECORDS
        known = {
            "topic": Output(KafkaSink(self.topics.servers, topic=self.sink)),
            "lake": Output(DeltaSink(self.table)),
        }
        pipeline = SparklessPipeline(
            job=self.job,
            source=KafkaSource(self.topics.servers, topics=[self.source], start="earliest", end="latest"),
            outputs={name: known[name] for name in outputs},
            state_dir=self.directory / "state",
            settings=CheckpointSettings(interval="50ms"),
        )
        assert pipeline.run() is CloseReason.FINISHED

    def command(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--state-dir", str(self.directory / "state")])

    def close(self, output: str) -> Result:
        options = ["--reason", "Ada, unused", "--yes", "--systems", str(self.systems)]
        return self.command("close", self.job, output, *options)

    def gone(self) -> list[str]:
        (job,) = json.loads(self.command("jobs", "--json").stdout)
        return [one["name"] for one in job["gone_outputs"]]

    def groups(self) -> set[str]:
        """Consumer groups of the job, listed by another client."""
        listed = self.topics.admin.list_consumer_groups().result(30)
        return {group.group_id for group in listed.valid if group.group_id.startswith(f"{self.job}.")}

    def values(self) -> list[Any]:
        found: list[Any] = DeltaTable(self.table).to_pyarrow_table()["value"].to_pylist()
        return found

    def left(self) -> list[str]:
        """Files of the table's directory that no version has, and notes of them."""
        known = {uri.rpartition("/")[2] for uri in DeltaTable(self.table).file_uris()}
        files = {one.name for one in self.table.glob("*.parquet")} - known
        return sorted({*files, *(one.name for one in self.table.glob("_onceward/staged/*/*"))})


@pytest.fixture
def bench(topics: Topics, job: str, tmp_path: Path) -> Bench:
    made = Bench(topics, JobName(job), tmp_path)
    made.run("topic", "lake")
    return made


def test_a_table_that_a_job_no_longer_writes_to_is_closed(bench: Bench) -> None:
    staged = StagedName.new(job=bench.job, sink="lake", generation=1, checkpoint=9, slot=0, attempt=0)
    for left in (bench.table / str(staged), bench.table / staged_folder(bench.job) / str(staged)):
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"of a task that died")
    refused = bench.close("lake")
    assert isinstance(refused.exception, RefusedError), "the job writes to it"
    bench.run("topic")
    assert bench.gone() == ["lake"]
    assert str(staged) in bench.left()
    assert isinstance(bench.command("close", bench.job, "lake", "--reason", "a").exception, ConfigurationError)
    closed = bench.close("lake")
    assert closed.exit_code == 0, closed.exception
    assert bench.gone() == []
    assert bench.left() == []
    assert len(bench.values()) == RECORDS, "what was written stays"
    events = json.loads(bench.command("history", bench.job, "--json").stdout)["events"]
    assert [one["detail"] for one in events if one["event"] == "OutputClosed"] == ["Ada, unused"]
    assert isinstance(bench.close("lake").exception, RefusedError), "it is closed"
    bench.run("topic")
    bench.run("topic", "lake")
    assert len(bench.values()) == 2 * RECORDS, "it begins again with what was not read before"
    assert len([one for one in bench.topics.values(bench.sink) if one is not None]) == 4 * RECORDS


def test_a_cluster_that_a_job_no_longer_writes_to_keeps_nothing_of_it(bench: Bench) -> None:
    assert f"{bench.job}.claim" in bench.groups()
    bench.run("lake")
    with SinkJob(bench.topics.servers, bench.job, topic=bench.sink) as late:
        late.open_transaction(bench.sink)
        assert late.system().transactions(bench.job)
        closed = bench.close("topic")
        assert closed.exit_code == 0, closed.exception
        assert late.system().transactions(bench.job) == []
    assert bench.groups() == set()
    assert bench.gone() == []
    bench.run("lake")
    assert len(bench.values()) == 3 * RECORDS


def test_an_output_is_not_closed_before_a_driver_without_it_has_completed_a_checkpoint(bench: Bench) -> None:
    """Until then, the claims do not show what is in use."""
    filled = bench.topics.fill
    bench.topics.fill = lambda *_: None  # type: ignore[method-assign]
    bench.run("topic")
    refused = bench.close("lake")
    assert isinstance(refused.exception, RefusedError)
    assert "has completed no checkpoint yet" in str(refused.exception)
    assert bench.gone() == ["lake"]
    bench.topics.fill = filled  # type: ignore[method-assign]
    bench.run("topic")
    assert bench.close("lake").exit_code == 0
