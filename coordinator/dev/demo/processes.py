"""The demo's processes: each leads its own session, writes its own log, and lives no longer than the demo.

The keeper that guards the local Kafka's brokers guards these too: when the demo ends, however it ends, its children do.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import coordinator
from coordinator.dev.kafka import keeper

__all__ = ["OURS", "Child"]

OURS = str(Path(coordinator.__file__).parents[1])
"""Where our packages are, for children that run somewhere else."""


class Child:
    """One process under a keeper. Not thread-safe; must be started by the demo's main thread."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start ``python -m command...`` in the log's directory; its output is appended to ``log``."""
        self.name = name
        self.log = log
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(log), "", sys.executable, "-m", *command],
            cwd=log.parent,  # not the user's: a folder of theirs may have the name of a package of ours
            env={**os.environ, "PYTHONPATH": OURS, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        self._keeper.stdout.readline()  # said once it passes signals on

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + n after signal n."""
        return self._keeper.poll()

    def terminate(self, limit_s: float) -> int:
        """SIGTERM, wait up to the limit, SIGKILL what is left; its exit code."""
        self._keeper.send_signal(signal.SIGTERM)  # the keeper passes it on
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(limit_s)
        return self.kill()

    def kill(self) -> int:
        """SIGKILL the process and all that it started in its process group; its exit code. May be called twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._keeper.pid, signal.SIGKILL)
        code = self._keeper.wait()
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def last_words(self, lines: int = 20) -> str:
        """The end of the log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
