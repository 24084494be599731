"""Each peer's share of the store: few of its reads at a time, so that those of another peer wait behind few."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from onceward.coordinator.service.peers import Guard

__all__ = ["Shares"]

_READS = 4


class Shares:
    """Without names of peers, all of them have one share."""

    def __init__(self, guard: Guard, reads: int = _READS) -> None:
        self._guard = guard
        self._reads = reads
        self._of_peer: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait until the calling peer may have one more."""
        name = self._guard.calling
        share = self._of_peer.get(name)
        if share is None:
            share = self._of_peer[name] = asyncio.Semaphore(self._reads)
        async with share:
            yield
