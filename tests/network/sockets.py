"""The connections of processes, as the kernel lists their sockets."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.background import Background
from tests.support.processes import descendants

__all__ = ["Bypasses", "Connection", "connections", "family"]

_LOOK_S = 0.1
_LISTENS = "0A"


@dataclass(frozen=True)
class Connection:
    """One TCP socket that does not listen, and its process."""

    pid: int
    local_port: int
    remote_port: int


def family(pids: Iterable[int]) -> list[int]:
    """The processes and all their descendants."""
    found = list(pids)
    return found + [child for pid in found for child, _ in descendants(pid)]


def connections(pids: Iterable[int]) -> Iterator[Connection]:
    """The connections that these processes have open now. A process that has just ended has none."""
    owners = {inode: pid for pid in pids for inode in _inodes(pid)}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] != _LISTENS and (pid := owners.get(fields[9])):
                    local, remote = (int(field.rpartition(":")[2], 16) for field in fields[1:3])
                    yield Connection(pid, local, remote)


def _inodes(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(entry)
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]


class Bypasses(Background):
    """Check ten times a second whether a client reaches a server directly.

    Faults do not touch such a client, so its behaviour proves nothing.
    """

    def __init__(self, clients: Callable[[], Collection[int]], forbidden: Callable[[], Collection[int]]) -> None:
        """``clients``: process ids; their descendants count too. ``forbidden``: the servers' own ports."""
        super().__init__("bypasses")
        self._clients, self._forbidden = clients, forbidden
        self.found: set[int] = set()
        """Ports of servers that a client was connected to directly."""
        self.looks = 0
        """Number of checks that found any open connection. If it is 0, nothing is known."""

    def work(self) -> None:
        while not self.over.wait(_LOOK_S):
            remote = {one.remote_port for one in connections(family(self._clients()))}
            self.looks += bool(remote)
            self.found |= remote & set(self._forbidden())
