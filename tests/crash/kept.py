"""One process of the suite: in a session of its own, with its own log, and never outliving the suite.

The keeper of the local Kafka's brokers guards these too: when the suite ends, however it ends, they do.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coordinator.dev.kafka import keeper

__all__ = ["ROOT", "Kept", "descendants"]

ROOT = Path(__file__).resolve().parents[2]
_KILLED = 128 + signal.SIGKILL


class Kept:
    """A command under a keeper. Not thread-safe."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start ``command`` in the log's directory; what it prints is appended to ``log``."""
        self.name, self.log = name, log
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(log), "", *command],
            cwd=log.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline()
        assert said, f"{name} could not be started"
        self.pid = int(said)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + n after signal n."""
        return self._keeper.poll()

    @property
    def was_killed(self) -> bool:
        return self.exit_code == _KILLED

    def send(self, number: signal.Signals) -> None:
        """A signal to the process itself; nothing happens when it is gone."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM, as a service manager would."""
        self.send(signal.SIGTERM)

    def wait(self, limit_s: float) -> int | None:
        """Its exit code, or None when it still runs after the limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(limit_s)
        return self.exit_code

    def end(self) -> None:
        """SIGKILL to it and to everything in its process group; returns when they are gone. May be called twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._keeper.pid, signal.SIGKILL)
        self._keeper.wait()
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()

    def tail(self, lines: int = 25) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """(process id, command line) of all children of a process, and theirs."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                with contextlib.suppress(OSError):
                    yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield from descendants(child)
