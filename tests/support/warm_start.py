"""Starts Python programs as forks of a process that has imported what they need: half of the suites' work was imports.

A program starts in a process, with a supervisor, an environment and a working directory of its own, as if Python had
been started. Only what Python itself reads at its start cannot be given.
"""

import contextlib
import gc
import importlib
import json
import math
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import IO

from onceward.dev.managed_process import OURS
from onceward.dev.supervisor import die_with_parent, supervise

__all__ = ["WarmSupervisor", "can_start"]

_IMPORTED = (
    "onceward.operate.cli",
    "onceward.operate.operator_requests",
    "onceward.operate.serve",
    "onceward.coordinator.service.run",
    "onceward.coordinator.store.store",
    "onceward.driver.pipeline",
    "onceward.sources.kafka.driver.source",
    "onceward.sinks.kafka.driver.sink",
    "onceward.sinks.kafka.executor.writer",
    "tests.support.sparkless",
)
_READ_AT_THE_START = ("PYTHON", "GRPC_", "OTEL_", "LD_", "MALLOC_")
"""Prefixes of variables that Python or a library reads before a program's first line."""
_LONGEST = 1 << 20
_LOOK_S = 0.005
_lock = threading.Lock()
_connections: dict[int, socket.socket] = {}
"""To the process that forks, by the process that started it: the test's, or a fork of it."""


def can_start(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork can be what this command is: our Python with ``-m MODULE`` or ``-c CODE``."""
    allowed = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": OURS}
    return (
        sys.platform == "linux"
        and command[0] == sys.executable
        and command[1] in ("-m", "-c")
        and not any(
            name.startswith(_READ_AT_THE_START) and allowed.get(name) != value for name, value in environment.items()
        )
    )


class WarmSupervisor:
    """A forked supervisor of a forked program, with the interface of ``subprocess.Popen``."""

    def __init__(self, command: Sequence[str], log: str, directory: str, environment: Mapping[str, str]) -> None:
        order = {"command": list(command), "log": log, "directory": directory, "environment": dict(environment)}
        theirs_in, stdin = os.pipe()
        stdout, theirs_out = os.pipe()
        self._ended, theirs_ended = os.pipe()
        with _lock:
            connection = _connection()
            theirs = [theirs_in, theirs_out, theirs_ended]
            socket.send_fds(connection, [json.dumps(order).encode()], theirs)
            self.pid = int(connection.recv(64))
        for descriptor in theirs:
            os.close(descriptor)
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb")
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb")
        self.returncode: int | None = None
        self._one_reads = threading.Lock()

    def poll(self) -> int | None:
        """The supervisor writes the exit code when the program has ended, and closes the pipe when it ends itself."""
        with self._one_reads:
            if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
                said = os.read(self._ended, 16)
                self.returncode = int(said) if said else -signal.SIGKILL
                os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        limit = time.monotonic() + (math.inf if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() >= limit:
                raise subprocess.TimeoutExpired("a warm start", timeout or 0)
            time.sleep(_LOOK_S)
        return code


def _connection() -> socket.socket:
    if os.getpid() not in _connections:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm_start", str(theirs.fileno())],
            cwd=OURS,
            env={**os.environ, "PYTHONPATH": OURS},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        _connections[os.getpid()] = ours
    return _connections[os.getpid()]


class _Forked:
    """The program, as its supervisor sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        os.kill(self.pid, sig)


def _fork_until_the_test_ends(connection: socket.socket) -> Callable[[], object] | None:
    """Fork a supervisor and its program for each order. Return in each program's process what it shall run; None when
    the test's process has closed the connection, or has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors report by their pipes
    while True:
        order, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 3)
        if not order:
            return None
        supervisor = os.fork()
        if not supervisor:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _supervised(json.loads(order), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(supervisor).encode())


def _supervised(order: dict[str, object], stdin: int, stdout: int, ended: int) -> Callable[[], object]:
    """Supervise the program. Returns in its process only."""
    owner, ourselves = os.getppid(), os.getpid()
    os.setsid()
    log = os.open(str(order["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    program = os.fork()
    if program:
        os.close(log)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.close(stdin)
        os.close(stdout)
        code = supervise(_Forked(program), owner)
        with contextlib.suppress(BrokenPipeError):  # the owner may have ended
            os.write(ended, str(code or 0).encode())
        os._exit(0)
    if ends := die_with_parent(ourselves):
        ends()
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    for descriptor in (log, stdin, stdout, ended):
        os.close(descriptor)
    os.chdir(str(order["directory"]))
    _read_again(order["environment"])  # type: ignore[arg-type]
    how, what, *arguments = order["command"][1:]  # type: ignore[index]
    sys.path[0] = "" if how == "-c" else os.getcwd()
    if how == "-m":
        sys.argv = [what, *arguments]
        return lambda: runpy.run_module(what, run_name="__main__", alter_sys=True)
    sys.argv = ["-c", *arguments]
    return lambda: _run_code(what)


def _read_again(environment: Mapping[str, str]) -> None:
    """Take over an environment, with what imported modules have read of the former one."""
    from onceward.common import killpoints

    os.environ.clear()
    os.environ.update(environment)
    killpoints._armed = killpoints._armed_entries(os.environ.get(killpoints.KILL_POINT_VARIABLE, ""))
    tempfile.tempdir = None
    time.tzset()
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]


def _run_code(code: str) -> None:
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(code, "<string>", "exec"), main.__dict__)


def _main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    threads = threading.active_count()
    assert threads == 1, f"{threads} threads: a fork would have one of them"
    gc.collect()
    gc.freeze()
    run = _fork_until_the_test_ends(socket.socket(fileno=int(sys.argv[1])))
    if run is not None:
        run()


if __name__ == "__main__":
    _main()
