"""What is open is listed completely, or not at all."""

import pytest

from coordinator.protocol.values import JobName
from sinks.kafka.committer import KafkaCommitter
from sinks.kafka.errors import ControlPlaneError
from sinks.kafka.patience import Clock
from tests.simulation.kafka import Settings
from tests.simulation.kafka.contract.bench import Bench

JOB = JobName("orders")
NAME = "orders.sink.1.0123abcd.0"


def committer(bench: Bench) -> KafkaCommitter:
    return KafkaCommitter(
        controls=[bench.control], clock=Clock(monotonic=bench.transport.now, wait=bench.wait), generation=lambda: 2
    )


@pytest.fixture
def bench() -> Bench:
    made = Bench(Settings(brokers=(1, 2, 3)))
    made.open(NAME)
    return made


def test_a_sweep_waits_for_the_coordinators_of_a_broker_that_just_failed(bench: Bench) -> None:
    bench.cluster.fail(bench.coordinator(key=NAME), bench.transport.now(), election_s=5.0)
    assert bench.control.coordinators() is None
    assert list(committer(bench).sweep(JOB)) == [NAME]
    assert list(committer(bench).leftovers(JOB)) == []
    assert bench.transport.now() >= 5.0


def test_a_coordinator_that_stays_away_is_reported_and_never_taken_for_nothing_open(bench: Bench) -> None:
    bench.cluster.fail(bench.coordinator(key=NAME), bench.transport.now(), election_s=1000.0)
    with pytest.raises(ControlPlaneError, match="COORDINATOR_NOT_AVAILABLE"):
        committer(bench).sweep(JOB)
    with pytest.raises(ControlPlaneError, match="COORDINATOR_NOT_AVAILABLE"):
        committer(bench).leftovers(JOB)
