"""Fixtures on the session's broker, and a Spark session."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from onceward.dev.kafka import places
from onceward.driver.spark.session import make_session
from onceward.sinks.kafka.client.choice import WRITER_VARIABLE
from onceward.sources.kafka.client.choice import READER_VARIABLE
from onceward.sources.kafka.executor.clients import close_idle_clients
from tests.support.shared_kafka import SharedKafka
from tests.support.sink_job import SinkJob
from tests.support.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    """Give each parallel test worker its own range of server ports, because a port stays free until it is used."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        places.PORTS = places.PORTS[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]


@pytest.fixture(params=["native", "librdkafka"])
def each_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the test with each client that reads."""
    if request.param == "native":
        pytest.importorskip("onceward_native")
    monkeypatch.setenv(READER_VARIABLE, request.param)
    close_idle_clients()
    yield request.param
    close_idle_clients()


@pytest.fixture(params=["native", "librdkafka"])
def each_writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each client that writes."""
    if request.param == "native":
        pytest.importorskip("onceward_native")
    monkeypatch.setenv(WRITER_VARIABLE, request.param)
    return str(request.param)


@pytest.fixture
def out(topics: Topics) -> str:
    """An output topic of this test."""
    return topics.create("out")


@pytest.fixture
def sink(kafka: SharedKafka, job: str, out: str) -> Iterator[SinkJob]:
    """A sink of this test's job, at its first generation, that writes to `out`."""
    with SinkJob(kafka.bootstrap_servers, job, topic=out) as opened:
        yield opened


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One session for all tests that run a pipeline in this process."""
    session, _ = make_session("tests")
    yield session
    session.stop()
