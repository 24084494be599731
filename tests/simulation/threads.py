"""Stand-ins for ``threading``, ``time`` and ``secrets`` on the virtual time of the current world.

`patches` puts them in place of these names in the product's modules. They also make up the product's `Runtime`.
"""

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from tests.simulation.scheduler import Scheduler, Task

T = TypeVar("T")

__all__ = ["NUMBERED_SECRETS", "SECRETS", "THREADING", "TIME", "VirtualRuntime", "scheduler", "set_scheduler"]

_current: Scheduler | None = None


def set_scheduler(new: Scheduler | None) -> None:
    global _current
    _current = new


def scheduler() -> Scheduler:
    """The scheduler of the current world."""
    assert _current is not None, "outside of a simulation"
    return _current


class Lock:
    """Exclusive without blocking, because no thread waits while holding it. Acquiring it may let other threads run
    first, unless the thread holds another one: those would enter that."""

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> bool:
        clock = scheduler()
        task = clock.task
        if task is not None:
            if not task.locks:
                clock.preempt()
            task.locks += 1
        self._depth += 1
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        task = scheduler().task
        if task is not None:
            task.locks -= 1


class Condition(Lock):
    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[Task] = []

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        clock = scheduler()
        end = None if timeout is None else clock.now + timeout
        while not predicate():
            left = None if end is None else end - clock.now
            if left is not None and left <= 0:
                return False
            task = clock.task
            assert task is not None, "a callback may not wait"
            depth, self._depth = self._depth, 0
            task.locks -= depth
            self._waiting.append(task)
            try:
                clock.suspend(left)
            finally:
                self._depth = depth
                task.locks += depth
                self._waiting.remove(task)
        return True

    def notify_all(self) -> None:
        for task in self._waiting:
            scheduler().wake(task)


class Event:
    def __init__(self) -> None:
        self._set = False
        self._changed = Condition()

    def set(self) -> None:
        self._set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        return self._changed.wait_for(self.is_set, timeout)


class Thread:
    def __init__(
        self, *, target: Callable[..., None], args: tuple[Any, ...] = (), name: str = "", daemon: bool = False
    ) -> None:
        self._body = lambda: target(*args)
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        clock = scheduler()
        assert clock.running is not None
        self._task = clock.spawn(clock.running, self._name, self._body)
        self._task.thread = self

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.over

    def join(self, timeout: float | None = None) -> None:
        clock = scheduler()
        assert clock.task is not None
        assert self._task is not None
        end = None if timeout is None else clock.now + timeout
        waiters = self._task.waiters
        while not self._task.over and (end is None or clock.now < end):
            waiters.append(clock.task)
            try:
                clock.suspend(None if end is None else end - clock.now)
            finally:
                waiters.remove(clock.task)


class BoundedSemaphore:
    def __init__(self, value: int) -> None:
        self._left = value

    def acquire(self, *, blocking: bool) -> bool:
        assert not blocking, "no thread waits for one here"
        if not self._left:
            return False
        self._left -= 1
        return True

    def release(self) -> None:
        self._left += 1


class VirtualThreading:
    """The names of ``threading`` that the product uses."""

    BoundedSemaphore = BoundedSemaphore
    Condition = Condition
    Event = Event
    Lock = Lock
    RLock = Lock
    Thread = Thread

    @staticmethod
    def current_thread() -> object:
        task = scheduler().task
        return None if task is None else task.thread

    @staticmethod
    def main_thread() -> object:
        return None


class VirtualTime:
    @staticmethod
    def monotonic() -> float:
        return scheduler().now

    @staticmethod
    def perf_counter() -> float:
        return scheduler().now

    @staticmethod
    def time() -> float:
        return scheduler().now

    @staticmethod
    def sleep(seconds: float) -> None:
        scheduler().sleep(seconds)


class VirtualSecrets:
    @staticmethod
    def token_hex(size: int) -> str:
        return f"{scheduler().random.getrandbits(size * 8):0{size * 2}x}"

    @staticmethod
    def randbelow(bound: int) -> int:
        return scheduler().random.randrange(bound)


class NumberedSecrets:
    """Tokens without a draw from the world's random numbers, which would change the worlds of all seeds."""

    @staticmethod
    def token_hex(size: int) -> str:
        world = scheduler()
        world.tokens += 1
        return f"{world.tokens:0{size * 2}x}"


THREADING = VirtualThreading()
TIME = VirtualTime()
SECRETS = VirtualSecrets()
NUMBERED_SECRETS = NumberedSecrets()


class VirtualWorker:
    """One thread that executes the calls it receives, in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[Callable[[], None]] = deque()
        self._busy = False
        self._changed = Condition()
        self._started = False
        self._closed = False

    def submit(self, call: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._calls.append(call)
        if not self._started:
            self._started = True
            Thread(target=self._run, name=self._name).start()
        self._changed.notify_all()

    def close(self, *, wait: bool) -> None:
        self._closed = True
        self._calls.clear()
        self._changed.notify_all()
        if wait:
            self._changed.wait_for(lambda: not self._busy)

    def _run(self) -> None:
        while True:
            self._changed.wait_for(lambda: bool(self._calls) or self._closed)
            if not self._calls:
                return
            call = self._calls.popleft()
            self._busy = True
            try:
                call()
            finally:
                self._busy = False
                self._changed.notify_all()


class VirtualRuntime:
    """The driver's `Runtime`."""

    def monotonic(self) -> float:
        return scheduler().now

    def sleep(self, seconds: float) -> None:
        scheduler().sleep(seconds)

    def token(self) -> str:
        return SECRETS.token_hex(16)

    def lock(self) -> Lock:
        return Lock()

    def condition(self) -> Condition:
        return Condition()

    def worker(self, name: str) -> VirtualWorker:
        return VirtualWorker(name)

    def beside(self, call: Callable[[], T]) -> Callable[[], T]:
        """Make the call when its result is needed: any order is possible."""
        return call
