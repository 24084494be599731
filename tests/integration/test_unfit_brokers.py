"""Settings of brokers with which a job cannot run: each is named with its remedy before the job starts."""

import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceward import KafkaCluster, KafkaSink
from onceward.common.errors import PreflightError
from onceward.common.links import Links
from onceward.connections.admin import reach
from onceward.connectors.interfaces import JobContext, Severity
from onceward.dev.kafka import LocalKafka, readiness
from onceward.operate.cli import app
from onceward.protocol.values import JobName
from onceward.sinks.kafka.control.control_plane import ControlPlane, CoordinatorKind
from tests.support.topics import Topics
from tests.support.waiting import wait_until

SETTINGS = {
    "transaction.state.log.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offset.metadata.max.bytes": "100",
    "connections.max.idle.ms": "4000",
}
ERRORS = {
    "topic __transaction_state": "transaction.state.log.replication.factor is 3, and the number of brokers is 1",
    "topic __consumer_offsets": "offsets.topic.replication.factor is 3, and the number of brokers is 1",
    "brokers": "offset.metadata.max.bytes is 100",
}
ADVERTISED = {"CLOSED": ["127.0.0.1:1"], "NAMELESS": ["broker.invalid:9092"]}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    """A single broker, on Kafka's own defaults for the topics of coordinators: it never creates them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(readiness, "_missing_log", lambda servers: None)
        with LocalKafka(heap="256m", properties=SETTINGS, advertised=ADVERTISED) as kafka:
            yield kafka


def test_brokers_that_cannot_serve_a_job_are_named_with_the_setting(
    broker: LocalKafka, job: str, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    out = Topics(servers, job).create("out")
    context = JobContext(job=JobName(job), checkpoint_timeout=timedelta(minutes=1))
    sink = KafkaSink(servers, topic=out).connect(context)
    try:
        errors = {each.subject: each for each in sink.preflight() if each.severity is Severity.ERROR}
    finally:
        sink.close()
    assert errors.keys() == ERRORS.keys()
    for subject, said in ERRORS.items():
        assert said in errors[subject].message
    assert "set transaction.state.log.replication.factor=1" in errors["topic __transaction_state"].fix

    asked = ["doctor", "--json", "--cluster", servers, "--topic", out, "--job", job, "--state-dir", str(tmp_path)]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    found = [line for line in json.loads(done.stdout) if line["level"] == "error"]
    assert {line["subject"] for line in found} == ERRORS.keys(), found


def test_a_compacted_output_is_named_before_the_start(broker: LocalKafka, job: str) -> None:
    topics = Topics(broker.bootstrap_servers, job)
    given = [topics.create("plain"), topics.create("table", config={"cleanup.policy": "compact,delete"})]
    context = JobContext(job=JobName(job), checkpoint_timeout=timedelta(minutes=1))
    sink = KafkaSink(broker.bootstrap_servers, topics=given).connect(context)
    try:
        (found,) = (each for each in sink.preflight() if "compacted" in each.message)
    finally:
        sink.close()
    assert (found.severity, found.subject) == (Severity.WARNING, f"sink topic {given[1]}")
    assert "key of every row" in found.fix


def test_what_waits_for_a_coordinator_says_why_there_is_none(broker: LocalKafka) -> None:
    links = Links()
    control = ControlPlane(KafkaCluster(broker.bootstrap_servers), links=links)
    try:
        control.locate(CoordinatorKind.TRANSACTION, ["anything"])
    finally:
        control.close()
    (waits,) = links.troubles()
    assert waits.held
    assert waits.link == "coordinators of transactions of cluster 'main'"
    assert "transaction.state.log.replication.factor" in waits.why


@pytest.mark.parametrize("listener", ADVERTISED)
def test_an_address_that_a_broker_advertises_and_clients_cannot_use_is_named_as_such(
    broker: LocalKafka, listener: str
) -> None:
    (servers,) = broker.listening(listener)
    with pytest.raises(PreflightError, match=r"advertised\.listeners") as refused:
        reach(KafkaCluster(servers), timeout=3)
    assert f"names broker 1 as {ADVERTISED[listener][0]}" in str(refused.value)


def test_connections_that_a_broker_closes_when_they_are_idle_are_logged_at_debug(
    broker: LocalKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kafka.net")
    control = ControlPlane(KafkaCluster(broker.bootstrap_servers))

    def closed() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "socket disconnected" in record.getMessage()]

    try:
        control.nodes()
        wait_until(lambda: any("Connection lost" in record.getMessage() for record in closed()), "it is closed")
        assert control.nodes() == (1,)
    finally:
        control.close()
    assert {record.levelname for record in closed()} == {"DEBUG"}
