"""What the brokers' image makes of the variables in compose/: its properties, its storage, a running broker."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka.errors import KafkaError

from onceward.coordinator.dev.java import find_java
from onceward.coordinator.dev.kafka.jars import broker_jars
from onceward.coordinator.dev.kafka.places import free_ports
from tests.integration.test_local_kafka import finalized_transaction_version
from tests.support.compose import Service, broker_properties, topology
from tests.support.processes import Process
from tests.support.waiting import wait_until

START_S = 120.0


def java(*arguments: str) -> list[str]:
    flags = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    return [find_java(), *flags, "-cp", f"{broker_jars()}/*", *arguments]


def set_up(directory: Path, environment: Mapping[str, str]) -> tuple[Path, str]:
    """Run what the image does before it starts a broker; return (the broker's properties file, the output)."""
    places = [directory / name for name in ("defaults", "mounted", "final")]
    for place in places:
        place.mkdir()
    options = ["--default-configs-dir", "--mounted-configs-dir", "--final-configs-dir"]
    words = [word for option, place in zip(options, places, strict=True) for word in (option, str(place))]
    done = subprocess.run(
        java("kafka.docker.KafkaDockerWrapper", "setup", *words),
        env={"PATH": os.environ["PATH"], **environment, "KAFKA_LOG_DIRS": str(directory / "data")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return places[-1] / "server.properties", said


def on_loopback(broker: Service) -> tuple[dict[str, str], str]:
    """(the broker's variables with addresses of this machine, its advertised address for clients)."""
    ports = free_ports(1, None)[0]
    moved = {"9092": ports.client, "9093": ports.controller, "9094": ports.internal}
    environment = dict(broker.environment)
    for name in ("KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS", "KAFKA_CONTROLLER_QUORUM_VOTERS"):
        value = environment[name].replace("//:", "//127.0.0.1:").replace(f"{broker.name}:", "127.0.0.1:")
        for port, free in moved.items():
            value = value.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
        environment[name] = value
    return environment, f"127.0.0.1:{ports.client}"


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
