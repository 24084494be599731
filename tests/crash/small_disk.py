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

__all__ = ["SmallDisk"]

_MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && echo mounted && read -r _'


class SmallDisk:
    """A context manager. Not thread-safe."""

    def __init__(self, directory: Path, megabytes: int = 256) -> None:
        """``directory``: must exist; it stays empty for all other processes."""
        self._command = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]
        self._command += ["sh", "-c", _MOUNT, "sh", f"{megabytes}m", str(directory)]
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
        """Write until the disk cannot take another byte."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        self._ballast.unlink()

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"
