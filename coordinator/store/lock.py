"""One process per store: an advisory lock on a file beside it. The kernel releases it however the holder ends."""

import fcntl
import os
from pathlib import Path

from onceward.coordinator.store.errors import StoreUnusableError

__all__ = ["StoreLock"]


class StoreLock:
    """The lock, held from construction to :meth:`release`. Raises StoreUnusableError, which names the holder's process
    id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # not inheritable: a child process must not keep the store locked
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreUnusableError(
                f"The store beside {path} is in use by process {holder}; two coordinators on one store would decide "
                "against each other. Nothing was started. Stop that process, or use another store."
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Release the lock. The file stays: removing it would let two processes lock two files of the same name."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1
