"""A process that does not outlive the benchmark, however the benchmark ends."""

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

# Told a process id, it waits until the pipe to it closes, as it does when the benchmark is gone, and kills the group.
# It sleeps in a system call, so it costs nothing while something is measured.
_GUARD = "import os, signal, sys; p = sys.stdin.readline(); sys.stdin.read(); p and os.killpg(int(p), signal.SIGKILL)"


class Guarded:
    """A command in a session of its own, which the terminal's signals do not reach. A context manager: it, and all that
    it has started, is killed at the end. The guard is no part of it and in none of its figures."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        *,
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; what it prints is appended to ``log``. ``environment``: on top of ours.

        Raises BenchmarkError when there is no such program.
        """
        self.name, self.log = name, log
        # first, so that there is hardly a moment without it
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
        """SIGTERM, and wait for its end; False when it took longer and is killed later."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(limit_s)

    def wait(self, limit_s: float) -> bool:
        """Whether it has ended within the limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        return self.exit_code is not None

    def last_words(self, characters: int = 1500) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace").strip()[-characters:]

    def end(self) -> None:
        """Kill it and all that it has started. May be called twice."""
        self._unguard()
        self.tree.kill()
        self._process.wait()

    def _unguard(self) -> None:
        """Before the group is gone: its number may be another one's afterwards."""
        self._guard.kill()
        self._guard.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
