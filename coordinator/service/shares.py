"""Each peer's share of the store: few of its reads at a time, so that those of another peer wait behind few."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from onceward.coordinator.service.peers import Guard

__all__ = ["Shares"]

_READS = 4


class Shares:
    """Without names of peers, all of them have one share, unless another name is given."""

    def __init__(self, guard: Guard, reads: int = _READS) -> None:
        self._guard = guard
        self._reads = reads
        self._of_peer: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def one(self, name: str | None = None, at_most_s: float | None = None) -> AsyncIterator[None]:
        """Wait until the calling peer may have one more.

        :param name: whose share it is, if not the peer's.
        :param at_most_s: how long it counts.
        """
        name = self._guard.calling if name is None else name
        share = self._of_peer.get(name)
        if share is None:
            share = self._of_peer[name] = asyncio.Semaphore(self._reads)
        await share.acquire()
        counts = True

        def release() -> None:
            nonlocal counts
            if counts:
                counts = False
                share.release()

        timer = None if at_most_s is None else asyncio.get_running_loop().call_later(at_most_s, release)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            release()
