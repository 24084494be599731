"""The listed summary of a job: its durable state, what it waits for, and how old its oldest transaction is."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from onceward.coordinator.service.engine import Engine
from onceward.coordinator.service.orphans import Orphans
from onceward.coordinator.service.reports import Report, Reports
from onceward.coordinator.store.reading import LastCompleted
from onceward.protocol.committing import Age
from onceward.protocol.read_progress import ReadProgress
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus
from onceward.protocol.values import NO_CHECKPOINT, JobName
from onceward.protocol.waits import waits
from onceward.wire.rows import JobProgress, JobSummary, JobWait

__all__ = ["JobSummaries"]

_TIME_WAS_SET = timedelta(seconds=1)
_NO_PROCESS = (
    "no process has this store, so nothing is read; start the job's program, or its coordinator if it has its own"
)


class JobSummaries:
    """Combines the protocol's state, the drivers' reports, and the coordinator's work for jobs without a driver."""

    def __init__(
        self,
        engine: Engine,
        reports: Reports,
        orphans: Orphans | None,
        *,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        temporary: bool = False,
    ) -> None:
        """``temporary``: the coordinator is there only for a command that found no other process at the store."""
        self._engine = engine
        self._reports = reports
        self._orphans = orphans
        self._wall = wall
        self._temporary = temporary
        self._known_zero: datetime | None = None

    def states(self) -> list[JobState]:
        """The published states of all jobs. May be called in any thread."""
        return self._engine.states()

    def now(self) -> float:
        """Monotonic seconds, on the clock of the states."""
        return self._engine.clock()

    def oldest(self, state: JobState) -> Age | None:
        """The job's oldest pre-committed, unsettled transaction; None if none is known. Decodes like :meth:`look`."""
        self.look([state])
        return self._oldest(state, self._report(state), self._engine.clock())

    def look(self, states: Iterable[JobState]) -> None:
        """Find the oldest transactions of jobs without a driver, for :meth:`of`. Decodes all documents of an unsettled
        checkpoint once: call it in a thread."""
        for state in states:
            if self._orphans is not None and not state.durable.driven:
                self._orphans.look(state.durable)

    def reading(self, job: JobName) -> ReadProgress | None:
        """How far the driver of ``job`` last reported to have read; None if it is unknown. Raises UnknownJobError."""
        report = self._report(self._engine.state(job))
        return report.progress if report is not None else None

    def of(self, job: JobName, last: LastCompleted) -> JobSummary:
        """The summary of ``job``, whose newest completed checkpoint is ``last``. Raises UnknownJobError."""
        state, now = self._engine.state(job), self._engine.clock()
        report = self._report(state)
        summary = replace(
            self.stored(job, last),
            orphan=self._orphans.doing(job) if self._orphans is not None else "",
            waits=tuple(self._waits(state, last, report, now)),
            oldest_transaction=self._oldest(state, report, now),
            progress=self._progress(report) if report is not None else None,
            machine=report.machine if report is not None else "",
        )
        return _left(summary) if self._temporary and _is_away(state) else summary

    def stored(self, job: JobName, last: LastCompleted) -> JobSummary:
        """What of it is in the store: nothing that a driver reports or that is measured. Raises UnknownJobError."""
        durable = self._engine.state(job).durable
        return JobSummary(
            job=job,
            status=durable.shown_status,
            status_detail=durable.status_detail,
            generation=durable.generation,
            last_checkpoint=durable.last_id,
            last_completed=last.id,
            last_completed_at=last.at,
            settled=durable.settled,
            ending=durable.ending,
            failures=durable.failures_in_row,
            failure=durable.failure,
            open_requests=tuple(durable.open_requests),
            unreadable=durable.unreadable,
            restore_from=durable.restore.source.id if durable.restore is not None else NO_CHECKPOINT,
            restore_reason=durable.restore.reason if durable.restore is not None else "",
            orphan="",
            unacknowledged_losses=sum(len(loss.slots) for loss in durable.losses),
            waits=(),
            oldest_transaction=None,
            takeover_permitted=durable.driven and durable.takeover == durable.generation,
            adoption_permitted=durable.adoption,
            gone_outputs=durable.gone,
        )

    def _report(self, state: JobState) -> Report | None:
        """The latest report of the driver that owns the job; None if there is none."""
        durable = state.durable
        return self._reports.of(durable.job, durable.generation) if durable.driven else None

    def _progress(self, report: Report) -> JobProgress | None:
        reading = report.progress
        if reading is None:
            return None
        return JobProgress(
            lag=reading.lag,
            measured_at=self._zero() + timedelta(seconds=report.at) - reading.measured_ago,
            records_per_second=reading.records_per_second,
            recent_lag=report.recent_lag,
            recent_records_per_second=report.recent_rates,
        )

    def _waits(self, state: JobState, last: LastCompleted, report: Report | None, now: float) -> Iterator[JobWait]:
        zero = self._zero()
        for wait in waits(state):
            decided_at = last.at or zero + timedelta(seconds=now)
            since = decided_at if wait.since is None else zero + timedelta(seconds=wait.since)
            yield JobWait(what=wait.what, since=since)
        for what, for_s in self._troubles(state, report, now):
            yield JobWait(what=what, since=zero + timedelta(seconds=now - for_s))

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
                what = (
                    f"{one.link}{'' if one.held else ', which does not answer the driver'} ({one.waiting}: {one.why})"
                )
                yield what, one.for_s + now - report.at
        elif state.durable.orphaned and not state.durable.settled and self._orphans is not None:
            for trouble in self._orphans.links.troubles():
                yield f"{trouble.link}, which does not answer the coordinator ({trouble.why})", trouble.for_s

    def _oldest(self, state: JobState, report: Report | None, now: float) -> Age | None:
        if report is not None and report.oldest is not None:
            return replace(report.oldest, open_for=report.oldest.open_for + timedelta(seconds=now - report.at))
        if state.durable.driven or self._orphans is None:
            return None
        return self._orphans.oldest(state.durable)


def _is_away(state: JobState) -> bool:
    """True for a job whose driver is expected and not connected."""
    durable, session = state.durable, state.session
    return (durable.driven or durable.awaits_driver) and (session is None or session.stream_lost_at is not None)


def _left(summary: JobSummary) -> JobSummary:
    """Show no job as running that cannot run. Waits that began with the command say nothing."""
    return replace(
        summary,
        status=JobStatus.SUSPENDED,
        status_detail="; ".join(filter(None, (summary.status_detail, _NO_PROCESS))),
        waits=tuple(wait for wait in summary.waits if wait.since is None),
    )
