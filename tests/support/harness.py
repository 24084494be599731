"""The ground of all schedules: one Kafka, and one coordinator that is killed and started again."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onceward.dev.kafka import LocalKafka
from tests.support.processes import ONCEWARD, Process, Processes, armed_with, free_address, listens
from tests.support.schedules import Kill
from tests.support.waiting import wait_until

__all__ = ["Armed", "Harness", "Paths"]


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
        end = ":stop" if stops else ""
        self._markers = directory / f"kill-{sum(1 for _ in directory.iterdir())}"
        self.environment: Mapping[str, str] = armed_with([kill.place + end for kill in kills], self._markers)

    def look(self) -> bool:
        """Record the time of each new kill; return whether a process died at every point."""
        for kill in self.kills:
            marker = self._markers / kill.place
            if marker.exists() and not kill.reached:
                kill.reached, kill.at = True, marker.stat().st_mtime
        return all(kill.reached for kill in self.kills)


class Harness(Processes):
    """The processes of all schedules. A context manager. Not thread-safe."""

    def __init__(
        self,
        directory: Path,
        kafka: LocalKafka,
        *,
        program: Sequence[str] = ONCEWARD,
        paths: Paths | None = None,
    ) -> None:
        """``kafka``: already running. ``program``: of the coordinator. ``paths``: None = all clients reach the brokers
        directly."""
        super().__init__(directory)
        self.kafka = kafka
        direct = kafka.bootstrap_servers
        self.paths = paths or Paths(tests=direct, drivers=direct, coordinator=direct)
        self.address = free_address()
        """The address that the coordinator listens on."""
        self.address_for_drivers = self.address
        self._program = program
        self.coordinator: Process | None = None

    def arm(self, *kills: Kill, stops: bool = False) -> Armed:
        return Armed(kills, self._kills, stops=stops)

    def serve(self, armed: Armed | None = None, environment: Mapping[str, str] | None = None) -> Process:
        """Kill the running coordinator, start the next one, and wait until it listens or dies of ``armed``."""
        self.stop_serving()
        given = {**(armed.environment if armed else {}), **(environment or {})}
        process = self.start_coordinator(self.address, given, program=self._program, cluster=self.paths.coordinator)
        self.coordinator = process
        wait_until(lambda: listens(self.address) or not process.running, "the coordinator listens")
        if not process.running and not (armed and armed.look()):
            raise AssertionError(f"the coordinator did not start:\n{process.tail()}")
        return process

    def stop_serving(self) -> None:
        """Kill the coordinator with SIGKILL if one runs."""
        if self.coordinator is not None:
            self.coordinator.end()
            self.coordinator = None

    def serving(self) -> Process:
        """The running coordinator; started if there is none."""
        if self.coordinator is None or not self.coordinator.running:
            return self.serve()
        return self.coordinator

    def dies(self, process: Process, armed: Armed, limit_s: float) -> bool:
        """Wait until ``process`` dies of ``armed``; False when it ends or continues otherwise, so not reached."""
        limit = time.monotonic() + limit_s
        while process.exit_code is None and time.monotonic() < limit:
            time.sleep(0.02)
        reached = armed.look()
        process.end()  # its children die with it, as when a machine is lost
        return reached

    def back(self) -> float:
        """Start the coordinator again; return the time when it listened, in seconds since the epoch."""
        self.serve()
        return time.time()
