"""Blocking work beside the event loop, in threads that never hold up the end of the process.

What such a thread does at the brokers may be cut off anywhere, as by a crash; so the process need not wait for it.
"""

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

__all__ = ["ThreadLanes"]

T = TypeVar("T")


class ThreadLanes:
    """So many at a time in each lane, the others wait for their turn: a lane that is stuck holds up no other.

    :param limit: threads of one lane.
    """

    def __init__(self, limit: int) -> None:
        self._free: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(limit))

    async def run(self, lane: str, work: Callable[[], T]) -> T:
        """Do ``work`` in a thread. When this is cancelled the thread goes on by itself, and nobody hears of its end."""
        free = self._free[lane]
        await free.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def ended(result: Callable[[], None]) -> None:
            free.release()  # not before: a thread that nobody waits for is there nevertheless
            if not done.done():
                result()

        def errand() -> None:
            try:
                value = work()
            except Exception as error:  # noqa: BLE001 - raised again where it is awaited
                failure = error
                tell(lambda: done.set_exception(failure))
            else:
                tell(lambda: done.set_result(value))

        def tell(result: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended, result)

        threading.Thread(target=errand, name="onceward-errand", daemon=True).start()
        return await done
