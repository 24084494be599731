"""Starts coordinator, driver and feeder, and restarts those that were killed. Does not judge the outcome."""

import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from onceward.dev.demo.events import EVENTS_VARIABLE
from onceward.dev.demo.history import History, told_by
from onceward.dev.demo.plan import LEAST_CHECKPOINTS, Kill, KillPlan
from onceward.dev.demo.topics import FLIGHTS, JOB
from onceward.dev.errors import DemoError
from onceward.dev.kafka.places import free_ports
from onceward.dev.managed_process import OURS, ManagedProcess

__all__ = ["Supervised", "Supervisor", "start_module"]

_START_LIMIT_S = 30.0
_STOP_LIMIT_S = 60.0
_UNPLANNED = 3
"""Number of unplanned ends of a process before the demo gives up."""


class Supervised:
    """A process that is restarted whenever it dies, each time with the next planned kill armed."""

    def __init__(
        self,
        name: str,
        start: Callable[[str, dict[str, str]], ManagedProcess],
        kills: Sequence[Kill],
        markers: Path,
        *,
        left_behind: Callable[[], str] = lambda: "",
    ) -> None:
        """``start`` gets the process's name and its kill's variables; ``left_behind`` is called before a restart."""
        self.name = name
        self.starts = 0
        self.kills_done = 0
        self.unplanned: list[str] = []
        self._start = start
        self._kills = kills
        self._markers = markers
        self._left_behind = left_behind
        self.child = self._next()

    def _next(self) -> ManagedProcess:
        self.starts += 1
        armed = self._kills[self.kills_done].environment(self._markers) if self.kills_done < len(self._kills) else {}
        return self._start(f"{self.name}-{self.starts}", armed)

    def revive(self) -> str | None:
        """Restart it if it ended; return what happened, or None.

        Raises DemoError if it keeps ending without a plan.
        """
        code = self.child.exit_code
        if code is None:
            return None
        ended = self.child
        ended.end()  # its child processes die with it, as when a machine is lost
        if self.kills_done < len(self._kills) and self._kills[self.kills_done].happened(self._markers):
            kill = self._kills[self.kills_done]
            self.kills_done += 1
            report = f"killed {ended.name} at {kill.name}: {kill.meaning}"
        else:
            report = f"{ended.name} ended with exit code {code}, which was not planned"
            self.unplanned.append(report)
            if len(self.unplanned) > _UNPLANNED:
                raise DemoError(f"{report}; the demo gives up. The end of {ended.log}:\n{ended.tail()}")
        report += self._left_behind()
        self.child = self._next()
        return report


class Supervisor:
    """All processes of one demo. Use it from the main thread only; call `close` on every path."""

    def __init__(
        self,
        *,
        brokers: str,
        table: Path,
        directory: Path,
        store_url: str,
        plan: KillPlan,
        total: int,
        open_now: Callable[[], Collection[str]],
    ) -> None:
        """``total``: records to feed; ``open_now`` lists the transactions that are open at the broker."""
        self._brokers = brokers
        self._table = table
        self._directory = directory
        self._store_url = store_url
        self._markers = directory / "kills"
        self._markers.mkdir()
        self.plan = plan
        self._total = total
        self.events = directory / "events.jsonl"
        self._port = free_ports(1, None)[0].client
        self._address = f"127.0.0.1:{self._port}"
        self._page = f"127.0.0.1:{free_ports(1, None)[0].client}"
        self.url = f"http://{self._page}/jobs/{JOB}"
        """The job's page, which each coordinator serves in turn."""
        self._open_now = open_now
        self.left_open: set[str] = set()
        """Transactions that were open between a driver's death and the start of the next driver."""
        self._children: list[ManagedProcess] = []
        self.coordinator: Supervised | None = None
        self.driver: Supervised | None = None
        self.feeder: ManagedProcess | None = None

    def start(self, *, seconds: float) -> None:
        """Start all three. Raises DemoError if the coordinator does not start."""
        self.coordinator = Supervised("coordinator", self._start_coordinator, self.plan.coordinator, self._markers)
        self.driver = Supervised(
            "driver", self._start_driver, self.plan.driver, self._markers, left_behind=self._note_open
        )
        feed = ["onceward.dev.demo.feeder", "--brokers", self._brokers, "--topic", FLIGHTS]
        self.feeder = self._child("feeder", [*feed, "--seconds", str(seconds), "--limit", str(self._total)], {})

    def look(self) -> list[str]:
        """Restart processes that ended; return what happened to them since the last call.

        Raises DemoError if the feeder failed, or if a process cannot be kept running.
        """
        if self.feeder is not None and self.feeder.exit_code not in (None, 0):
            raise DemoError(f"The feeder failed, so there is nothing to judge:\n{self.feeder.tail()}")
        reports = (one.revive() for one in (self.coordinator, self.driver) if one is not None)
        return [report for report in reports if report is not None]

    @property
    def fed(self) -> bool:
        """Whether the feeder has finished."""
        return self.feeder is not None and self.feeder.exit_code == 0

    @property
    def restarts(self) -> int:
        return sum(one.starts - 1 for one in (self.coordinator, self.driver) if one is not None)

    def kills_done(self) -> list[Kill]:
        """Return the kills that happened, as their marker files prove."""
        return [kill for kill in self.plan.all if kill.happened(self._markers)]

    def stop(self) -> tuple[History, list[str]]:
        """Stop the driver, then the coordinator, as a service manager would.

        Returns the job's history, and what was wrong with the processes' ends.
        """
        assert self.driver is not None
        assert self.coordinator is not None
        troubles = self._stopped(self.driver)
        history = told_by(self._address, JOB, self._directory)
        return history, troubles + self._stopped(self.coordinator)

    def _stopped(self, one: Supervised) -> list[str]:
        troubles = list(one.unplanned)
        one.child.terminate()
        one.child.wait(_STOP_LIMIT_S)
        one.child.end()
        if (code := one.child.exit_code) != 0:
            troubles.append(f"{one.child.name} was asked to stop and ended with exit code {code}")
        return troubles

    def close(self) -> None:
        """End all processes at once. May be called twice."""
        for child in self._children:
            if child.exit_code is None:
                child.end()

    def _note_open(self) -> str:
        found = self._open_now()
        self.left_open.update(found)
        return f" ({len(found)} transactions are open)"

    def _start_coordinator(self, name: str, armed: dict[str, str]) -> ManagedProcess:
        command = ["onceward.operate", "serve", "--listen", self._address, "--store", self._store_url]
        command += ["--web", self._page]
        child = self._child(name, command, armed)
        limit = time.monotonic() + _START_LIMIT_S
        while not self._listening():
            if child.exit_code is not None or time.monotonic() > limit:
                raise DemoError(f"{name} does not come up. Its last words, from {child.log}:\n{child.tail()}")
            time.sleep(0.05)
        return child

    def _listening(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True

    def _start_driver(self, name: str, armed: dict[str, str]) -> ManagedProcess:
        scratch = self._directory / "spark"
        scratch.mkdir(exist_ok=True)
        environment = {
            EVENTS_VARIABLE: str(self.events),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(scratch),  # a killed driver leaves its scratch files; the demo removes them
            "SPARK_LOCAL_IP": "127.0.0.1",
            **armed,
        }
        per_checkpoint = str(self._total // LEAST_CHECKPOINTS + 1)
        command = ["onceward.dev.demo.job", "--brokers", self._brokers, "--coordinator", self._address]
        command += ["--table", str(self._table)]
        return self._child(name, [*command, "--per-checkpoint", per_checkpoint], environment)

    def _child(self, name: str, command: Sequence[str], environment: dict[str, str]) -> ManagedProcess:
        child = start_module(name, command, self._directory, environment)
        self._children.append(child)
        return child


def start_module(name: str, module: Sequence[str], directory: Path, environment: Mapping[str, str]) -> ManagedProcess:
    """Start ``python -m module...`` in ``directory``, which also gets its log.

    Not in the user's directory: a folder there may have the name of one of our packages.
    """
    command = [sys.executable, "-m", *module]
    ours = {"PYTHONPATH": OURS, "PYTHONUNBUFFERED": "1"}
    return ManagedProcess(name, command, directory / f"{name}.log", {**ours, **environment}, directory=directory)
