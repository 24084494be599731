"""The staying tasks of a job, on the driver: which group runs, and where in the input it stands."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import (
    FollowedSource,
    Plan,
    SinkSession,
    Source,
    SplitFollower,
    Stays,
    writer_options,
)
from onceward.connectors.slots import StayingWriter
from onceward.connectors.tasks import CheckpointTask, check_ballots
from onceward.driver.mailbox import GenerationFailedError, Mailbox
from onceward.driver.outputs import Votes
from onceward.driver.runtime import THREADS, Runtime
from onceward.driver.staying.credentials import new_credentials
from onceward.driver.staying.group import Report, TaskGroup
from onceward.executor.link import TaskCredentials
from onceward.protocol.settings import CheckpointSettings, as_duration
from onceward.protocol.values import CheckpointId, Document, Generation, JobName, JsonObject

__all__ = ["LONGEST_INTERVAL_S", "StayingTasks", "require_short_interval"]

LONGEST_INTERVAL_S = 60.0
"""The longest time between two checkpoints: transactions stay open for as long, and hold readers back."""
_BEGIN_S = 60.0
"""Time for all tasks of a group to begin."""


def require_short_interval(settings: CheckpointSettings) -> None:
    """Raise ConfigurationError for an interval or a pause that would leave transactions open for too long."""
    for name, between in (("interval", settings.interval), ("min_pause", settings.min_pause)):
        if between is None or as_duration(between).total_seconds() > LONGEST_INTERVAL_S:
            raise ConfigurationError(
                f'tasks="staying": {name} must be at most {LONGEST_INTERVAL_S:.0f} s, because staying tasks write into '
                "open transactions until the next checkpoint, and readers wait for these. Nothing was started. Set "
                f'CheckpointSettings({name}=), or leave out tasks="staying".'
            )


class StayingJob(Protocol):
    """What starts staying tasks in Spark: :class:`CheckpointJob`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the source that the tasks read."""

    def room(self) -> int:
        """Return how many tasks can run at a time."""

    def reach(self) -> tuple[tuple[str, int], str]:
        """Return the address and port that the driver binds, and the address under which executors reach it."""

    def stay(
        self,
        slots: int,
        follow: SplitFollower,
        writers: Mapping[str, StayingWriter],
        driver: tuple[str, int],
        credentials: TaskCredentials,
    ) -> None:
        """Run one task per slot, which connect to ``driver``, until all have ended. Raises errors of Spark."""

    def cancel_staying(self) -> None:
        """Kill the tasks, from any thread."""


class StayingTasks:
    """Starts and ends groups of tasks; cuts checkpoints. Used by the driver's main thread."""

    def __init__(
        self,
        *,
        job: JobName,
        source: FollowedSource,
        sinks: Sequence[SinkSession],
        settings: CheckpointSettings,
        staying_job: Callable[[], StayingJob],
        runtime: Runtime = THREADS,
    ) -> None:
        """``staying_job``: what starts tasks; asked when the first group begins."""
        self._job, self._source, self._runtime = job, source, runtime
        self._sinks = {sink.participant.name: sink for sink in sinks}
        self._staying_job = staying_job
        interval = 0.0 if settings.interval is None else as_duration(settings.interval).total_seconds()
        self._pace = {"interval": interval, "hold": interval + settings.seconds("timeout") / 4}
        self._group: TaskGroup | None = None
        self._slots = 0
        self._base: Document | None = None
        """Where the group stood when its last checkpoint was cut, or when it began."""
        self._assigned: Document | None = None
        """The same, with partitions and ends that were found since."""
        self._cut_at = 0.0
        """When the last cut was ordered, on the runtime's monotonic clock."""
        self.finished = False
        """Nothing is left to read."""

    def go_on(self, generation: Generation, base: Document, mailbox: Mailbox, sweep: Callable[[], object]) -> Document:
        """Have tasks that read on from ``base``: those that run, if they stand there, else new ones. Return the
        positions from which they read, which may have partitions that ``base`` lacks.

        ``sweep``: aborts what the job has open and not decided. It is called before new tasks begin: an abort of the
        old ones may have failed, and the mark of a worker that serves the new ones, too, would protect what it left.

        Raises what broke the old tasks, and GenerationFailedError if they do not end in order, or new ones do not
        begin.
        """
        if self._group is not None and self._group.broken:
            failure = self._group.failure()
            self.end()
            raise failure
        if self._group is not None and base in (self._base, self._assigned):
            assert self._assigned is not None
            if not self._source.outgrown(self._assigned):
                return self._assigned
        self.end()
        sweep()
        room = self._staying_job().room()
        assignment = self._source.assign(base, room)
        self._base, self._assigned, self.finished = base, assignment.positions, assignment.finished
        if assignment.splits:
            self._start(generation, assignment.splits, mailbox)
        return assignment.positions

    @property
    def running(self) -> bool:
        """A group runs, and nothing broke it."""
        return self._group is not None and not self._group.broken

    @property
    def marks(self) -> Collection[str]:
        """The marks of the tasks that run."""
        return self._group.marks if self._group is not None else ()

    def news(self) -> bool:
        """Return whether a cut would find something, or must find out what broke."""
        return self._group is not None and (self._group.news or self._group.broken)

    def observe_held(self, seconds: float, held: float) -> None:
        """See :meth:`FollowedSource.observe_held`."""
        self._source.observe_held(seconds, held)

    def passed(self) -> bool:
        """Return whether a cut would at least move the positions: past input without records, such as markers."""
        return self._group is not None and self._group.passed

    def cut(self, checkpoint: CheckpointId) -> None:
        """Order all tasks to cut."""
        assert self._group is not None, "started before"
        self._cut_at = self._runtime.monotonic()
        options: dict[str, JsonObject] = {name: writer_options(sink, checkpoint) for name, sink in self._sinks.items()}
        self._group.cut(checkpoint, options, self._source.allowances())

    def sent(self, checkpoint: CheckpointId) -> bool:
        """Return whether all tasks have sent their records to the brokers, or one never will."""
        return self._group is None or self._group.broken or self._group.sent(checkpoint) is not None

    def answered(self, checkpoint: CheckpointId) -> bool:
        """Return whether all tasks have voted, or one never will."""
        return self._group is None or self._group.broken or self._group.reports(checkpoint) is not None

    def coming(self, checkpoint: CheckpointId) -> tuple[Votes, Plan, float]:
        """Once all have sent their records: return the votes to come, what they have read as a plan, and since when
        their transactions are open, at most, on the runtime's monotonic clock. Raises what broke the group."""
        assert self._assigned is not None
        votes, reports = self._votes_in(lambda group: group.sent(checkpoint))
        plan = self._source.reached(self._assigned, [report.reached for report in reports])
        self._base = self._assigned = plan.positions
        self.finished = plan.finished
        # a task counts from when it has heard of the cut, so not from before it was ordered
        return votes, plan, self._cut_at - max(report.open for report in reports)

    def votes(self, checkpoint: CheckpointId) -> tuple[Votes, float]:
        """Return the votes, and when the last one came, in monotonic seconds. Raises what broke the group."""
        votes, reports = self._votes_in(lambda group: group.reports(checkpoint))
        return votes, max(report.at for report in reports)

    def _votes_in(self, reports_of: Callable[[TaskGroup], Sequence[Report] | None]) -> tuple[Votes, Sequence[Report]]:
        assert self._group is not None
        reports = reports_of(self._group)
        if reports is None:
            raise self._group.failure()
        votes = check_ballots((report.ballot for report in reports), self._sinks, self._slots)
        return {name: votes[name] for name in self._sinks}, reports

    def end(self) -> None:
        """End the tasks that run. Raises GenerationFailedError if one did not end in order: it may still write."""
        if (failure := self.leave()) is not None:
            raise GenerationFailedError(
                f"The staying tasks of job {self._job} did not end in order: {failure} What they have open is "
                "aborted; the next generation fences them and reads its records again."
            )

    def leave(self) -> Exception | None:
        """End the tasks that run. Return what kept one of them from ending in order; None if all did."""
        group, self._group = self._group, None
        return None if group is None or group.end() else group.failure()

    def _start(self, generation: Generation, splits: tuple[JsonObject, ...], mailbox: Mailbox) -> None:
        task = CheckpointTask(
            job=self._job,
            generation=generation,
            checkpoint=0,
            splits=splits,
            columns=self._staying_job().columns,
            sinks={name: writer_options(sink) for name, sink in self._sinks.items()},
        )
        job = self._staying_job()
        context, credentials = new_credentials()
        follow = self._source.follow()
        writers: dict[str, StayingWriter] = {name: require_stays(sink).stay() for name, sink in self._sinks.items()}
        bind, host = job.reach()
        self._slots = len(splits)
        self._group = group = TaskGroup(
            self._slots,
            context,
            credentials.secret,
            bind=bind,
            host=host,
            begin={"task": task.to_json(), "pace": self._pace},
            job=lambda driver: job.stay(len(splits), follow, writers, driver, credentials),
            cancel=job.cancel_staying,
            changed=mailbox.wake,
        )
        begun = mailbox.wait(lambda: group.ready or group.broken or mailbox.stopping, _BEGIN_S)
        if not begun:
            raise GenerationFailedError(
                f"{group.begun} of {self._slots} staying tasks began within {_BEGIN_S:.0f} s: each needs a core of its "
                f"own for as long as the job runs, so {self._slots} free cores. Nothing was written. Give the Spark "
                "application more cores, or end what else runs in it."
            )


def require_followed(source: Source) -> FollowedSource:
    """Return ``source``. Raises ConfigurationError if tasks that stay cannot read it."""
    if isinstance(source, FollowedSource):
        return source
    raise _cannot_stay(f"source {source.participant.name} cannot be read")


def require_stays(sink: SinkSession) -> Stays:
    """Return ``sink``. Raises ConfigurationError if tasks that stay cannot write to it."""
    if isinstance(sink, Stays):
        return sink
    raise _cannot_stay(f"sink {sink.participant.name} cannot be written")


def _cannot_stay(what: str) -> ConfigurationError:
    return ConfigurationError(
        f'The {what} by tasks that stay. Nothing was started. Leave out Pipeline(tasks="staying").'
    )
