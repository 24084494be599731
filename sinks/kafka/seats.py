"""Under which name a worker process writes, handed on from a process that has ended to the next one. Executors only.

Transactional ids cannot be deleted, and Spark replaces worker processes that idle for a minute. So a new process takes
the seat of one that has ended: its name, and the ids with that name. The seat says of each id what its process would
say: the last checkpoint that was voted for under it, or that nothing was ever begun. An id is struck out before it is
used, so whatever becomes of a process, no id is on its seat whose last use is not known.

A seat is a file in shared memory, locked by its process. The lock goes with the process, and the memory with the
machine: nobody finds what an older run of the machine, or another machine, knew. Where there is no such memory, each
process has a seat of its own, which nobody takes.
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
"""In the place of a checkpoint: nothing was ever begun under the id."""

_SHARED_MEMORY = Path("/dev/shm")
_KEPT_S = 7 * 24 * 3600.0
"""Brokers do not remember ids for longer (transactional.id.expiration.ms)."""
_MOST_IDS = 100
"""On one seat, so that it takes one page of memory: what is written to a page is there whole or not at all."""


class Seat:
    """One process has it. Thread-safe."""

    def __init__(self, worker: str, file: IO[bytes] | None = None, path: Path | None = None) -> None:
        self.worker = worker
        """Its part of the transactional ids."""
        self.count = 0
        """How many ids were made under this name."""
        self.last: dict[int, int] = {}
        """Number of an id -> the checkpoint last voted for under it, or `NOTHING`; in the order of `keep`."""
        self._lock = threading.Lock()
        self._file = file
        self._path = path

    def strike(self, number: int) -> int:
        """The id is about to be initialised or used. Returns its last checkpoint, or `NOTHING`."""
        with self._lock:
            self.count = max(self.count, number + 1)
            last = self.last.pop(number, NOTHING)
            self._write()
        return last

    def keep(self, number: int, checkpoint: int) -> None:
        """Nothing is under way for the id: it is initialised, or its transaction is voted for."""
        with self._lock:
            self.last[number] = checkpoint
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        known = json.dumps([self.count, list(self.last.items())[-_MOST_IDS:]], separators=(",", ":"))
        try:
            os.pwrite(self._file.fileno(), f"{known}\n".encode(), 0)
        except OSError:  # full: nobody may take what is written there now
            assert self._path is not None
            self._path.unlink(missing_ok=True)

    def read(self) -> bool:
        """Take over what is known; False when nothing can be made of it."""
        assert self._file is not None
        try:
            count, last = json.loads(os.pread(self._file.fileno(), 1 << 16, 0).partition(b"\n")[0])
            self.count, self.last = int(count), {int(number): int(checkpoint) for number, checkpoint in last}
        except (ValueError, TypeError):
            return False
        return True


def take_seat(job: str, sink: str, generation: int) -> Seat:
    """The one whose process has ended last, else a new one."""
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
        if _locked(file):  # else somebody has it who takes it for left
            return Seat(worker, file, path)
    return Seat(secrets.token_hex(6))


def _directory() -> Path:
    """Raises OSError where there is none, or it is not ours alone."""
    directory = _SHARED_MEMORY / f"onceward-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{directory} belongs to somebody else")
    return directory


def _left(directory: Path, owner: str, generation: int) -> Iterator[tuple[Path, IO[bytes]]]:
    """Seats that nobody has, the one used last first: the driver offers the ids used last. What nobody will take goes:
    of earlier generations, and of jobs that do not run any more."""
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
