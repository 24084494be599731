"""One process under a supervisor: a broker, a toxiproxy server, a process of the demo or of a test.

It has its own session and log, and ends with its owner, however the owner ends (see `supervisor`).
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

import onceward
from onceward.common.errors import ExitCode, OncewardError
from onceward.dev import supervisor

__all__ = ["OURS", "ManagedProcess", "NotStartedError", "Supervisor"]

OURS = str(Path(str(onceward.__file__)).parents[1])
"""Parent directory of our packages, as ``PYTHONPATH`` for processes that run in another directory."""


class NotStartedError(OncewardError):
    """A process could not be started. No user data is affected, only what a test or the demo was about to create."""

    exit_code = ExitCode.PREFLIGHT


class Supervisor(Protocol):
    """The part of ``subprocess.Popen`` that is used here."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> IO[bytes] | None: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class ManagedProcess:
    """A command under a supervisor. Not thread-safe."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        directory: Path | None = None,
        remove: Path | None = None,
        inherits: Sequence[int] = (),
        user: str = "",
    ) -> None:
        """Start ``command``; return once it has a process id. Its output is appended to ``log``.

        ``environment``: added to ours. ``directory``: working directory; None for ours. ``remove``: a directory that
        the supervisor removes if it outlives us. ``inherits``: file descriptors that the supervisor, not the command,
        holds open. ``user``: number of the user and group whose process the command is; only root can name another one.

        Raises `NotStartedError`; the reason is then on standard error.
        """
        self.name, self.log = name, log
        self._supervisor = self._start(
            [str(log), str(remove or ""), user, *command], directory, {**os.environ, **(environment or {})}, inherits
        )
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as answer:
            said = answer.readline()
        if not said:
            self.end()
            raise NotStartedError(f"The process of {name} could not be started, so nothing of it runs; see {log}.")
        self.pid = int(said)
        """Process id of the command itself, whose parent is the supervisor."""

    def _start(
        self, arguments: list[str], directory: Path | None, environment: Mapping[str, str], inherits: Sequence[int]
    ) -> Supervisor:
        """Start the supervisor with its arguments."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, *arguments],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=inherits,
        )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + n after signal n."""
        return self._supervisor.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself; does nothing if it has ended."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, as a service manager would; does not wait."""
        self.send(signal.SIGTERM)

    def wait(self, limit_s: float) -> int | None:
        """Return its exit code, or None if it still runs after the limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(limit_s)
        return self.exit_code

    def end(self) -> None:
        """Send SIGKILL to it and to every process in its process group. May be called twice.

        Returns when the supervisor is gone. The others are killed at the same moment, but their end is not confirmed.
        Children of a process that has ended are killed too: a group's number is not reused while the group has a
        member.
        """
        pipe = self._supervisor.stdin
        assert pipe is not None
        if not pipe.closed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._supervisor.pid, signal.SIGKILL)
            pipe.close()
        self._supervisor.wait()

    def tail(self, lines: int = 25) -> str:
        """Return the end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
