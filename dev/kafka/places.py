"""The directory of a local server, locked as long as any of its processes lives, and its ports."""

import contextlib
import fcntl
import os
import random
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from onceward.dev.errors import LocalServerError
from onceward.dev.kafka.settings import NodePorts

__all__ = ["PORTS", "DataDirectory", "free_ports"]

_LOCK = "owner.lock"
_LOCK_LIMIT_S = 5.0
# Below every system's range for outgoing connections: a client that keeps connecting to a killed broker could otherwise
# get the broker's port as its source port, connect to itself and block the broker's restart.
PORTS = range(18_000, 32_000)
_handed_out: set[int] = set()
"""Ports chosen by this process. A recently chosen port may not be in use yet, and looks free."""


class DataDirectory:
    """A directory with a lock. The supervisors inherit the lock, so it is free only when the last of them has ended."""

    def __init__(self, directory: Path | None, server: str = "Kafka") -> None:
        """Lock `directory`, or create a temporary one if it is None. ``server``: what kind of server uses it.

        Raises `LocalServerError` if another local server still uses it after 5 s (a killed one needs 1 s).
        """
        self.temporary = directory is None
        self._server = server
        if directory is None:
            prefix = f"onceward-{server.lower()}-"
            _sweep(prefix)
            self.directory = Path(tempfile.mkdtemp(prefix=prefix))
        else:
            self.directory = directory.expanduser().absolute()
            self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()

    def _locked(self) -> IO[bytes]:
        # Created under another name first: another process's sweep must not find it before it is locked.
        path = self.directory / _LOCK
        name = self.directory / f"{_LOCK}.{os.getpid()}" if self.temporary else path
        lock = name.open("ab")
        limit = time.monotonic() + _LOCK_LIMIT_S
        while not _try_lock(lock):
            if time.monotonic() > limit:
                lock.close()
                raise LocalServerError(
                    f"{self.directory} is in use by another local {self._server}; nothing was changed. "
                    "Stop that one or name another directory."
                )
            time.sleep(0.1)
        name.rename(path)
        return lock

    @property
    def lock_descriptor(self) -> int:
        """The lock's file descriptor, for the supervisors to inherit."""
        return self._lock.fileno()

    def release(self) -> None:
        """Remove the directory if it was temporary, and unlock. May be called twice."""
        if self.temporary:
            shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.close()


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(prefix: str) -> None:
    """Remove temporary directories whose owner and supervisors were all killed before they could remove them."""
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), open(directory / _LOCK, "rb", opener=_not_waiting) as lock:
            if _is_ours(lock) and _try_lock(lock):
                shutil.rmtree(directory, ignore_errors=True)


def _not_waiting(path: str, flags: int) -> int:
    """Follow no link and wait for no pipe: others may write to the parent directory."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _is_ours(file: IO[bytes]) -> bool:
    found = os.fstat(file.fileno())
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def free_ports(nodes: int, first: int | None, extra: int = 0) -> Sequence[NodePorts]:
    """Return three free loopback ports per node, plus ``extra`` ones; the client ports begin at ``first`` if given.

    Raises `LocalServerError` if a wanted port is in use.
    """
    wanted = [first + node for node in range(nodes)] if first is not None else []
    for port in wanted:
        if not _is_free(port):
            raise LocalServerError(
                f"Port {port} on 127.0.0.1 is in use; nothing was started. Name another one, or none for a free one."
            )
    chosen = list(wanted)
    for port in sorted(random.sample(PORTS, len(PORTS)), key=_handed_out.__contains__):
        if len(chosen) == (3 + extra) * nodes:
            break
        if port not in chosen and _is_free(port):
            chosen.append(port)
    _handed_out.update(chosen)
    return [
        NodePorts(client=client, internal=internal, controller=controller, extra=tuple(more))
        for client, internal, controller, *more in (chosen[node::nodes] for node in range(nodes))
    ]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as in Java: a closing connection does not block
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
