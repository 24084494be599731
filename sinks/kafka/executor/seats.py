"""The name under which a worker process writes; a later process takes over the name of one that ended. Executors only.

Transactional ids cannot be deleted, and Spark replaces worker processes that idle for a minute. Therefore a new process
takes the seat of one that has ended: its name, and the ids with that name. For each id the seat records the last
checkpoint that was voted for under it, or that no transaction was ever begun. An id is struck out before it is used, so
however a process ends, its seat holds no id whose last use is unknown.

A seat is a file in shared memory, locked by its process. The process's end releases the lock, and a restart of
the machine clears the memory: no seat is carried over from an earlier run of the machine, or from another machine.
Without such memory each process has a private seat that no other process takes.
"""

import contextlib
import fcntl
import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["NOTHING", "Seat", "take_seat"]

NOTHING = 0
"""In place of a checkpoint: no transaction was ever begun under the id."""

_SHARED_MEMORY = Path("/dev/shm")
_KEPT_S = 7 * 24 * 3600.0
"""Brokers forget unused ids after this time (transactional.id.expiration.ms)."""
_MOST_IDS = 100
"""Most ids on one seat, so that it fits in one page of memory: a write to a page is complete or absent."""


class Seat:
    """A seat, held by one process. Thread-safe."""

    def __init__(self, worker: str, file: IO[bytes] | None = None, path: Path | None = None) -> None:
        self.worker = worker
        """The worker part of the transactional ids."""
        self.count = 0
        """Number of ids created under this name."""
        self.last: dict[int, int] = {}
        """Number of an id -> the checkpoint last voted for under it, or `NOTHING`; in the order of `keep`."""
        self._lock = threading.Lock()
        self._file = file
        self._path = path

    def strike(self, number: int) -> int:
        """Strike out the id before it is initialised or used. Returns its last checkpoint, or `NOTHING`."""
        with self._lock:
            self.count = max(self.count, number + 1)
            last = self.last.pop(number, NOTHING)
            self._write()
        return last

    def keep(self, number: int, checkpoint: int) -> None:
        """Record that the id is initialised, or its transaction voted for, so that it has no request in flight."""
        with self._lock:
            self.last[number] = checkpoint
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        known = json.dumps([self.count, list(self.last.items())[-_MOST_IDS:]], separators=(",", ":"))
        try:
            os.pwrite(self._file.fileno(), f"{known}\n".encode(), 0)
        except OSError:  # the memory is full: no process may take over the partly written content
            assert self._path is not None
            self._path.unlink(missing_ok=True)

    def read(self) -> bool:
        """Take over the stored state; return False if it is unreadable."""
        assert self._file is not None
        try:
            count, last = json.loads(os.pread(self._file.fileno(), 1 << 16, 0).partition(b"\n")[0])
            self.count, self.last = int(count), {int(number): int(checkpoint) for number, checkpoint in last}
        except (ValueError, TypeError):
            return False
        return True


def take_seat(job: str, sink: str, generation: int) -> Seat:
    """Return the most recently used seat whose process has ended, else a new one."""
    with contextlib.suppress(OSError):
        directory = _directory()
        for path, file in _left(directory, f"{job}.{sink}", generation):
            seat = Seat(path.name.rpartition(".")[2], file, path)
            if seat.read():
                return seat
            path.unlink(missing_ok=True)
        worker = secrets.token_hex(6)
        path = directory / f"{job}.{sink}.{generation}.{worker}"
        file = path.open("xb+", buffering=0)
        if _locked(file):  # else another process has locked it, believing it abandoned
            return Seat(worker, file, path)
    return Seat(secrets.token_hex(6))


def _directory() -> Path:
    """Return our directory. Raises OSError if it cannot be created, or is not exclusively ours."""
    directory = _SHARED_MEMORY / f"onceward-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{directory} belongs to another user")
    return directory


def _left(directory: Path, owner: str, generation: int) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield the unlocked seats, most recently used first, because the driver offers the most recently used ids. Deletes
    seats of earlier generations, and of jobs that no longer run."""
    seats = []
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            seats.append((path.stat().st_mtime, path))
    for used, path in sorted(seats, reverse=True):
        of, number, *_ = (*path.name.rsplit(".", 2), "")
        wanted = (of, number) == (owner, str(generation))
        older = of == owner and number.isdecimal() and int(number) < generation
        if not wanted and not older and used > time.time() - _KEPT_S:
            continue
        with contextlib.suppress(OSError):
            file = path.open("rb+", buffering=0)
            if not _locked(file) or not os.fstat(file.fileno()).st_nlink:
                continue
            if wanted:
                yield path, file
            else:
                path.unlink()


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
