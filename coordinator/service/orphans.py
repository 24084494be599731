"""Jobs without a driver: after the grace time the coordinator settles them, so that no reader waits.

One task per such job. It requests the next generation from the core (`protocol/orphans.py`), aborts undecided
transactions, commits decided ones, and reports the outcomes to the core as a driver would. A driver that opens the job
meanwhile gets a higher generation: the task ends, and its late calls are rejected.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from onceward.common.links import Links
from onceward.coordinator.service.engine import Engine, UnknownJobError
from onceward.coordinator.service.group_commit import GroupCommit
from onceward.coordinator.service.orphan import Orphan, Pace, Surroundings
from onceward.coordinator.service.orphan_systems import OrphanSystems
from onceward.coordinator.service.systems import Systems
from onceward.coordinator.service.thread_lanes import ThreadLanes
from onceward.protocol.answers import Answer
from onceward.protocol.committing import Age
from onceward.protocol.durable import Durable
from onceward.protocol.events import Event
from onceward.protocol.values import NO_GENERATION, Committable, CompletedCheckpoint, Generation, JobName

__all__ = ["Orphans"]

_THREADS = 8
"""The approximate number of jobs settled at the same time: threads that wait for brokers."""
_ASKED_FOR_S = 600.0
"""The brokers' longest transaction timeout is cached for this long."""


class Orphans:
    """The orphans of one coordinator. Everything runs on its event loop, except calls that wait for brokers."""

    def __init__(
        self,
        engine: Engine,
        group_commit: GroupCommit,
        systems: Systems,
        *,
        wall: Callable[[], datetime],
        pace: Pace | None = None,
    ) -> None:
        self._engine = engine
        self._group_commit = group_commit
        self.links = Links(clock=engine.clock, wall=wall)
        """Clusters that do not answer."""
        self._systems = systems
        self._wall = wall
        self._around = Surroundings(
            links=self.links,
            systems=systems,
            thread_lanes=ThreadLanes(_THREADS),
            pace=pace or Pace(),
            clock=engine.clock,
            wall=wall,
            state=engine.state,
            handle=self._handle,
            longest_open=self._longest_open,
            unattended_since=self._unattended_since,
        )
        self._known: dict[JobName, tuple[Generation, Orphan, asyncio.Task[None]]] = {}
        """Jobs without a driver, each with the last generation that it had."""
        self._oldest: dict[JobName, tuple[CompletedCheckpoint, list[tuple[str, Committable]]]] = {}
        """Of an unsettled checkpoint, the oldest committable of each sink, with the sink's kind."""
        self._longest: tuple[float, timedelta] | None = None
        """When it was fetched, and the value."""
        self._asking = asyncio.Lock()
        self._started = False

    def start(self) -> None:
        """Continue what an earlier coordinator began, and begin what is due."""
        self._started = True
        for job in self._engine.jobs():
            self.changed(job)

    async def stop(self) -> None:
        """Begin nothing more. Threads that wait for brokers are abandoned, as a crash would do."""
        self._started = False
        tasks = [task for _, _, task in self._known.values()]
        for job in list(self._known):
            self._forget(job)
        await asyncio.gather(*tasks, return_exceptions=True)

    def changed(self, job: JobName) -> None:
        """Handle any change of the job: begin or end its orphan task."""
        if not self._started:
            return
        try:
            durable = self._engine.state(job).durable
        except UnknownJobError:
            return  # its first call was rejected, which leaves no trace
        known = self._known.get(job)
        if known is not None and known[0] != durable.generation and not durable.orphaned:
            self._forget(job)  # a driver has come, and perhaps gone again
            known = None
        if durable.driven or durable.awaits_driver or durable.generation == NO_GENERATION:
            if known is not None:
                self._forget(job)
        elif known is None:
            orphan = Orphan(job, self._around)
            self._known[job] = (durable.generation, orphan, asyncio.create_task(orphan.run()))

    def doing(self, job: JobName) -> str:
        """What the coordinator does or waits for in place of the job's driver; empty if nothing."""
        known = self._known.get(job)
        return known[1].doing if known is not None else ""

    def look(self, durable: Durable) -> None:
        """Find the oldest transaction for :meth:`oldest`. Decodes all documents of an unsettled checkpoint once: call
        it in a thread."""
        completed = durable.completed
        if completed is None or completed.settled or not self._systems.names:
            self._oldest.pop(durable.job, None)
            return
        known = self._oldest.get(durable.job)
        if known is None or known[0] is not completed:
            kinds = {one.name: one.kind for one in durable.participants}
            found = [
                (kinds[name], oldest)
                for name, snapshot in completed.snapshots.items()
                if snapshot.committables
                and (oldest := self._systems.oldest(kinds[name], snapshot.committables)) is not None
            ]
            self._oldest[durable.job] = completed, found

    def oldest(self, durable: Durable) -> Age | None:
        """The age of the oldest transaction that is decided but uncommitted, for a job without a driver, as far as
        :meth:`look` has found it."""
        completed, found = self._oldest.get(durable.job, (None, []))
        if completed is None or completed is not durable.completed:
            return None
        ages = [self._systems.age(kind, one) for kind, one in found]
        return max((age for age in ages if age is not None), key=lambda age: age.open_for, default=None)

    def _forget(self, job: JobName) -> None:
        _, orphan, task = self._known.pop(job)
        self._oldest.pop(job, None)
        orphan.superseded = True
        task.cancel()

    def _handle(self, job: JobName, event: Event) -> Awaitable[Answer]:
        return self._group_commit.handle(job, event)

    async def _longest_open(self, clusters: OrphanSystems) -> timedelta:
        """The longest open time, cached: after its start a coordinator has many jobs that ended long ago."""
        async with self._asking:
            now = self._engine.clock()
            if self._longest is None or now - self._longest[0] > _ASKED_FOR_S:
                self._longest = now, await clusters.longest_open()
            return self._longest[1]

    async def _unattended_since(self, job: JobName) -> datetime:
        found = await self._group_commit.read(lambda store: store.generations(job, 1), lambda found: found)
        known = found[0].ended_at or found[0].granted_at if found else None
        return known or self._wall()  # if the row is damaged: assume that it ended now
