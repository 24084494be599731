"""Who uses the store next: what is to be written goes before what is to be read, however long that has waited.

Between two writes one reader gets its turn, so that no reader waits permanently.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

__all__ = ["Turns"]

_Queue: TypeAlias = "deque[asyncio.Future[None]]"


class Turns:
    """One user of the store at a time. Used on one event loop."""

    def __init__(self) -> None:
        self._taken = False
        self._writers: _Queue = deque()
        self._readers: _Queue = deque()

    def of_writer(self) -> AbstractAsyncContextManager[None]:
        """Wait for a turn, before all readers."""
        return self._turn(self._writers)

    def of_reader(self) -> AbstractAsyncContextManager[None]:
        """Wait for a turn, behind all writers."""
        return self._turn(self._readers)

    @asynccontextmanager
    async def _turn(self, queue: _Queue) -> AsyncIterator[None]:
        if self._taken:
            await self._wait(queue)
        self._taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, queue: _Queue) -> None:
        mine = asyncio.get_running_loop().create_future()
        queue.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # the turn came with the cancellation
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """To the next one: it is taken until that one passes it on."""
        for queue in (self._writers, self._readers):
            while queue:
                mine = queue.popleft()
                if not mine.done():  # else it was cancelled
                    mine.set_result(None)
                    return
        self._taken = False
