"""Runs blocking work beside the event loop, in threads that never delay the end of the process.

Work at the brokers may be cut off at any point, as by a crash, so the process need not wait for it.
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
    """Runs at most ``limit`` tasks per lane, further ones wait; a stuck lane blocks no other.

    :param limit: threads of one lane.
    """

    def __init__(self, limit: int) -> None:
        self._free: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(limit))

    async def run(self, lane: str, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread. If this is cancelled, the thread continues and its result is discarded."""
        free = self._free[lane]
        await free.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def ended(result: Callable[[], None]) -> None:
            free.release()  # only now: a thread without a waiter still counts
            if not done.done():
                result()

        def task() -> None:
            try:
                value = work()
            except Exception as error:  # noqa: BLE001 - raised again where it is awaited
                failure = error
                report(lambda: done.set_exception(failure))
            else:
                report(lambda: done.set_result(value))

        def report(result: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended, result)

        threading.Thread(target=task, name="onceward-lane", daemon=True).start()
        return await done
