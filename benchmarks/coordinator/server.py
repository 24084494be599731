"""``onceward serve`` as a process of its own, on a core of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from benchmarks.processes import ProcessTree

__all__ = ["ServedCoordinator", "served"]

_STOP_LIMIT_S = 30.0


class ServedCoordinator:
    """A running coordinator. Its log is ``serve.log`` beside the store.

    The first core that this process may use is the server's; the process itself, with all threads that it starts
    later, keeps to the others.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{_free_port()}"
        cores = sorted(os.sched_getaffinity(0))
        self._core, self._others = cores[0], set(cores[1:]) or set(cores)
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> float:
        """Returns the seconds from the process's start to the first call that it takes."""
        command = [sys.executable, "-m", "coordinator.ops", "serve", "--listen", self.address]
        os.sched_setaffinity(0, {self._core})  # a process inherits it
        try:
            begun = time.perf_counter()
            with (self.directory / "serve.log").open("ab") as log:
                self._process = subprocess.Popen(
                    [*command, "--store", f"sqlite:///{self.store}"], stdout=subprocess.PIPE, stderr=log, text=True
                )
        finally:
            os.sched_setaffinity(0, self._others)
        assert self._process.stdout is not None
        if not self._process.stdout.readline().startswith("onceward coordinator listens"):
            raise SystemExit(f"The coordinator did not start:\n{(self.directory / 'serve.log').read_text()[-2000:]}")
        self._cpu = ProcessTree(self._process.pid)
        return time.perf_counter() - begun

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it and wait for its end. Idempotent."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_STOP_LIMIT_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def store(self) -> Path:
        return self.directory / "store.db"

    @property
    def memory(self) -> int:
        """Resident bytes."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_seconds(self) -> float:
        """Used since its start."""
        return self._cpu.sample().cpu_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def served(directory: Path) -> Iterator[ServedCoordinator]:
    """A coordinator with a new store in ``directory``, which is made."""
    directory.mkdir(parents=True)
    with ServedCoordinator(directory) as coordinator:
        yield coordinator


def _free_port() -> int:
    """The same one for every start, so that drivers find the coordinator again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
