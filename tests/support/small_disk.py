"""A disk that can be filled: a file system in memory, mounted so that only the process that holds it sees it.

It never has to be unmounted: the file system disappears with that process, however this one ends. Other processes
reach it through ``/proc``. A user other than root needs user namespaces for it.
"""

import errno
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["SmallDisk", "fill", "free", "on_a_small_disk"]

_MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && shift 2 && '
_HOLD = "echo mounted && read -r _"


class SmallDisk:
    """A context manager. Not thread-safe."""

    def __init__(self, directory: Path, megabytes: int = 256) -> None:
        """``directory``: must exist; it stays empty for all other processes."""
        self._command = _mounted(directory, megabytes, _HOLD)
        self._directory = directory

    def __enter__(self) -> Self:
        """Mount the file system. Raises OSError where this is not permitted."""
        self._holder = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"mounted\n":
            self.__exit__(None, None, None)
            raise OSError(errno.EPERM, "a file system in memory cannot be mounted here", str(self._directory))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._holder:  # closes its pipes, which ends it
            pass

    @property
    def path(self) -> Path:
        return Path(f"/proc/{self._holder.pid}/root{self._directory}")

    def fill(self) -> None:
        """See :func:`fill`."""
        fill(self.path)

    def free(self) -> None:
        free(self.path)


def fill(disk: Path) -> None:
    """Write until the disk cannot take another byte."""
    with _ballast(disk).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def free(disk: Path) -> None:
    """Undo :func:`fill`."""
    _ballast(disk).unlink()


def on_a_small_disk(directory: Path, *command: str, megabytes: int) -> subprocess.CompletedProcess[str]:
    """Run a command to which ``directory`` is a small disk, for libraries that do not find it through ``/proc``."""
    ran = [*_mounted(directory, megabytes, 'exec "$@"'), *command]
    return subprocess.run(ran, capture_output=True, text=True, timeout=150)


def _mounted(directory: Path, megabytes: int, then: str) -> list[str]:
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ["unshare", "--mount", *as_root, "sh", "-c", _MOUNT + then, "sh", f"{megabytes}m", str(directory)]


def _ballast(disk: Path) -> Path:
    return disk / "ballast"
