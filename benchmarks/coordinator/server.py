"""``onceward serve`` as a process of its own, on a core of its own."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from benchmarks.guarded import Guarded
from benchmarks.processes import process

__all__ = ["ServedCoordinator", "served"]

_LISTENS = b"onceward coordinator listens"
_STOP_LIMIT_S = 30.0
_CORES = sorted(os.sched_getaffinity(0))
"""Read once: what measures keeps itself to some of them later."""


class ServedCoordinator:
    """A running coordinator. Its log is ``serve.log`` beside the store.

    The first core that this process may use is the server's; the process itself, with all threads that it starts
    later, keeps to the others.
    """

    def __init__(self, directory: Path, *, store_url: str = "", delay_ms: float = 0.0, web: bool = False) -> None:
        """``store_url``: by default a file in ``directory``. ``delay_ms``: how much longer than the disk every commit
        takes. ``web``: it serves the page."""
        self.directory = directory
        self._store_url = store_url or f"sqlite:///{self.store}"
        self._delay_ms = delay_ms
        self.address = f"127.0.0.1:{_free_port()}"
        self.page = f"127.0.0.1:{_free_port()}" if web else ""
        self._core, self._others = _CORES[0], set(_CORES[1:]) or set(_CORES)
        self._process: Guarded | None = None
        self.start()

    def start(self) -> float:
        """Returns the seconds from the process's start to the first call that it takes."""
        slow = ["benchmarks.coordinator.slow_disk", str(self._delay_ms)]
        command = [sys.executable, "-m", *(slow if self._delay_ms else ["onceward.operate"])]
        command += ["serve", "--listen", self.address, "--store", self._store_url]
        command += ["--web", self.page] if self.page else []
        log = self.directory / "serve.log"
        said = log.stat().st_size if log.exists() else 0
        os.sched_setaffinity(0, {self._core})  # a process inherits it
        try:
            begun = time.perf_counter()
            started = self._process = Guarded("the coordinator", command, log, directory=Path.cwd())
        finally:
            os.sched_setaffinity(0, self._others)
        while _LISTENS not in log.read_bytes()[said:]:
            if started.wait(0.001):
                self.kill()
                raise SystemExit(f"The coordinator did not start:\n{started.last_words()}")
        return time.perf_counter() - begun

    def stop(self) -> None:
        """End it and wait for its end. Idempotent."""
        if self._process is not None:
            self._process.stop(_STOP_LIMIT_S)
            self.kill()

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        if self._process is not None:
            self._process.end()
            self._process = None

    @property
    def store(self) -> Path:
        return self.directory / "store.db"

    @property
    def memory(self) -> int:
        """Resident bytes."""
        assert self._process is not None
        found = process(self._process.pid)
        return found.rss if found else 0

    @property
    def peak_memory(self) -> int:
        """The most resident bytes since its start."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    @property
    def cpu_seconds(self) -> float:
        """Used since its start."""
        assert self._process is not None
        return self._process.tree.sample().cpu_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def served(directory: Path, *, store_url: str = "", delay_ms: float = 0.0) -> Iterator[ServedCoordinator]:
    """A coordinator with a new store in ``directory``, which is made."""
    directory.mkdir(mode=0o700, parents=True)
    with ServedCoordinator(directory, store_url=store_url, delay_ms=delay_ms) as coordinator:
        yield coordinator


def _free_port() -> int:
    """The same one for every start, so that drivers find the coordinator again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
