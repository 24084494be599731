"""A process that ends with the benchmark, however the benchmark ends."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from benchmarks.errors import BenchmarkError
from benchmarks.processes import ProcessTree

__all__ = ["Guarded"]

# Reads a process id, waits until its input pipe closes, as when the benchmark is gone, and kills the process group. It
# sleeps in a system call, so it costs nothing during a measurement.
_GUARD = "import os, signal, sys; p = sys.stdin.readline(); sys.stdin.read(); p and os.killpg(int(p), signal.SIGKILL)"


class Guarded:
    """A command in its own session, which the terminal's signals do not reach. A context manager: at the end it kills
    the process and all its child processes. The guard is not part of the process or of its figures."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        *,
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; its output is appended to ``log``. ``environment``: added to ours.

        Raises BenchmarkError if there is no such program.
        """
        self.name, self.log = name, log
        # first, so that the process is hardly ever without a guard
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True, text=True
        )
        try:
            with log.open("ab") as file:
                self._process = subprocess.Popen(
                    arguments,
                    env={**os.environ, **(environment or {})},
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self._unguard()
            raise BenchmarkError(f"{name} could not be started: {error}.") from error
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{self._process.pid}\n")
        self._guard.stdin.flush()
        self.pid = self._process.pid
        self.tree = ProcessTree(self.pid)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -n after signal n."""
        return self._process.poll()

    def stop(self, limit_s: float) -> bool:
        """Send SIGTERM and wait; return whether it ended within the limit. If not, `end` kills it later."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(limit_s)

    def wait(self, limit_s: float) -> bool:
        """Return whether it has ended within the limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        return self.exit_code is not None

    def last_words(self, characters: int = 1500) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace").strip()[-characters:]

    def end(self) -> None:
        """Kill it and all its child processes. May be called twice."""
        self._unguard()
        self.tree.kill()
        self._process.wait()

    def _unguard(self) -> None:
        """End the guard before the group ends: the group's number may be reused afterwards."""
        self._guard.kill()
        self._guard.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
