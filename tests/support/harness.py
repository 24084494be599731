"""The ground of all schedules: one Kafka, and one coordinator that is killed and started again."""

import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from onceward.coordinator.dev.kafka import LocalKafka
from onceward.coordinator.dev.kafka.places import free_ports
from onceward.coordinator.dev.managed_process import OURS, ManagedProcess
from onceward.coordinator.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE
from onceward.coordinator.pipeline.journal import EVENTS_VARIABLE
from tests.support.schedules import Kill
from tests.support.waiting import wait_until

__all__ = ["CLUSTER", "START_LIMIT_S", "Armed", "Harness", "Paths"]

CLUSTER = "main"
"""The name of the cluster in the jobs and in the coordinator's file."""
START_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Bootstrap servers through which each kind of client reaches the brokers."""

    tests: str
    """For feeder, recorder and judge."""
    drivers: str
    coordinator: str


class Armed:
    """Kill points armed for one process each, and the marker files that prove the kills."""

    def __init__(self, kills: Sequence[Kill], directory: Path, *, stops: bool = False) -> None:
        """``directory``: where all kills of the suite leave their marker files. ``stops``: the processes do not die but
        stop until they get SIGCONT."""
        self.kills = kills
        self._end = ":stop" if stops else ""
        self._markers = directory / f"kill-{sum(1 for _ in directory.iterdir())}"
        self._markers.mkdir()

    @property
    def environment(self) -> Mapping[str, str]:
        places = ",".join(f"{kill.place}{self._end}" for kill in self.kills)
        return {KILL_POINT_VARIABLE: places, KILL_ONCE_VARIABLE: str(self._markers)}

    def look(self) -> bool:
        """Record the time of each new kill; return whether a process died at every point."""
        for kill in self.kills:
            marker = self._markers / kill.place
            if marker.exists() and not kill.reached:
                kill.reached, kill.at = True, marker.stat().st_mtime
        return all(kill.reached for kill in self.kills)


class Harness:
    """Starts and ends all processes of the schedules. A context manager. Not thread-safe."""

    def __init__(
        self,
        directory: Path,
        kafka: LocalKafka,
        *,
        serve: Sequence[str] = ("onceward.coordinator.ops", "serve"),
        orphans: bool = True,
        paths: Paths | None = None,
    ) -> None:
        """``kafka``: already running. ``serve``: the coordinator's module and command. ``orphans``: whether the
        coordinator may settle orphans. ``paths``: None = all clients reach the brokers directly."""
        self.directory, self.kafka = directory, kafka
        direct = kafka.bootstrap_servers
        self.paths = paths or Paths(tests=direct, drivers=direct, coordinator=direct)
        self.address = f"127.0.0.1:{free_ports(1, None)[0].client}"
        """The address that the coordinator listens on."""
        self.address_for_drivers = self.address
        self.events = directory / "events.jsonl"
        self._serve = serve
        self._stack = ExitStack()
        self._kills = directory / "kills"
        self._scratch = directory / "spark"
        for made in (directory, self._kills, self._scratch):
            made.mkdir(parents=True, exist_ok=True)
        self._clusters = directory / "clusters.toml"
        self._clusters.write_text(f"[clusters.{CLUSTER}]\nbootstrap_servers = {json.dumps(self.paths.coordinator)}\n")
        self._orphans = orphans
        self._lives = 0
        self.coordinator: ManagedProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def arm(self, *kills: Kill, stops: bool = False) -> Armed:
        return Armed(kills, self._kills, stops=stops)

    def start(self, name: str, module: Sequence[str], environment: Mapping[str, str]) -> ManagedProcess:
        """Start ``python -m module``; it ends with the harness at the latest."""
        return self.keep(name, [sys.executable, "-m", *module], environment)

    def keep(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> ManagedProcess:
        """Start a command; it ends with the harness at the latest."""
        self._lives += 1
        process = ManagedProcess(
            f"{name} (life {self._lives})",
            command,
            self.directory / f"{name}.log",
            {
                "PYTHONPATH": OURS,
                "PYTHONUNBUFFERED": "1",
                EVENTS_VARIABLE: str(self.events),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                # put what a killed JVM leaves behind into the suite's directory
                "SPARK_LOCAL_DIRS": str(self._scratch),
                "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={self._scratch}",
                **environment,
            },
            directory=self.directory,
        )
        self._stack.callback(process.end)
        return process

    def serve(self, armed: Armed | None = None, environment: Mapping[str, str] | None = None) -> ManagedProcess:
        """Kill the running coordinator, start the next one, and wait until it listens or dies of ``armed``."""
        self.stop_serving()
        command = [*self._serve, "--listen", self.address, "--store", f"sqlite:///{self.directory / 'store.sqlite'}"]
        if self._orphans:
            command += ["--clusters", str(self._clusters)]
        process = self.start("coordinator", command, {**(armed.environment if armed else {}), **(environment or {})})
        self.coordinator = process
        wait_until(lambda: self._listens() or process.exit_code is not None, "the coordinator listens", START_LIMIT_S)
        if process.exit_code is not None and not (armed and armed.look()):
            raise AssertionError(f"the coordinator did not start:\n{process.tail()}")
        return process

    def stop_serving(self) -> None:
        """Kill the coordinator with SIGKILL if one runs."""
        if self.coordinator is not None:
            self.coordinator.end()
            self.coordinator = None

    def serving(self) -> ManagedProcess:
        """The running coordinator; started if there is none."""
        if self.coordinator is None or self.coordinator.exit_code is not None:
            return self.serve()
        return self.coordinator

    def back(self) -> float:
        """Start the coordinator again; return the time when it listened, in seconds since the epoch."""
        self.serve()
        return time.time()

    def _listens(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True
