"""Drivers and coordinators in their own processes: armed with kill points, watched, and ended with the test run."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from typer.testing import CliRunner

from onceward.common.jvm.spark import start_from_archive
from onceward.common.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE, KillPoint
from onceward.dev.demo.events import Event, EventReader
from onceward.dev.kafka.places import free_ports
from onceward.dev.managed_process import OURS, ManagedProcess, Supervisor
from onceward.driver.journal import EVENTS_VARIABLE
from onceward.operate.cli import app
from onceward.protocol.values import JsonObject
from tests.support.job_tables import JobTables
from tests.support.waiting import wait_until
from tests.support.warm_start import WarmSupervisor, can_start

CLUSTER = "main"
"""The name of the cluster in jobs and in the coordinator's file."""
ONCEWARD = ("-m", "onceward.operate")
"""The command, as arguments of Python."""
QUICK = {"interval": "100ms", "stream_grace": "200ms", "lease": "2s"}
"""Settings of jobs whose processes are killed."""


class Process(ManagedProcess):
    """A process whose test fails if a wait for it takes too long."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], directory: Path | None = None
    ) -> None:
        """``directory``: where the command runs; None for ours."""
        self._warm = can_start(command, environment)
        super().__init__(log.stem, command, log, {"PYTHONUNBUFFERED": "1", **environment}, directory=directory)

    def _start(
        self, arguments: list[str], directory: Path | None, environment: Mapping[str, str], inherits: Sequence[int]
    ) -> Supervisor:
        if not self._warm:
            return super()._start(arguments, directory, environment, inherits)
        log, _remove, _user, *command = arguments
        return WarmSupervisor(command, log, str(directory or Path.cwd()), environment)

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; after SIGSTOP, wait until the process stands still."""
        super().send(number)
        if number == signal.SIGSTOP:
            wait_until(lambda: not self.running or stands_still(self.pid), f"{self.name} stands still")

    def wait(self, limit_s: float = 120.0) -> int:
        """Return its exit code; 128 + n after signal n."""
        code = super().wait(limit_s)
        assert code is not None, f"{self.name} still runs after {limit_s:.0f} s:\n{self.tail()}"
        return code

    def tail(self, lines: int = 60) -> str:
        return super().tail(lines)


def coordinator_command(address: str, store_url: str, program: Sequence[str] = ONCEWARD) -> list[str]:
    """``onceward serve``. ``program``: arguments of Python that take the command's place."""
    return [sys.executable, *program, "serve", "--listen", address, "--store", store_url]


def armed_with(kill_at: Sequence[str], markers: Path) -> dict[str, str]:
    """The environment of processes that die at these kill points, each once: a kill leaves a file in ``markers``."""
    markers.mkdir(exist_ok=True)
    return {KILL_POINT_VARIABLE: ",".join(kill_at), KILL_ONCE_VARIABLE: str(markers)}


def spark_variables(scratch: Path) -> dict[str, str]:
    """Variables with which a Spark starts from the archive of its classes, and keeps in `scratch` all files that remain
    when it is killed."""
    variables = {"SPARK_LOCAL_DIRS": str(scratch), "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={scratch}"}
    start_from_archive(variables)
    return variables


class Processes:
    """Starts processes. They run in one directory, which takes their logs and events, the coordinator's store and what
    killed JVMs leave behind. A context manager; on exit every process is killed. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events_file = directory / "events"
        self.clusters_file = directory / "clusters.toml"
        self.tables: dict[str, JobTables] = {}
        """Tables that jobs write to, by kind; the coordinator settles there, too."""
        self._kills = directory / "kills"
        self._scratch = directory / "scratch"
        for made in (directory, self._kills, self._scratch):
            made.mkdir(parents=True, exist_ok=True)
        self._started = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Process:
        """Start a command that appends its output to ``NAME.log``."""
        given = {
            "PYTHONPATH": OURS,
            EVENTS_VARIABLE: str(self.events_file),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **spark_variables(self._scratch),
            **environment,
        }
        process = Process(command, self.directory / f"{name}.log", given, self.directory)
        self._started.callback(process.end)
        return process

    def start_driver(self, name: str, program: str, spec: JsonObject, environment: Mapping[str, str]) -> Process:
        """Start ``python -m PROGRAM SPEC-AS-JSON``."""
        return self.start(name, [sys.executable, "-m", program, json.dumps(spec)], environment)

    def start_coordinator(
        self,
        address: str,
        environment: Mapping[str, str],
        *,
        program: Sequence[str] = ONCEWARD,
        cluster: str | None = None,
        config: Mapping[str, str] | None = None,
        store_url: str = "",
        name: str = "coordinator",
    ) -> Process:
        """``cluster``: bootstrap servers; the coordinator ends transactions of dead drivers there. ``config``: of its
        Kafka clients."""
        command = coordinator_command(address, store_url or f"sqlite:///{self.directory / 'coordinator.db'}", program)
        if cluster is not None:
            self.clusters_file.write_text(
                f"[clusters.{CLUSTER}]\nbootstrap_servers = {json.dumps(cluster)}\n[clusters.{CLUSTER}.config]\n"
                + "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in (config or {}).items())
            )
            with self.clusters_file.open("a") as file:
                for kind, tables in self.tables.items():
                    lines = [f"{key} = {_toml(value)}\n" for key, value in tables.system().items()]
                    file.writelines([f"[systems.{kind}]\n", *lines])
            command += ["--systems", str(self.clusters_file)]
        return self.start(name, command, environment)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


class JobProcesses(Processes):
    """One job's processes and events."""

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
        super().__init__(directory)
        self._program = program
        self.spec = {"job": job, "servers": servers, "source": source, "sink": sink, **spec}
        if "coordinator" not in spec:
            self.spec["state_dir"] = str(directory / "state")
        self._reader = EventReader(self.events_file)
        self._events: list[Event] = []

    def driver(self, *, kill_at: Sequence[str] = ()) -> Process:
        return self.start_driver("driver", self._program, self.spec, armed_with(kill_at, self._kills))

    def submit(self, program: Path, *options: str) -> Process:
        """Start a driver through spark-submit."""
        command = [str(Path(sys.executable).with_name("spark-submit")), *options, str(program), json.dumps(self.spec)]
        return self.start("driver", command, {})

    def finish(self, limit_s: float = 120) -> None:
        """Run a driver to its end; it must end with exit code 0."""
        driver = self.driver()
        code = driver.wait(limit_s)
        assert code == 0, f"the driver ended with {code}:\n{driver.tail()}"

    def command(self, *words: str) -> None:
        """Run a command of ``onceward``; it must end with exit code 0."""
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (result.output, result.exception)

    def coordinator(
        self,
        address: str,
        *,
        kill_at: Sequence[str] = (),
        settles: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> Process:
        """``settles``: whether it ends transactions of dead drivers; ``config``: of its Kafka clients."""
        armed = armed_with(kill_at, self._kills)
        return self.start_coordinator(address, armed, cluster=self.spec["servers"] if settles else None, config=config)

    def events(self, name: str | None = None) -> list[Event]:
        """The events that the drivers have logged so far, oldest first."""
        self._events += self._reader.new()
        return [event for event in self._events if name is None or event["event"] == name]

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


def exists(pid: int) -> bool:
    """Whether there is such a process; one that has ended remains until it is reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def stands_still(pid: int) -> bool:
    """Whether SIGSTOP has stopped every thread of the process."""
    with suppress(OSError):
        states = {task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")}
        return states == {"T"}
    return False


def halt(pid: int) -> None:
    """Stop a process. On a busy machine its threads run, and answer, for up to 20 ms after the signal."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: stands_still(pid), f"process {pid} stands still")


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """(process id, command line) of all descendants of a process."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                with suppress(OSError):
                    yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield from descendants(child)
