"""The list of open transactions is complete, or the call fails."""

from contextlib import closing

import pytest
from kafka.protocol.admin import ListTransactionsRequest

from onceward import KafkaCluster
from onceward.connections import requests
from onceward.protocol.values import JobName
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.control_plane import ControlPlane, coordinators_request
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import Transactions
from onceward.sinks.kafka.errors import ControlPlaneClosedError, ControlPlaneError
from tests.support.kafka_model import Settings
from tests.support.kafka_model.bench import Bench

JOB = JobName("orders")
NAME = "orders.sink.1.0123abcd.0"


def committer(bench: Bench) -> KafkaSystem:
    return KafkaSystem(bench.control, clock=Clock(monotonic=bench.transport.now, wait=bench.wait), generation=lambda: 2)


@pytest.fixture
def bench() -> Bench:
    made = Bench(Settings(brokers=(1, 2, 3)))
    made.open(NAME)
    return made


def test_a_sweep_waits_for_the_coordinators_of_a_broker_that_just_failed(bench: Bench) -> None:
    bench.cluster.fail(bench.coordinator(key=NAME), bench.transport.now(), election_s=5.0)
    assert bench.control.coordinators(bench.control.ask(coordinators_request())) is None
    assert list(committer(bench).sweep(JOB)) == [NAME]
    assert list(committer(bench).leftovers(JOB)) == []
    assert bench.transport.now() >= 5.0


def test_a_coordinator_that_stays_away_is_reported_and_never_taken_for_nothing_open(bench: Bench) -> None:
    bench.cluster.fail(bench.coordinator(key=NAME), bench.transport.now(), election_s=1000.0)
    with pytest.raises(ControlPlaneError, match="COORDINATOR_NOT_AVAILABLE"):
        committer(bench).sweep(JOB)
    with pytest.raises(ControlPlaneError, match="COORDINATOR_NOT_AVAILABLE"):
        committer(bench).leftovers(JOB)


def test_a_sweep_retries_while_no_broker_answers(bench: Bench) -> None:
    bench.transport.cut = lambda _call: bench.transport.now() < 25.0
    assert list(committer(bench).sweep(JOB)) == [NAME]
    assert bench.transport.now() >= 25.0


def test_brokers_that_stay_silent_are_reported_after_30_s_and_never_taken_for_nothing_open(bench: Bench) -> None:
    bench.transport.cut = lambda _call: True
    with pytest.raises(ControlPlaneError, match="the request was lost"):
        committer(bench).sweep(JOB)
    assert bench.transport.now() >= 30.0


def test_closed_connections_end_all_retries() -> None:
    control = ControlPlane(KafkaCluster("127.0.0.1:1"))
    control.close()
    with pytest.raises(ControlPlaneClosedError, match="was closed"):
        Transactions(control).open_ids(JOB)


def test_a_cluster_that_cannot_be_reached_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUEST_TIMEOUT_MS", 200)
    control = ControlPlane(KafkaCluster("127.0.0.1:1"))
    with closing(control), pytest.raises(ControlPlaneError, match="did not answer ApiVersions: cannot connect"):
        control.highest_version(ListTransactionsRequest)


def test_a_commit_is_ending_until_each_partition_has_its_marker() -> None:
    bench = Bench(Settings(marker_delay=lambda _id, _partition: 5.0))
    ids = bench.open(NAME)
    assert list(committer(bench).ending(JOB)) == []
    assert bench.end(ids) == 0
    assert list(committer(bench).ending(JOB)) == [NAME]
    assert bench.visible() == []
    bench.wait(6)
    assert list(committer(bench).ending(JOB)) == []
    assert bench.visible() == [b"a"]
