"""compose/quickstart.yaml followed to its PASS with plain processes: its commands, options, order and health checks.

Only locations differ: addresses of this machine, a directory instead of volumes and images. Stand-ins replace two
programs of the broker's image (`broker_tools`).
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from onceward.coordinator.dev.demo.expected import outputs
from onceward.coordinator.dev.demo.flights import TOTAL, messages
from onceward.coordinator.dev.demo.topics import FLIGHTS
from onceward.coordinator.dev.kafka.places import free_ports
from onceward.coordinator.dev.managed_process import OURS, ManagedProcess
from tests.integration import broker_tools
from tests.integration.test_compose_brokers import java, on_loopback, set_up
from tests.support.compose import Service, topology
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.compose]

LIMIT_S = 600.0
"""Limit for any step: the machine may be busy."""
TOOLS = ("kafka-topics.sh", "kafka-broker-api-versions.sh")
"""Programs of the broker's image that the file calls."""


class Quickstart:
    """The file's services as processes. They end with ``cleanup`` at the latest."""

    def __init__(self, directory: Path, cleanup: ExitStack, changed: Mapping[str, Sequence[str]]) -> None:
        """``changed``: service -> options that are appended to its own and override them."""
        self._directory, self._cleanup, self._changed = directory, cleanup, changed
        self._topology = topology("quickstart")
        self._running: dict[str, ManagedProcess] = {}
        kafka = self._topology.services["kafka"]
        self._kafka_environment, client = on_loopback(kafka)
        listeners = dict(
            one.split("://", 1) for one in self._kafka_environment["KAFKA_ADVERTISED_LISTENERS"].split(",")
        )
        coordinator = f"127.0.0.1:{free_ports(1, None)[0].client}"
        self._moved = {
            "kafka:9092": client,
            "kafka:9094": listeners["INTERNAL"],
            "coordinator:7878": coordinator,
            "0.0.0.0:7878": coordinator,
            "127.0.0.1:7878": coordinator,
            "/opt/kafka/bin": str(directory / "bin"),
            "/var/lib/onceward": str(directory / "state"),
            "/etc/onceward": str(directory / "etc"),
        }
        for made in ("bin", "state", "etc", "kafka"):
            (directory / made).mkdir()
        for name in TOOLS:
            tool = directory / "bin" / name
            tool.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{broker_tools.__file__}' {name} \"$@\"\n")
            tool.chmod(0o755)
        for service in self._topology.services.values():
            for target, file in self._topology.config_files(service).items():
                Path(self._here(target)).write_text(self._here(file.read_text()))

    def up(self) -> None:
        """Start every service without a profile, each after those that it depends on, as ``docker compose up`` does."""
        for name, service in self._topology.services.items():
            if "profiles" not in service.entry:
                self._started(name)

    def run(self, name: str) -> tuple[int | None, str]:
        """Run a service as ``docker compose run --rm`` does; return (exit code, output)."""
        process = self._start(self._topology.services[name])
        return process.wait(LIMIT_S), process.tail(1000)

    def ended(self, name: str) -> int | None:
        return self._running[name].wait(LIMIT_S)

    def said(self, name: str) -> str:
        return self._running[name].tail(1000)

    def stop(self, name: str) -> int | None:
        """Send SIGTERM and wait for the service's own grace period; return the exit code."""
        self._running[name].terminate()
        return self._running[name].wait(self._topology.services[name].seconds("stop_grace_period"))

    def _started(self, name: str) -> ManagedProcess:
        if name not in self._running:
            service = self._topology.services[name]
            for needed, how in service.entry.get("depends_on", {}).items():
                self._await(needed, how["condition"])
            self._running[name] = self._start(service)
        return self._running[name]

    def _await(self, name: str, condition: str) -> None:
        process = self._started(name)
        if condition == "service_completed_successfully":
            assert process.wait(LIMIT_S) == 0, process.tail(100)
            return
        assert condition == "service_healthy"
        service = self._topology.services[name]
        check = self._command(service.health)

        def healthy() -> bool:
            assert process.exit_code is None, process.tail(100)
            # The check's own time-out is for a machine that is not busy.
            done = subprocess.run(check, env=self._environment(service), capture_output=True, check=False)
            return done.returncode == 0

        wait_until(healthy, f"{name} is healthy", LIMIT_S)

    def _start(self, service: Service) -> ManagedProcess:
        if service.is_kafka:
            file, _ = set_up(self._directory / "kafka", self._kafka_environment)
            command = java("kafka.Kafka", str(file))
        else:
            entrypoint: list[str] = service.entry.get("entrypoint", [])
            command = self._command([*entrypoint, *service.command, *self._changed.get(service.name, [])])
        log = self._directory / f"{service.name}.log"
        process = ManagedProcess(
            service.name, command, log, self._environment(service), directory=self._directory / "state"
        )
        self._cleanup.callback(process.end)
        return process

    def _command(self, words: Sequence[str]) -> list[str]:
        programs = {"python": [sys.executable], "onceward": [sys.executable, "-m", "onceward.coordinator.ops"]}
        program, *arguments = map(self._here, words)
        return [*programs.get(program, [program]), *arguments]

    def _environment(self, service: Service) -> dict[str, str]:
        """The environment that the file and the image's Dockerfile set."""
        given = {name: self._here(value) for name, value in service.environment.items()}
        image = {"ONCEWARD_STATE_DIR": str(self._directory / "state"), "PYSPARK_PYTHON": sys.executable}
        # Here the packages are not installed, and the machine may have no name that Spark could bind to.
        return {**given, **image, "PYTHONPATH": OURS, "PYTHONUNBUFFERED": "1", "SPARK_LOCAL_IP": "127.0.0.1"}

    def _here(self, text: str) -> str:
        for place, moved in self._moved.items():
            text = text.replace(place, moved)
        return text


@contextmanager
def quickstart(directory: Path, changed: Mapping[str, Sequence[str]]) -> Iterator[Quickstart]:
    with ExitStack() as cleanup:
        yield Quickstart(directory, cleanup, changed)


def follow(directory: Path, changed: Mapping[str, Sequence[str]], flights: int) -> None:
    """Follow docs/how-to/deploy.md: start everything, wait for the feeder, check until a verdict covers all records."""
    written = sum(len(outputs(FLIGHTS, message.key, message.value)) for message in messages(flights))
    with quickstart(directory, changed) as here:
        here.up()
        assert here.ended("feeder") == 0, here.said("feeder")
        assert f"{flights} messages confirmed" in here.said("feeder")
        all_of_it = f"{written:,} records expected, {written:,} visible"
        limit = time.monotonic() + LIMIT_S
        while True:
            code, said = here.run("check")
            if (code == 0 and all_of_it in said) or code == 1 or time.monotonic() > limit:
                break
        assert code == 0, said
        assert "exactly once: PASS" in said
        assert all_of_it in said
        assert here.stop("job") == 0, here.said("job")
        assert here.stop("coordinator") == 0, here.said("coordinator")


@pytest.mark.timeout(900)
def test_the_quickstart_comes_to_its_pass(tmp_path: Path) -> None:
    """Send fewer flights, and faster, than the file's own feeder does."""
    follow(tmp_path, {"feeder": ["--seconds=2", "--limit=5000"]}, 5000)


@pytest.mark.timeout(1800)
def test_the_quickstart_comes_to_its_pass_with_every_flight_and_no_option_changed(tmp_path: Path) -> None:
    follow(tmp_path, {}, TOTAL)
