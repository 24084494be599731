"""A topology of compose/ as plain processes: its commands, options, variables, order and health checks.

Only locations differ: addresses of this machine, directories instead of volumes and images. Stand-ins replace two
programs of the broker's image (`broker_tools`), and the image of PostgreSQL.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from onceward.dev.kafka.places import free_ports
from onceward.dev.managed_process import OURS, ManagedProcess
from onceward.dev.postgres.server import LocalPostgres
from tests.support import broker_tools
from tests.support.compose import Service, topology
from tests.support.image_broker import java, on_loopback, set_up
from tests.support.processes import ONCEWARD
from tests.support.waiting import wait_until

__all__ = ["LIMIT_S", "Composed", "composed"]

LIMIT_S = 600.0
"""Limit for any step: the machine may be busy."""
_TOOLS = ("kafka-topics.sh", "kafka-broker-api-versions.sh")
"""Programs of the broker's image that the files call."""
_PORT = 7878
"""Of a coordinator."""


class Composed:
    """The services, started one by one or as by ``docker compose up``. They end with ``cleanup`` at the latest."""

    def __init__(
        self,
        name: str,
        directory: Path,
        cleanup: ExitStack,
        *,
        changed: Mapping[str, Sequence[str]] | None = None,
        postgres: LocalPostgres | None = None,
    ) -> None:
        """``changed``: service -> options that are appended to its own and override them."""
        self._directory, self._cleanup, self._changed, self._postgres = directory, cleanup, changed or {}, postgres
        self._topology = topology(name)
        services = self._topology.services
        self._running: dict[str, ManagedProcess] = {}
        self._starts = 0
        self.addresses = {
            name: f"127.0.0.1:{free_ports(1, None)[0].client}"
            for name, service in services.items()
            if f"0.0.0.0:{_PORT}" in service.option("listen")
        }
        """Of the coordinators."""
        self._kafka_environment, client = on_loopback(services["kafka"])
        listeners = dict(
            one.split("://", 1) for one in self._kafka_environment["KAFKA_ADVERTISED_LISTENERS"].split(",")
        )
        self._moved = {
            "kafka:9092": client,
            "kafka:9094": listeners["INTERNAL"],
            "/opt/kafka/bin": str(directory / "bin"),
        }
        if postgres is not None:
            self._moved["@postgres:5432/"] = f"@127.0.0.1:{postgres.port}/"
        for made in ("bin", "broker", "etc", "state", *self._topology.model["volumes"]):
            (directory / made).mkdir()
        for tool_name in _TOOLS:
            tool = directory / "bin" / tool_name
            tool.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{broker_tools.__file__}' {tool_name} \"$@\"\n")
            tool.chmod(0o755)
        for service in services.values():
            for target, file in self._topology.config_files(service).items():
                Path(self._here(target, service)).write_text(self._here(file.read_text(), service))

    def up(self) -> None:
        """Start every service without a profile, each after those that it depends on, as ``docker compose up`` does."""
        for name, service in self._topology.services.items():
            if "profiles" not in service.entry:
                self._started(name)

    def start(self, name: str, command: Sequence[str] = ()) -> ManagedProcess:
        """Start a service with its own command, or with another one."""
        service = self._topology.services[name]
        if service.is_kafka:
            file, _ = set_up(self._directory / "broker", self._kafka_environment)
            words = java("kafka.Kafka", str(file))
        else:
            words = self._command([*command] or [*service.entrypoint, *service.command], service)
            words += [] if command else self._changed.get(name, [])
        self._starts += 1
        log = self._directory / f"{name}-{self._starts}.log"
        process = ManagedProcess(name, words, log, self._environment(service), directory=self._directory / "state")
        self._cleanup.callback(process.end)
        return process

    def run(self, name: str, *command: str) -> tuple[int | None, str]:
        """Run a service as ``docker compose run --rm`` does; return (exit code, output)."""
        process = self.start(name, command)
        return process.wait(LIMIT_S), process.tail(1000)

    def healthy(self, name: str) -> bool:
        """Whether the service's own check says so. The time-out in the file is for a machine that is not busy."""
        service = self._topology.services[name]
        if service.image.startswith("postgres:"):
            return True
        check = self._command(service.health, service)
        done = subprocess.run(check, env=self._environment(service), capture_output=True, check=False)
        return done.returncode == 0

    def ended(self, name: str) -> int | None:
        """Wait for the end of a service that `up` has started; return its exit code."""
        return self._running[name].wait(LIMIT_S)

    def said(self, name: str) -> str:
        return self._running[name].tail(1000)

    def kill(self, name: str) -> None:
        """Send SIGKILL to a service that `up` has started."""
        self._running[name].end()

    def stop(self, name: str) -> int | None:
        """Send SIGTERM and wait for the service's own grace period; return the exit code."""
        self._running[name].terminate()
        return self._running[name].wait(self._topology.services[name].seconds("stop_grace_period"))

    def verdict(self, records: int) -> tuple[int | None, str]:
        """Run ``check`` until it covers all ``records``, or finds a fault; return its exit code and its words."""
        limit = time.monotonic() + LIMIT_S
        while True:
            code, said = self.run("check")
            whole = f"{records:,} records expected, {records:,} visible" in said
            if (code == 0 and whole) or code == 1 or time.monotonic() > limit:
                return code, said

    def _started(self, name: str) -> None:
        service = self._topology.services[name]
        if name in self._running or service.image.startswith("postgres:"):
            return
        for needed, how in service.entry.get("depends_on", {}).items():
            self._await(needed, how["condition"])
        self._running[name] = self.start(name)

    def _await(self, name: str, condition: str) -> None:
        self._started(name)
        if condition == "service_completed_successfully":
            assert self.ended(name) == 0, self.said(name)
            return
        assert condition == "service_healthy"

        def healthy() -> bool:
            process = self._running.get(name)
            assert process is None or process.exit_code is None, self.said(name)
            return self.healthy(name)

        wait_until(healthy, f"{name} is healthy", LIMIT_S)

    def _command(self, words: Sequence[str], service: Service) -> list[str]:
        programs = {"python": [sys.executable], "onceward": [sys.executable, *ONCEWARD]}
        program, *arguments = (self._here(word, service) for word in words)
        return [*programs.get(program, [program]), *arguments]

    def _environment(self, service: Service) -> dict[str, str]:
        """The environment that the file and the image's Dockerfile set."""
        given = {name: self._here(value, service) for name, value in service.environment.items()}
        image = {"ONCEWARD_STATE_DIR": str(self._directory / "state"), "PYSPARK_PYTHON": sys.executable}
        # Here the packages are not installed, and the machine may have no name that Spark could bind to.
        return {**given, **image, "PYTHONPATH": OURS, "PYTHONUNBUFFERED": "1", "SPARK_LOCAL_IP": "127.0.0.1"}

    def _here(self, text: str, service: Service) -> str:
        if service.name in self.addresses:
            for listens in (f"0.0.0.0:{_PORT}", f"127.0.0.1:{_PORT}"):
                text = text.replace(listens, self.addresses[service.name])
        for name, address in self.addresses.items():
            text = re.sub(rf"(?<![\w-]){name}:{_PORT}", address, text)
        for volume, (target, _) in service.mounts.items():
            text = re.sub(rf"{target}(?![\w.-])", str(self._directory / volume), text)
        for place, moved in self._moved.items():
            text = text.replace(place, moved)
        return text.replace("/etc/onceward", str(self._directory / "etc"))


@contextmanager
def composed(
    name: str,
    directory: Path,
    *,
    changed: Mapping[str, Sequence[str]] | None = None,
    postgres: LocalPostgres | None = None,
) -> Iterator[Composed]:
    with ExitStack() as cleanup:
        yield Composed(name, directory, cleanup, changed=changed, postgres=postgres)
