"""Time, threads and chance as the driver uses them: everything that a test replaces to run a generation on its own
clock. Clients of Kafka and of the coordinator bring their own.
"""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

__all__ = ["THREADS", "Condition", "Runtime", "Threads", "Worker"]


class Condition(Protocol):
    """The part of ``threading.Condition`` that is used here; its lock may be taken twice by one thread."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Worker(Protocol):
    """One thread that makes the calls it is given, in order."""

    def submit(self, call: Callable[[], None]) -> None: ...

    def close(self, *, wait: bool) -> None:
        """Drop the calls that have not begun; with ``wait`` return when the one that has is over."""


class Runtime(Protocol):
    """What a generation asks its process for."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""

    def sleep(self, seconds: float) -> None: ...

    def token(self) -> str:
        """Random text that nobody else has."""

    def lock(self) -> AbstractContextManager[object]: ...

    def condition(self) -> Condition: ...

    def worker(self, name: str) -> Worker:
        """Starts with its first call."""


class Threads:
    """The real one."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def token(self) -> str:
        return uuid.uuid4().hex

    def lock(self) -> AbstractContextManager[object]:
        return threading.Lock()

    def condition(self) -> Condition:
        return threading.Condition()  # on an RLock: a signal handler may interrupt its holder

    def worker(self, name: str) -> Worker:
        return _PoolOfOne(name)


class _PoolOfOne:
    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, call: Callable[[], None]) -> None:
        self._pool.submit(call)

    def close(self, *, wait: bool) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=True)


THREADS = Threads()
