"""Group commit: while the disk takes one write, arriving events of all jobs are worked out and become the next write.

A disk takes about as long for one step as for a hundred. A coordinator that waited for each step could serve only a few
dozen jobs. An answer, instruction or listing goes out only when everything that it rests on is on disk.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from onceward.common.errors import StoreError
from onceward.coordinator.service.documents import Vetted
from onceward.coordinator.service.engine import CommitBatch, Engine
from onceward.coordinator.service.turns import Turns
from onceward.coordinator.store.listing import Listings
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Answer
from onceward.protocol.events import Event
from onceward.protocol.values import JobName

__all__ = ["GroupCommit", "Handle"]

T = TypeVar("T")
R = TypeVar("R")


class Handle(Protocol):
    """Pass an event of the given size in bytes to the engine. It takes effect with the call, awaited or not. Raises
    UnknownJobError, StoreError."""

    def __call__(
        self, job: JobName, event: Event, size: int = 0, vetted: Vetted | None = None, /
    ) -> Awaitable[Answer]: ...


_STOPPED = "The coordinator has stopped. Nothing of the call was carried out."
_SOONEST_S = 0.001
_LOOP_LATE_S = 0.25
"""How late the event loop confirms the lead before a thread does."""
_LOOP_HANGS_S = 10.0
"""How long the event loop may be busy before another coordinator is to lead."""
_DUE_PER_BATCH = 32
"""Jobs on which time acts in one batch, so that a thousand due jobs do not delay the calls."""
_APART_OF_DRIVER_S, _APART_S = 5e-5, 0.01
"""How far apart writes begin: for each connected driver, and at most. A write costs more CPU than a step of it, and
hundreds of drivers would have one for every step or two. A few drivers wait for nothing."""
_CHORES_PER_WRITE = 16
"""Jobs whose chores share one write."""
_CHORES_LATE_S = 1.0
"""How long chores give way to batches. After that, some are done after each batch, however many calls wait: without
retention a busy coordinator would fill its disk."""


@dataclass(frozen=True)
class _Given:
    """An answer that is ready at once."""

    answer: Answer

    def __await__(self) -> Generator[None, None, Answer]:
        yield from ()
        return self.answer


class GroupCommit:
    """Runs all events of an engine on one event loop. A separate thread waits for the disk.

    :param drivers: how many are connected.
    """

    def __init__(self, engine: Engine, drivers: Callable[[], int] = lambda: 0) -> None:
        self._engine = engine
        self._drivers = drivers
        self._began_write = -math.inf
        self._next = CommitBatch()
        self._waiting: list[tuple[asyncio.Future[Answer], Answer]] = []
        self._turns = Turns()
        self._lists = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onceward-listings")
        self._reader = engine.reader()
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onceward-disk")
        self._wake = asyncio.Event()
        self._sleeps_until = -math.inf
        self._stopping = False
        self._stopped = False
        self._lead_over = threading.Event()
        self._turned = engine.clock()
        """When the loop was seen last. It turns at least as often as the lead is to be confirmed."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Commit batches until :meth:`stop`, or until the store fails."""
        self._task = asyncio.create_task(self._run())

    def keep_lead(self) -> None:
        """Until :meth:`stop`, confirm the lead also while the event loop is busy: answers wait for the loop, but the
        database does not. A loop that hangs loses the lead."""
        if math.isfinite(self._engine.leads_for):
            threading.Thread(target=self._keep_lead, name="onceward-lead", daemon=True).start()

    def _keep_lead(self) -> None:
        while not self._lead_over.wait(max(self._engine.confirm_in + _LOOP_LATE_S, _SOONEST_S)):
            hangs = self._engine.clock() - self._turned > _LOOP_HANGS_S
            if self._engine.confirm_in <= -_LOOP_LATE_S and not hangs:
                try:
                    confirming = self._disk.submit(self._engine.ask, lambda store: store.confirm())
                    confirming.result(timeout=_LOOP_HANGS_S)
                except (
                    StoreError,
                    RuntimeError,
                    TimeoutError,
                ):  # the loop learns of it from the store, which may be closed
                    return

    async def stop(self) -> None:
        """Finish the work in progress. Later calls raise StoreError."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task
        async with self._turns.of_writer():  # a query may run
            self._lead_over.set()
            self._disk.shutdown()
            if self._reader is not None and not self._stopped:
                self._lists.submit(self._reader.close)
            self._lists.shutdown(wait=False)  # a slow listing must not delay the next leader
            self._stopped = True

    def handle(self, job: JobName, event: Event, size: int = 0, vetted: Vetted | None = None) -> Awaitable[Answer]:
        """See ``Handle``."""
        if self._stopped:
            raise StoreError(_STOPPED)
        rested, batch = self._engine.at_rest(job), CommitBatch()
        answer = self._engine.work_out(batch, job, event, size=size, vetted=vetted)
        if rested and not batch.steps:
            self._engine.publish(batch)
            return _Given(answer)
        self._next.add(batch)
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((future, answer))
        self._wake.set()
        return future

    async def read(self, query: Callable[[Store], T], show: Callable[[T], R]) -> R:
        """Query the store while nothing is written and return ``show(result)``: what is published then matches the
        store.

        The disk's thread runs the query, so that a long listing delays no call. Raises StoreError.
        """
        async with self._turns.of_reader():
            return show(await self._asked(query))

    async def read_beside(self, query: Callable[[Listings], T]) -> T:
        """Query what is stored, for people: it need not match what is published. Raises StoreError.

        Where the database has a connection for that, writes do not wait for it, and a failure is the call's alone.
        """
        if self._reader is None:
            return await self.read(query, lambda found: found)
        if self._engine.failure is not None:
            raise self._engine.failure
        if self._stopping:
            raise StoreError(_STOPPED)
        return await asyncio.get_running_loop().run_in_executor(self._lists, query, self._reader)

    async def _asked(self, query: Callable[[Store], T]) -> T:
        """In the caller's turn."""
        if self._engine.failure is not None:
            raise self._engine.failure
        if self._stopped:
            raise StoreError(_STOPPED)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._disk, self._engine.ask, query)
        except StoreError as error:
            self._engine.fail(error)
            raise

    async def confirm(self) -> None:
        """Return when it is certain that no other coordinator leads. Raises StoreError."""
        while self._engine.leads_for <= 0:
            async with self._turns.of_writer():  # every answer waits for it
                if self._engine.leads_for <= 0:
                    await self._asked(lambda store: store.confirm())

    def hurry(self) -> None:
        """Wake the loop, because deadlines may have changed."""
        if self._engine.failure is not None or self._due() < self._sleeps_until:
            self._wake.set()

    async def _run(self) -> None:
        try:
            await self._commit_batches()
        except StoreError as error:
            self._engine.fail(error)
        except Exception as error:  # noqa: BLE001 - otherwise time would stop for all jobs, unnoticed
            self._engine.fail(_unexpected(error))
        failure = self._engine.failure
        if failure is not None:
            self._refuse(self._waiting, failure)

    async def _commit_batches(self) -> None:
        engine = self._engine
        while engine.failure is None:
            self._wake.clear()
            self._turned = engine.clock()
            engine.due(self._next, _DUE_PER_BATCH)
            busy = bool(self._next.states or self._waiting)
            if busy:
                await self._keep_apart()
                await self._commit_batch()
            if engine.confirm_in <= 0:
                await self._on_disk(lambda: engine.ask(lambda store: store.confirm()))
            if chores := engine.chores(engine.clock() - (_CHORES_LATE_S if busy else 0.0), _CHORES_PER_WRITE):
                await self._on_disk(lambda chores=chores: engine.do(chores))  # type: ignore[misc]
            elif busy:
                continue
            elif self._stopping:
                return
            else:
                await self._sleep()

    async def _keep_apart(self) -> None:
        """Let more steps join the batch, if the last write began just now."""
        now = asyncio.get_running_loop().time()
        wait = self._began_write + min(self._drivers() * _APART_OF_DRIVER_S, _APART_S) - now
        if wait > 0:
            await asyncio.sleep(wait)
        self._began_write = max(now, now + wait)

    async def _commit_batch(self) -> None:
        batch, waiting = self._next, self._waiting
        self._next, self._waiting = CommitBatch(), []
        if batch.steps:
            await self._on_disk(lambda: self._engine.keep(batch), then=lambda: self._engine.publish(batch))
        else:
            self._engine.publish(batch)
        if self._engine.failure is not None:
            self._refuse(waiting, self._engine.failure)
            return
        for future, answer in waiting:
            if not future.done():  # else the caller has gone
                future.set_result(answer)

    def _refuse(self, waiting: "list[tuple[asyncio.Future[Answer], Answer]]", failure: StoreError) -> None:
        for future, _ in waiting:
            if not future.done():
                future.set_exception(failure)
                future.exception()  # marks it as retrieved: perhaps no caller waits for it
        waiting.clear()

    async def _on_disk(self, write: Callable[[], None], then: Callable[[], None] = lambda: None) -> None:
        """Run ``write`` in the disk's thread, then ``then``. A failure is kept in ``engine.failure``, which ends the
        process."""
        async with self._turns.of_writer():
            try:
                await asyncio.get_running_loop().run_in_executor(self._disk, write)
            except StoreError as error:
                self._engine.fail(error)
            except Exception as error:  # noqa: BLE001 - everything worked out since builds on this write
                self._engine.fail(_unexpected(error))
            else:
                then()

    async def _sleep(self) -> None:
        now = self._engine.clock()
        self._sleeps_until = min(self._due(), now + self._engine.confirm_in)
        wait = max(self._sleeps_until - now, _SOONEST_S)
        try:
            # Not wait_for: before Python 3.12 it swallows a cancellation that coincides with the event, and stopping
            # would hang.
            async with asyncio.timeout(wait if math.isfinite(wait) else None):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            self._sleeps_until = -math.inf

    def _due(self) -> float:
        deadline = self._engine.next_deadline()
        return math.inf if deadline is None else deadline


def _unexpected(error: Exception) -> StoreError:
    return StoreError(
        f"What had to be stored could not be: {error!r}. Nothing is built on it: the coordinator ends, and its next "
        "start reads what is on disk."
    )
