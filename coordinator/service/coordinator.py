"""A coordinator in its term: everything that works on one open store."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import grpc

from onceward.common.errors import StoreError
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.engine import Engine
from onceward.coordinator.service.group_commit import GroupCommit
from onceward.coordinator.service.job_summaries import JobSummaries
from onceward.coordinator.service.observer import Observer
from onceward.coordinator.service.operators import operator_service
from onceward.coordinator.service.orphans import Orphans
from onceward.coordinator.service.participants import participant_service
from onceward.coordinator.service.peers import OPEN, Guard
from onceward.coordinator.service.reports import Reports
from onceward.coordinator.service.systems import Systems
from onceward.coordinator.service.watchers import Watchers
from onceward.coordinator.store.store import Store
from onceward.protocol.status import JobStatus
from onceward.protocol.values import JobName
from onceward.wire.rows import CoordinatorDescription, CoordinatorRole, Standby

__all__ = ["Coordinator"]


class Coordinator:
    """Serves the jobs of a store from :meth:`start` to :meth:`stop`, or until the store fails or another one leads.

    It is made in any thread, and reads all jobs: that takes seconds when there are thousands. Raises StoreError when
    the store cannot be read.

    :param systems: used to settle jobs without a driver.
    :param temporary: only for a command that found no other process at the store.
    """

    def __init__(
        self,
        store: Store,
        *,
        systems: Systems | None,
        checkers: Checkers,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        guard: Guard = OPEN,
        observer: Observer | None = None,
        temporary: bool = False,
    ) -> None:
        self.store = store
        self._may_view = guard.may_view
        self._watchers = Watchers()
        self._failed = asyncio.Event()
        completed, unfinished = ({}, ()) if observer is None else (store.last_completed_by_job(), store.unfinished())
        # last, because leases begin with it
        self.engine = Engine(
            store,
            clock=clock,
            wall=wall,
            checkers=checkers,
            changed=self._changed,
            failed=self._failed.set,
            calling=lambda: guard.calling,
        )
        store.limit_silence()
        self._group_commit = GroupCommit(self.engine, drivers=lambda: self._watchers.count)
        self._orphans: Orphans | None = None
        if systems is not None:
            self._orphans = Orphans(self.engine, self._group_commit, systems, wall=wall)
        reports = Reports()
        summaries = JobSummaries(self.engine, reports, self._orphans, wall=wall, temporary=temporary)
        self.services: tuple[grpc.GenericRpcHandler, ...] = (
            participant_service(self.engine, self._watchers, self._group_commit.handle, reports, guard),
            operator_service(self.engine, self._watchers, self._group_commit, summaries, guard),
        )
        self._observer = self.engine.observer = observer
        if observer is not None:
            at = {job: last.at for job, last in completed.items() if last.at is not None}
            observer.attached(summaries, at, store.term.number, unfinished)

    def start(self) -> None:
        self._group_commit.start()
        self._group_commit.keep_lead()
        if self._orphans is not None:
            self._orphans.start()

    async def confirm(self) -> None:
        """Return when it is certain that no other coordinator leads. Raises StoreError."""
        await self._group_commit.confirm()

    async def describe(self, itself: CoordinatorDescription) -> CoordinatorDescription:
        """Add what only the one that leads knows. Raises StoreError."""
        await self.confirm()
        may_view = self._may_view()

        def show(standbys: tuple[Standby, ...] | None) -> CoordinatorDescription:
            known = (one.durable for one in self.engine.states() if one.durable.status is not JobStatus.FORGOTTEN)
            return replace(
                itself,
                role=CoordinatorRole.LEADS,
                detail="",
                leader=self.store.leader,
                standbys=standbys,
                store=self.store.kind.value,
                shared=self.store.kind.shared,
                store_id=self.store.store_id,
                commits=self.engine.commits.summary(),
                drivers=self._watchers.count,
                jobs=sum(may_view is None or may_view(durable.job) for durable in known),
            )

        return await self._group_commit.read(lambda store: store.standbys(), show)

    async def failed(self) -> None:
        """Return once the store has failed, or another coordinator leads; see ``engine.failure``."""
        await self._failed.wait()

    async def stop(self) -> None:
        """End the streams and finish the calls that have arrived; later ones raise StoreError. Each decision is made
        completely or not at all."""
        if self._orphans is not None:
            await self._orphans.stop()
        self._watchers.stop()
        await self._group_commit.stop()
        if self._observer is not None:
            self._observer.detached()
        with contextlib.suppress(StoreError):  # the history may miss some entries
            self.engine.tidy()

    def _changed(self, job: JobName) -> None:
        self._watchers.wake(job)
        if self._orphans is not None:
            self._orphans.changed(job)
        self._group_commit.hurry()
