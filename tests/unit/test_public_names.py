"""What a user imports, and that an unusable description is refused where it is written."""

from importlib import import_module

import pytest

from coordinator import Pipeline
from coordinator.errors import ConfigurationError
from sinks import KafkaSink
from sources import KafkaSource

PUBLIC = {
    "connections": ("KafkaCluster",),
    "coordinator": ("CheckpointSettings", "Committer", "Pipeline", "Restart", "Sink", "Source"),
    "sinks": ("KafkaSink",),
    "sources": ("KafkaSource",),
}


@pytest.mark.parametrize(("package", "name"), [(package, name) for package, names in PUBLIC.items() for name in names])
def test_public_names_are_found_where_the_pages_say(package: str, name: str) -> None:
    module = import_module(package)
    assert getattr(module, name).__name__ == name
    assert name in module.__all__


def a_job(coordinator: str) -> Pipeline:
    return Pipeline(
        job="orders-eur",
        source=KafkaSource("localhost:9092", topics=["orders"]),
        sink=KafkaSink("localhost:9092", topic="orders-eur"),
        coordinator=coordinator,
    )


@pytest.mark.parametrize("address", ["", "localhost", ":7878", "localhost:0", "localhost:65536", "http://localhost:1"])
def test_a_coordinator_address_that_cannot_be_one_is_refused_at_once(address: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address"):
        a_job(address)


@pytest.mark.parametrize("address", ["localhost:7878", "10.0.0.1:65535", "[::1]:7878", "unix:/run/onceward.sock"])
def test_addresses_of_coordinators_are_taken_without_connecting(address: str) -> None:
    a_job(address)
