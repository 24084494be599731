"""What the brokers' image makes of the variables in compose/: its properties, its storage, a running broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka.errors import KafkaError

from tests.integration.test_local_kafka import finalized_transaction_version
from tests.support.compose import broker_properties, topology
from tests.support.image_broker import java, on_loopback, set_up
from tests.support.processes import Process
from tests.support.waiting import wait_until

START_S = 120.0


@pytest.mark.parametrize(("name", "broker"), [("cluster", "kafka-2"), ("faults", "kafka-3")])
def test_the_image_makes_exactly_these_properties_of_the_variables(name: str, broker: str, tmp_path: Path) -> None:
    environment = topology(name).services[broker].environment
    file, said = set_up(tmp_path, environment)
    found = dict(line.split("=", 1) for line in file.read_text().splitlines() if line)
    assert found == {**broker_properties(environment), "log.dirs": str(tmp_path / "data")}
    # the default of the format tool for a cluster of this release
    assert "FeatureLevelRecord(name='transaction.version', featureLevel=2)" in said
    assert f"cluster.id={environment['CLUSTER_ID']}" in (tmp_path / "data" / "meta.properties").read_text()


@contextmanager
def _running(file: Path, log: Path) -> Iterator[Process]:
    broker = Process(java("kafka.Kafka", str(file)), log, {})
    try:
        yield broker
    finally:
        broker.end()


def test_a_broker_with_these_properties_does_its_work(tmp_path: Path) -> None:
    environment, address = on_loopback(topology("quickstart").services["kafka"])
    file, _ = set_up(tmp_path, environment)
    with _running(file, tmp_path / "broker.log") as broker:

        def finalized() -> int | None:
            assert broker.running, broker.tail()
            try:
                return finalized_transaction_version(address)
            except KafkaError:
                return None

        wait_until(lambda: finalized() == 2, "the broker answers with transaction.version 2", START_S)
