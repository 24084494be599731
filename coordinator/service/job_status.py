"""What a job waits for, and how old its oldest transaction is: the live part of a listing."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from onceward.coordinator.protocol.state import JobState
from onceward.coordinator.protocol.values import JobName
from onceward.coordinator.protocol.waits import waits
from onceward.coordinator.service.engine import Engine
from onceward.coordinator.service.orphans import Orphans
from onceward.coordinator.service.reports import Report, Reports
from onceward.coordinator.store.records import JobRecord
from onceward.coordinator.v1 import operators_pb2 as pb
from onceward.coordinator.v1 import participants_pb2
from onceward.coordinator.wire.limits import MAX_TEXT
from onceward.coordinator.wire.values import age_to_wire

__all__ = ["LiveStatus"]

_TIME_WAS_SET = timedelta(seconds=1)


class LiveStatus:
    """Combines the protocol's state, the drivers' reports, and the coordinator's work for jobs without a driver."""

    def __init__(
        self,
        engine: Engine,
        reports: Reports,
        orphans: Orphans | None,
        *,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._engine = engine
        self._reports = reports
        self._orphans = orphans
        self._wall = wall
        self._known_zero: datetime | None = None

    def tell(self, job: JobName, record: JobRecord, summary: pb.JobSummary) -> None:
        """Add the live status to ``summary``."""
        state = self._engine.state(job)
        now, zero = self._engine.clock(), self._zero()
        report = self._reports.of(job, state.durable.generation) if state.durable.driven else None

        def since(seconds_ago: float) -> int:
            return round((zero + timedelta(seconds=now - seconds_ago)).timestamp() * 1000)

        for wait in waits(state):
            decided = round(record.completed_at.timestamp() * 1000) if record.completed_at is not None else since(0)
            summary.waits.add(what=wait.what, since_ms=decided if wait.since is None else since(now - wait.since))
        for what, seconds in self._troubles(state, report, now):
            summary.waits.add(what=what[:MAX_TEXT], since_ms=since(seconds))
        if self._orphans is not None:
            summary.orphan = self._orphans.doing(job)[:MAX_TEXT]
        oldest = self._oldest(state, report, now)
        if oldest is not None:
            summary.oldest_transaction.CopyFrom(oldest)

    def _zero(self) -> datetime:
        """The wall-clock time at which the engine's clock was 0. Constant unless the machine's time was set: unchanged
        values must not appear to change."""
        zero = self._wall() - timedelta(seconds=self._engine.clock())
        if self._known_zero is None or abs(zero - self._known_zero) > _TIME_WAS_SET:
            self._known_zero = zero
        return self._known_zero

    def _troubles(self, state: JobState, report: Report | None, now: float) -> Iterator[tuple[str, float]]:
        """What does not answer, and for how many seconds."""
        if report is not None:
            for one in report.troubles:
                what = f"{one.link}, which does not answer the driver ({one.waiting}: {one.why})"
                yield what, one.for_us / 1e6 + now - report.at
        elif state.durable.orphaned and not state.durable.settled and self._orphans is not None:
            for trouble in self._orphans.links.troubles():
                yield f"{trouble.link}, which does not answer the coordinator ({trouble.why})", trouble.for_s

    def _oldest(self, state: JobState, report: Report | None, now: float) -> participants_pb2.TransactionAge | None:
        if report is not None and report.oldest is not None:
            grown = participants_pb2.TransactionAge()
            grown.CopyFrom(report.oldest)
            grown.open_for_us += round((now - report.at) * 1e6)
            return grown
        if state.durable.driven or self._orphans is None:
            return None
        age = self._orphans.oldest(state.durable)
        return age_to_wire(age) if age is not None else None
