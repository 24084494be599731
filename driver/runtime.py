"""Time, threads and random text for the driver: everything that a test replaces to run a generation on its own clock.
The clients of Kafka and of the coordinator are not included; they bring their own."""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, TypeVar

__all__ = ["THREADS", "Condition", "Runtime", "Threads", "Worker"]

T = TypeVar("T")

_BESIDE = 256
"""Threads, at most: the systems of many jobs in one process may not answer for a while."""


class Condition(Protocol):
    """The part of ``threading.Condition`` that is used here; its lock is reentrant."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Worker(Protocol):
    """One thread that makes the submitted calls in order."""

    def submit(self, call: Callable[[], None]) -> None: ...

    def close(self, *, wait: bool) -> None:
        """Drop calls that have not begun; with ``wait``, return when the running call has finished."""


class Runtime(Protocol):
    """What a generation needs from its process."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""

    def sleep(self, seconds: float) -> None: ...

    def token(self) -> str:
        """Return unique random text."""

    def lock(self) -> AbstractContextManager[object]: ...

    def condition(self) -> Condition: ...

    def worker(self, name: str) -> Worker:
        """Return a worker; its thread starts with the first call."""

    def beside(self, call: Callable[[], T]) -> Callable[[], T]:
        """Start ``call`` beside the caller's thread. Return a function that waits for it and returns its result, or
        raises its error."""


class Threads:
    """The runtime for production."""

    def __init__(self) -> None:
        # kept: to start a thread takes 3 ms while other threads are busy, and each checkpoint needs one
        self._beside = ThreadPoolExecutor(_BESIDE, thread_name_prefix="onceward-beside")

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

    def beside(self, call: Callable[[], T]) -> Callable[[], T]:
        return self._beside.submit(call).result


class _PoolOfOne:
    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, call: Callable[[], None]) -> None:
        self._pool.submit(call)

    def close(self, *, wait: bool) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=True)


THREADS = Threads()
