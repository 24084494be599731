"""A job that a person has deleted: it leaves nothing at the brokers, and a new job of its name starts afresh."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from onceward import CheckpointSettings, KafkaSink, KafkaSource
from onceward.common.errors import ConfigurationError, RefusedError
from onceward.operate.cli import app
from onceward.protocol.events import CloseReason
from onceward.protocol.values import JobName
from onceward.sinks.kafka.control import forgetting
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.receipt_cleanup import delete_groups
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.errors import ControlPlaneError
from tests.support.sink_job import SinkJob
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

RECORDS = 20


class Bench:
    """One job that copies a topic, and the command line."""

    def __init__(self, topics: Topics, job: JobName, directory: Path) -> None:
        self.topics, self.job, self.directory = topics, job, directory
        self.source, self.sink = topics.create("in"), topics.create("out")
        topics.fill(self.source, [b"%d" % number for number in range(RECORDS)])
        self.clusters = directory / "clusters.toml"
        self.clusters.write_text(f'[clusters.main]\nbootstrap_servers = "{topics.servers}"\n')

    def run(self) -> None:
        pipeline = SparklessPipeline(
            job=self.job,
            source=KafkaSource(self.topics.servers, topics=[self.source], start="earliest", end="latest"),
            sink=KafkaSink(self.topics.servers, topic=self.sink),
            state_dir=self.directory / "state",
            settings=CheckpointSettings(interval="50ms"),
        )
        assert pipeline.run() is CloseReason.FINISHED

    def command(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--state-dir", str(self.directory / "state")])

    def forget(self) -> Result:
        options = ["--reason", "Ada, it moved to another cluster", "--yes", "--clusters", str(self.clusters)]
        return self.command("forget", self.job, *options)

    def groups(self) -> set[str]:
        """Consumer groups of the job, listed by another client."""
        listed = self.topics.admin.list_consumer_groups().result(30)
        return {group.group_id for group in listed.valid if group.group_id.startswith(f"{self.job}.")}

    def asked(self, command: str, *words: str) -> Any:
        return json.loads(self.command(command, *words, "--json").stdout)

    def written(self) -> int:
        return sum(value is not None for value in self.topics.values(self.sink))


@pytest.fixture
def bench(topics: Topics, job: str, tmp_path: Path) -> Bench:
    made = Bench(topics, JobName(job), tmp_path)
    made.run()
    assert f"{job}.claim" in made.groups()
    assert len(made.groups()) > 1, "receipts"
    return made


def test_a_forgotten_job_leaves_nothing_but_who_deleted_it_and_a_new_one_begins_afresh(bench: Bench) -> None:
    assert bench.forget().exit_code == 0
    assert bench.groups() == set()
    assert bench.asked("jobs") == []
    assert bench.asked("checkpoints", bench.job) == []
    history = bench.asked("history", bench.job)
    assert history["generations"] == []
    assert {event["event"] for event in history["events"]} <= {"JobForgotten", "StatusChanged"}
    assert all("Ada, it moved to another cluster" in event["detail"] for event in history["events"])
    assert bench.forget().exit_code == 0, "a second time changes nothing"
    bench.run()
    assert bench.written() == 2 * RECORDS, "a new job reads from its own start"
    assert [generation["generation"] for generation in bench.asked("history", bench.job)["generations"]] == [2]


def test_a_job_is_not_forgotten_while_a_transaction_is_open_or_may_be(bench: Bench) -> None:
    before = bench.groups()
    assert isinstance(bench.command("forget", bench.job, "--reason", "Ada", "--yes").exception, ConfigurationError)
    with SinkJob(bench.topics.servers, bench.job, topic=bench.sink) as late:
        open_id, producer = late.open_transaction(bench.sink)
        refused = bench.forget()
        assert isinstance(refused.exception, RefusedError)
        assert open_id in str(refused.exception)
        assert before <= bench.groups()
        assert [one["status"] for one in bench.asked("jobs")] == ["finished"]
        producer.abort_transaction(30)
        wait_until(lambda: not late.system().transactions(bench.job), "the transaction is ended")
    assert bench.forget().exit_code == 0
    assert bench.groups() == set()


@pytest.mark.parametrize("step", ["before the receipts", "before the claim"])
def test_forgetting_resumes_where_it_was_killed(bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    claim = f"{bench.job}.claim"

    def killed(*_: object) -> list[str]:
        raise ControlPlaneError("killed")

    def all_but_the_claim(control: ControlPlane, groups: set[str]) -> list[str]:
        return killed() if claim in groups else delete_groups(control, groups)

    with monkeypatch.context() as patched:
        if step == "before the receipts":
            patched.setattr(KafkaSystem, "forget", killed)
        else:
            patched.setattr(forgetting, "delete_groups", all_but_the_claim)
        assert isinstance(bench.forget().exception, ControlPlaneError)
    assert claim in bench.groups(), "it goes last"
    assert bench.asked("jobs") == [], "and no other command still takes it for a job"
    assert bench.forget().exit_code == 0
    assert bench.groups() == set()
