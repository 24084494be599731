"""Virtual time: greenlets and callbacks on one heap, ordered by time and then at random.

Everything that runs belongs to a process. A process can be killed (none of its code ever runs again), or stopped and
continued (as by SIGSTOP: its time-outs have expired when it wakes). One ``random.Random`` orders events of the same
moment, so a seed is a schedule.
"""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

__all__ = ["Process", "Scheduler", "Task"]

EPOCH = 1_000.0
"""Monotonic seconds at which every world begins."""


class Process:
    """What can be killed, stopped and continued: a driver, a worker, the coordinator, the brokers."""

    __slots__ = ("alive", "died", "kind", "local", "name", "paused", "stash", "tasks")

    def __init__(self, name: str, kind: str, died: "Callable[[Process], None]" = lambda _process: None) -> None:
        self.name = name
        self.kind = kind
        self.died = died
        """Called once, after it was killed."""
        self.alive = True
        self.paused = False
        self.tasks: list[Task] = []
        self.stash: list[Any] = []
        """Events that became due while the process was stopped."""
        self.local: dict[Any, Any] = {}
        """What the product's modules keep in globals, per process."""

    def __repr__(self) -> str:
        return self.name


class Task:
    """A thread of a process."""

    __slots__ = ("due", "glet", "locks", "name", "process", "thread", "waiters")

    def __init__(self, process: Process, name: str, body: Callable[[], None], hub: greenlet) -> None:
        self.process = process
        self.name = name
        self.glet = greenlet(body, hub)
        self.due = 0
        """The number of its only valid entry on the heap."""
        self.waiters: list[Task] = []
        self.locks = 0
        """How many it holds."""
        self.thread: object = self
        """What ``threading.current_thread()`` returns in it."""

    @property
    def over(self) -> bool:
        return bool(self.glet.dead)


class Scheduler:
    """The clock, the heap and the random numbers of one world."""

    def __init__(self, random: Random) -> None:
        self.now = EPOCH
        self.random = random
        self.tokens = 0
        """Tokens that were numbered instead of drawn."""
        self.steps = 0
        self.running: Process | None = None
        """The process whose code is running; None outside of all processes."""
        self.task: Task | None = None
        """The running thread; None in a callback."""
        self.preemption = 0.0
        """The fraction of lock acquisitions at which another thread runs first."""
        self._hub = getcurrent()
        self._heap: list[tuple[float, float, int, Any]] = []
        self._count = 0
        self._dying: list[Process] = []
        self._ended = False
        self.outside = Process("outside", "world")
        """Owns what happens outside of all processes."""

    # -- what processes use

    def spawn(self, process: Process, name: str, body: Callable[[], None], delay: float = 0.0) -> Task:
        """Start a new thread of ``process``."""
        self.require_alive()
        task = Task(process, name, body, self._hub)
        process.tasks.append(task)
        self.wake(task, delay)
        return task

    def call(self, process: Process, delay: float, function: Callable[[], None]) -> None:
        """Run ``function`` in ``process`` after ``delay`` seconds, unless it is dead by then. ``function`` must not
        wait."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self.random.random(), self._count, (process, function)))

    def wake(self, task: Task, delay: float = 0.0) -> None:
        """Let ``task`` run after ``delay`` seconds, instead of when it would have run."""
        self._count = task.due = self._count + 1
        heapq.heappush(self._heap, (self.now + delay, self.random.random(), task.due, task))

    def suspend(self, seconds: float | None) -> None:
        """Wait until woken, at most ``seconds``. Raises GreenletExit in a killed process."""
        task = self.task
        if task is None:
            raise RuntimeError("a callback may not wait")
        if task.process.alive:
            if seconds is not None:
                self.wake(task, seconds)
            self._hub.switch()
        if not task.process.alive:
            raise GreenletExit

    def sleep(self, seconds: float) -> None:
        self.suspend(max(0.0, seconds))

    def preempt(self) -> None:
        """Sometimes let another thread run first."""
        if self.preemption and self.task is not None and self.random.random() < self.preemption:
            self.sleep(self.random.random() * 0.01)

    def require_alive(self) -> None:
        """Raises GreenletExit in a killed process, so that it cannot change the world any more."""
        if self._ended or (self.running is not None and not self.running.alive):
            raise GreenletExit

    # -- what happens to processes

    def kill(self, process: Process) -> None:
        """Kill ``process``, as by SIGKILL. If it is running, the caller must raise GreenletExit."""
        if process.alive:
            process.alive = False
            self._dying.append(process)

    def pause(self, process: Process) -> None:
        process.paused = True

    def resume(self, process: Process) -> None:
        process.paused = False
        stash, process.stash = process.stash, []
        for entry in stash:
            if isinstance(entry, Task):
                self.wake(entry)
            else:
                self.call(process, 0.0, entry)

    # -- the loop

    def run(self, until: float, over: Callable[[], bool]) -> bool:
        """Run events until ``over()`` (checked after every step) or until the clock reads ``until``. True when over."""
        heap = self._heap
        while True:
            if self._dying:
                self._bury()
            if over():
                return True
            if not heap or heap[0][0] > until:
                self.now = until
                return False
            at, _, number, what = heapq.heappop(heap)
            if isinstance(what, Task):
                process = what.process
                if what.due != number or not process.alive:
                    continue
                self.now = max(self.now, at)
                if process.paused:
                    process.stash.append(what)
                    continue
                self.steps += 1
                self.running, self.task = process, what
                what.glet.switch()
                if what.glet.dead:
                    process.tasks.remove(what)
                    for waiter in what.waiters:
                        self.wake(waiter)
            else:
                process, function = what
                if not process.alive:
                    continue
                self.now = max(self.now, at)
                if process.paused:
                    process.stash.append(function)
                    continue
                self.steps += 1
                self.running, self.task = process, None
                try:
                    function()
                except GreenletExit:
                    if process.alive:
                        raise
            self.running = self.task = None

    def end(self, processes: list[Process]) -> None:
        """Discard everything."""
        self._ended = True
        for process in processes:
            self.kill(process)
        self._bury()
        self._heap.clear()

    def _bury(self) -> None:
        """End the threads of dead processes. Their ``finally`` blocks run, but anything that touches the world raises
        again."""
        while self._dying:
            process = self._dying.pop()
            if not self._ended:
                process.died(process)
            tasks, process.tasks = process.tasks, []
            process.stash.clear()
            for task in tasks:
                if not task.glet.dead:
                    self.running, self.task = process, task
                    task.glet.throw(GreenletExit)
            self.running = self.task = None
