"""Which broker coordinates what, and which one still believes that it does."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar
from zlib import crc32

from onceward.connections.codes import ErrorCode

__all__ = ["NO_BROKER", "Shard", "shard_of"]

NO_BROKER = -1

_Table = TypeVar("_Table")


@lru_cache(maxsize=65_536)
def shard_of(key: str, shards: int) -> int:
    """Number of the partition that keeps ``key``."""
    return crc32(key.encode()) % shards


@dataclass(kw_only=True)
class _Deposed(Generic[_Table]):
    node: int
    until: float
    table: _Table
    believers: frozenset[int]


@dataclass(kw_only=True)
class Shard(Generic[_Table]):
    """One partition of a coordinator's topic: its table, its leader, and a deposed leader that does not know it yet."""

    number: int
    leader: int
    table: _Table
    copied: Callable[[_Table], _Table]
    loading_until: float = 0.0
    _deposed: _Deposed[_Table] | None = field(default=None)

    def ready(self, now: float) -> bool:
        return self.leader != NO_BROKER and now >= self.loading_until

    def serve(self, node: int, now: float) -> tuple[_Table, bool] | ErrorCode:
        """The table as `node` sees it, and whether `node` may change it; or the code that `node` answers with."""
        if node == self.leader:
            return (self.table, True) if now >= self.loading_until else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        deposed = self._deposed
        if deposed is not None and deposed.node == node and now < deposed.until:
            return deposed.table, False
        return ErrorCode.NOT_COORDINATOR

    def leader_according_to(self, node: int, now: float) -> int:
        deposed = self._deposed
        if deposed is not None and node in deposed.believers and now < deposed.until:
            return deposed.node
        return self.leader

    def move(self, node: int, now: float, *, loading_s: float) -> None:
        """Elect another leader. The table is kept."""
        self.leader = node
        self.loading_until = now + loading_s

    def depose(self, node: int, now: float, *, loading_s: float, stale_s: float, believers: frozenset[int]) -> None:
        """Move to `node`, and let the former leader answer from its current knowledge for `stale_s` seconds."""
        if self.leader != NO_BROKER:
            self._deposed = _Deposed(
                node=self.leader, until=now + stale_s, table=self.copied(self.table), believers=believers
            )
        self.move(node, now, loading_s=loading_s)

    def gone(self, node: int) -> None:
        """Note that a broker stopped: it answers no more, from any table."""
        if self._deposed is not None and self._deposed.node == node:
            self._deposed = None
        if self.leader == node:
            self.leader = NO_BROKER
