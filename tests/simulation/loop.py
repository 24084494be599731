"""The coordinator's event loop on virtual time: asyncio's own tasks, futures, events and locks run on it unchanged."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, cast

from tests.simulation.scheduler import Process, Scheduler

__all__ = ["VirtualLoop"]

T = TypeVar("T")


class VirtualLoop:
    """The loop of one process. Callbacks run in the order of ``call_soon``, as asyncio promises."""

    def __init__(self, clock: Scheduler, process: Process) -> None:
        self._clock = clock
        self._process = process
        self._ready: deque[asyncio.Handle] = deque()
        self._planned = False
        self._self = cast(asyncio.AbstractEventLoop, self)
        """This class implements only the methods of a loop that the coordinator uses."""

    def time(self) -> float:
        return self._clock.now

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._self, context)
        self._ready.append(handle)
        if not self._planned:
            self._planned = True
            self._clock.call(self._process, 0.0, self._run)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Same as ``call_soon``: all threads share one virtual time."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._self, context)

        def due() -> None:
            if not handle.cancelled():
                self.call_soon(callback, *args, context=context)

        self._clock.call(self._process, max(0.0, when - self.time()), due)
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self._self)

    def create_task(
        self, coroutine: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[T]":
        return asyncio.Task(coroutine, loop=self._self, name=name, context=context)

    def run_in_executor(self, executor: Any, function: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        """Runs in a thread, which may wait for the disk."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                result = function(*args)
            except Exception as error:  # noqa: BLE001 - the awaiting code gets it
                self._resolve(future, None, error)
            else:
                self._resolve(future, result, None)

        self._clock.spawn(self._process, "executor", run)
        return future

    def inside(self, function: Callable[[], T]) -> T:
        """Run ``function`` as code of this loop."""
        asyncio._set_running_loop(self._self)
        try:
            return function()
        finally:
            asyncio._set_running_loop(None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore the errors of tasks that died with their process. All other errors are retrieved."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave the cancelled timer on the heap; it does nothing when due."""

    def _resolve(self, future: "asyncio.Future[T]", result: Any, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            self.inside(lambda: future.set_exception(error))
        else:
            self.inside(lambda: future.set_result(result))

    def _run(self) -> None:
        self._planned = False
        asyncio._set_running_loop(self._self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled() and self._process.alive:
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
            if self._ready and not self._planned:
                self._planned = True
                self._clock.call(self._process, 0.0, self._run)
