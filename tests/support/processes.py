"""Drivers and coordinators in their own processes: armed with kill points, watched, and ended with the test run."""

import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from typer.testing import CliRunner

from onceward.coordinator.dev.kafka.places import free_ports
from onceward.coordinator.dev.managed_process import ManagedProcess
from onceward.coordinator.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE, KillPoint
from onceward.coordinator.ops.cli import app
from onceward.coordinator.pipeline.journal import EVENTS_VARIABLE
from tests.support.waiting import wait_until

QUICK = {"interval": "100ms", "stream_grace": "200ms", "lease": "2s"}
"""Settings of jobs whose processes are killed."""


class Process(ManagedProcess):
    """A process whose test fails if a wait for it takes too long."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], directory: Path | None = None
    ) -> None:
        """``directory``: where the command runs; None for ours."""
        super().__init__(log.stem, command, log, {"PYTHONUNBUFFERED": "1", **environment}, directory=directory)

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def wait(self, limit_s: float = 120.0) -> int:
        """Return its exit code; 128 + n after signal n."""
        code = super().wait(limit_s)
        assert code is not None, f"{self.name} still runs after {limit_s:.0f} s:\n{self.tail()}"
        return code

    def tail(self, lines: int = 60) -> str:
        return super().tail(lines)


class JobProcesses:
    """One job's processes, directory and events. A context manager; on exit every process is killed."""

    def __init__(
        self,
        directory: Path,
        job: str,
        servers: str,
        source: str,
        sink: str,
        *,
        program: str = "tests.support.driver",
        **spec: Any,
    ) -> None:
        """The job writes what it reads from ``source`` to the topic ``sink``. ``spec``: more for the drivers'
        ``program``. Without a ``coordinator`` the driver hosts it, and keeps its state in ``state`` below the
        directory."""
        self.directory = directory
        self._program = program
        self.spec = {"job": job, "servers": servers, "source": source, "sink": sink, **spec}
        if "coordinator" not in spec:
            self.spec["state_dir"] = str(directory / "state")
        self._events = directory / "events"
        self._kills = directory / "kills"
        self._scratch = directory / "scratch"
        for made in (self._kills, self._scratch):
            made.mkdir(exist_ok=True)
        self._processes: list[Process] = []

    def driver(self, *, kill_at: Sequence[str] = ()) -> Process:
        return self._start([sys.executable, "-m", self._program, json.dumps(self.spec)], "driver.log", kill_at)

    def submit(self, program: Path, *options: str) -> Process:
        """Start a driver through spark-submit."""
        command = [str(Path(sys.executable).with_name("spark-submit")), *options, str(program), json.dumps(self.spec)]
        return self._start(command, "driver.log", (), {"PYSPARK_PYTHON": sys.executable})

    def finish(self, limit_s: float = 120) -> None:
        """Run a driver to its end; it must end with exit code 0."""
        driver = self.driver()
        code = driver.wait(limit_s)
        assert code == 0, f"the driver ended with {code}:\n{driver.tail()}"

    def command(self, *words: str) -> None:
        """Run a command of ``onceward``; it must end with exit code 0."""
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (result.output, result.exception)

    def coordinator(self, address: str, *, kill_at: Sequence[str] = (), clusters: Path | None = None) -> Process:
        store = f"sqlite:///{self.directory / 'coordinator.db'}"
        command = [sys.executable, "-m", "onceward.coordinator.ops", "serve", "--listen", address, "--store", store]
        if clusters is not None:
            command += ["--clusters", str(clusters)]
        return self._start(command, "coordinator.log", kill_at)

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The events that the drivers have logged so far, oldest first."""
        if not self._events.exists():
            return []
        reported = [json.loads(line) for line in self._events.read_text().splitlines()]
        return [event for event in reported if name is None or event["event"] == name]

    def killed_at(self) -> set[str]:
        """Kill points that ended a process, with the count that they were armed with."""
        return {marker.name for marker in self._kills.iterdir()}

    def wake(self, entry: str) -> None:
        """Let the thread that blocks at a kill point continue."""
        (self._kills / entry).unlink()

    def wait_for_event(self, name: str, process: Process, *, count: int = 1, limit_s: float = 90.0) -> None:
        wait_until(
            lambda: len(self.events(name)) >= count or not process.running,
            f"{count} events {name}; the driver said:\n{process.tail()}",
            limit_s,
        )
        assert len(self.events(name)) >= count, process.tail()

    def wait_for_kill(self, point: KillPoint, count: int, process: Process, limit_s: float = 120) -> None:
        wait_until(lambda: not process.running, f"the process reaches {point}", limit_s)
        assert f"{point.value}:{count}" in self.killed_at(), f"{point} was not reached:\n{process.tail()}"
        process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()

    def _start(
        self, command: Sequence[str], log: str, kill_at: Sequence[str], more: Mapping[str, str] | None = None
    ) -> Process:
        environment = {
            EVENTS_VARIABLE: str(self._events),
            KILL_POINT_VARIABLE: ",".join(kill_at),
            KILL_ONCE_VARIABLE: str(self._kills),
            # put what a killed JVM leaves behind into the test's directory
            "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={self._scratch}",
            "SPARK_LOCAL_DIRS": str(self._scratch),
            **(more or {}),
        }
        process = Process(command, self.directory / log, environment)
        self._processes.append(process)
        return process


Starter = Callable[..., JobProcesses]
"""``starter(source, sink, **spec)`` of the fixture ``job_processes``."""


def bounded(per_checkpoint: int | None = None) -> dict[str, Any]:
    """Options of a source that reads from the start to the end at the time, so that the job finishes."""
    return {"start": "earliest", "end": "latest", "max_offsets_per_checkpoint": per_checkpoint}


def free_address() -> str:
    """An address for a server that is killed and comes back: no outgoing connection takes its port meanwhile."""
    return f"127.0.0.1:{free_ports(1, None)[0].client}"


def listens(address: str) -> bool:
    """Whether a server accepts connections at ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """(process id, command line) of all descendants of a process."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                with suppress(OSError):
                    yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield from descendants(child)
