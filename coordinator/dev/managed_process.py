"""One process under a keeper: a broker, a toxiproxy server, a process of the demo or of a test.

It is in a session of its own, writes its own log, and never outlives its owner, however that ends (see `keeper`).
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import onceward
from onceward.coordinator.dev import supervisor
from onceward.coordinator.errors import ExitCode, OncewardError

__all__ = ["OURS", "ManagedProcess", "NotStartedError"]

OURS = str(Path(str(onceward.__file__)).parents[1])
"""Where our packages are, as ``PYTHONPATH``, for processes that run in another directory."""


class NotStartedError(OncewardError):
    """A process could not be started. It concerns no user's data, only what a test or the demo was about to make."""

    exit_code = ExitCode.PREFLIGHT


class ManagedProcess:
    """A command under a keeper. Not thread-safe."""

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
    ) -> None:
        """Start ``command``; returns once it has a process. What it prints is appended to ``log``.

        ``environment``: on top of ours. ``directory``: where it runs; None for ours. ``remove``: a directory that the
        keeper removes when it outlives us. ``inherits``: file descriptors that the keeper, not the command, holds open.

        Raises `NotStartedError`; why is on the standard error then.
        """
        self.name, self.log = name, log
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, str(log), str(remove or ""), *command],
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=inherits,
        )
        assert self._keeper.stdout is not None
        with self._keeper.stdout as answer:
            said = answer.readline()
        if not said:
            self.end()
            raise NotStartedError(f"The process of {name} could not be started, so nothing of it runs; see {log}.")
        self.pid = int(said)
        """Of the command's process itself, whose parent is the keeper."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + n after signal n."""
        return self._keeper.poll()

    def send(self, number: signal.Signals) -> None:
        """A signal to the process itself; nothing happens when it is gone."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM, as a service manager would; does not wait."""
        self.send(signal.SIGTERM)

    def wait(self, limit_s: float) -> int | None:
        """Its exit code, or None when it still runs after the limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(limit_s)
        return self.exit_code

    def end(self) -> None:
        """SIGKILL to it and to all that it started in its process group. May be called twice.

        Returns when the keeper is gone; the others die at the same moment, but nobody saw them go. Children of a
        process that has ended are killed too: a group's number is not given out again while the group has a member.
        """
        pipe = self._keeper.stdin
        assert pipe is not None
        if not pipe.closed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._keeper.pid, signal.SIGKILL)
            pipe.close()
        self._keeper.wait()

    def tail(self, lines: int = 25) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
