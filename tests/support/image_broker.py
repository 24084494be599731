"""A broker as its image makes one of the variables in compose/."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from onceward.dev.java import find_java
from onceward.dev.kafka.jars import broker_jars
from onceward.dev.kafka.places import free_ports
from tests.support.compose import Service

__all__ = ["java", "on_loopback", "set_up"]


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
