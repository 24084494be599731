"""A quota of the brokers on what a job reads: a backlog takes about the time that the quota asks for."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest

from onceward import CheckpointSettings, KafkaCluster, KafkaSink, KafkaSource, Pipeline
from onceward.common.links import Links
from onceward.driver.journal import EVENTS_VARIABLE
from onceward.protocol.events import CloseReason
from onceward.sinks.kafka.control.control_plane import ControlPlane
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics, assert_exactly_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

BYTES_PER_S = 200_000
RECORDS = 2_000
"""In each of two partitions, of 1 kB."""
MOST = 6
"""Checkpoints. Were each as large as the first one, there would be four."""


@contextmanager
def quota(servers: str, client: str) -> Iterator[None]:
    """A consumer quota for one client id, so that no other test has it."""
    entry = AlterClientQuotasRequest.EntryData
    control = ControlPlane(KafkaCluster(servers))

    def alter(*, remove: bool) -> None:
        change = entry.OpData(key="consumer_byte_rate", value=float(BYTES_PER_S), remove=remove)
        who = entry.EntityData(entity_type="client-id", entity_name=client)
        answer = control.ask(AlterClientQuotasRequest(entries=[entry(entity=[who], ops=[change])], validate_only=False))
        assert [each.error_code for each in answer.entries] == [0]

    try:
        alter(remove=False)
        yield
        alter(remove=True)
    finally:
        control.close()


def backlog(topics: Topics) -> tuple[str, str]:
    """An input with records, and an output."""
    given, output = topics.create("in", 2), topics.create("out", 2)
    for partition in range(2):
        values = [b"%d-%d" % (partition, n) + bytes(1_000) for n in range(RECORDS)]
        topics.fill(given, list(values), partition=partition, key=b"%d" % partition)
    return given, output


def when_held(hear: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call ``hear`` with the reason when a job shows a quota."""
    failed = Links.failed

    def listening(self: Links, link: str, why: object, **more: object) -> None:
        if link == "a quota of cluster 'main'":
            hear(str(why))
        failed(self, link, why, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Links, "failed", listening)


def test_a_backlog_behind_a_quota_takes_few_checkpoints_and_names_the_quota(
    topics: Topics, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    held: list[str] = []
    when_held(held.append, monkeypatch)
    given, output = backlog(topics)
    with quota(topics.servers, job):
        pipeline = SparklessPipeline(
            job=job,
            source=KafkaSource(
                KafkaCluster(topics.servers, config={"client.id": job}), topics=[given], start="earliest", end="latest"
            ),
            sink=KafkaSink(topics.servers, topic=output),
            settings=CheckpointSettings(interval="1s"),
            state_dir=tmp_path / "state",
        )
        assert pipeline.run() is CloseReason.FINISHED
    assert_exactly_once(topics, given, output)
    lines = map(json.loads, (tmp_path / "events").read_text().splitlines())
    checkpoints = [line for line in lines if line["event"] == "pre-committed"]
    assert len(checkpoints) <= MOST, [(one["read"], one["seconds"]) for one in checkpoints]
    assert any("consumer_byte_rate" in why for why in held), held


def test_staying_tasks_name_the_quota_that_holds_them_back(
    topics: Topics, job: str, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, output = backlog(topics)
    with quota(topics.servers, job):
        pipeline = Pipeline(
            job=job,
            source=KafkaSource(
                KafkaCluster(topics.servers, config={"client.id": job}), topics=[given], start="earliest"
            ),
            sink=KafkaSink(topics.servers, topic=output),
            settings=CheckpointSettings(interval="100ms"),
            spark=spark,
            tasks="staying",
            state_dir=tmp_path / "state",
        )
        held: list[str] = []

        def stop(why: str) -> None:
            held.append(why)
            pipeline.stop()

        when_held(stop, monkeypatch)
        assert pipeline.run() is CloseReason.STOPPED
    assert "consumer_byte_rate" in held[0]
