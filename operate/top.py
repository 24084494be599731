"""``onceward top``: all jobs of a coordinator at a glance, those in trouble first."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError, ExitCode
from onceward.common.readable import count
from onceward.operate.connecting import CoordinatorLocation, operators
from onceward.operate.listings import describe_wait, unusual
from onceward.operate.losses import exit_code_of
from onceward.operate.tables import Column, Listing, Times, as_duration, console, print_listings, status
from onceward.protocol.status import JobStatus
from onceward.wire.rows import JobSummary

__all__ = ["by_trouble", "show_top"]

_LINES_AROUND = 3
"""A line about all jobs, and two with the names of the columns."""
_ENDED = (JobStatus.FINISHED, JobStatus.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class Overview:
    jobs: Sequence[JobSummary]
    """Those in trouble first."""

    @property
    def code(self) -> ExitCode:
        return exit_code_of(self.jobs)


def show_top(place: CoordinatorLocation, *, once: bool) -> ExitCode:
    """Draw the overview until Ctrl-C, or with ``once`` print it. Raises ConfigurationError without a terminal."""
    screen = console()

    if once:
        with operators(place) as (client, _):
            answer = _ask(client)
        print_listings([_listing(answer, datetime.now(UTC))])
        return answer.code
    if not screen.is_terminal:
        raise ConfigurationError(
            "onceward top needs a terminal. Nothing was asked. Use --once, or onceward jobs --json."
        )
    from onceward.operate.watching import watch

    def draw(answer: Overview, lines: int) -> RenderableType:
        table, _ = _listing(answer, datetime.now(UTC)).fitted(screen.width, rows=max(1, lines - _LINES_AROUND))
        return Group(Text(_headline(answer.jobs), no_wrap=True, overflow="ellipsis"), table)

    return watch(place, _ask, draw).code


def _ask(client: OperatorClient) -> Overview:
    now = datetime.now(UTC)
    found = [job for job in client.jobs() if job.status is not JobStatus.FORGOTTEN]
    jobs = sorted(found, key=lambda job: (by_trouble(job, now), job.job))
    return Overview(jobs=jobs)


def _headline(jobs: Sequence[JobSummary]) -> str:
    counted = Counter(job.status for job in jobs)
    all_jobs = f"{len(jobs):,} job" + ("" if len(jobs) == 1 else "s")
    return ", ".join([all_jobs, *(f"{counted[one]:,} {one.value}" for one in JobStatus if counted[one])])


def by_trouble(job: JobSummary, now: datetime) -> int:
    """Return the job's place: the lower, the more a person is needed."""
    oldest = job.oldest_transaction
    if job.status is JobStatus.HALTED or job.unreadable:
        return 0
    if job.unacknowledged_losses:
        return 1
    if oldest is not None and oldest.open_for > oldest.timeout / 2:
        return 2
    if job.failures or job.status is JobStatus.RESTARTING:
        return 3
    if job.status in (JobStatus.SUSPENDED, JobStatus.CREATED):
        return 4 if not job.settled else 6
    if job.status in _ENDED:
        return 8
    return 5 if any(unusual(wait, now) for wait in job.waits) else 7


def _listing(answer: Overview, now: datetime) -> Listing:
    times = Times(now=now, utc=False)
    shown = Listing(
        "job",
        "status",
        Column(name="generation", spare=3),
        Column(name="last completed", spare=2),
        "completed",
        Column(name="lag", spare=1),
        Column(name="records/s", spare=1),
        Column(name="oldest transaction", spare=1),
        Column(name="lost slots", spare=2),
        Column(name="waits", text=True),
        if_empty="There are no jobs.",
    )
    for job in answer.jobs:
        oldest, progress = job.oldest_transaction, job.progress
        shown.add(
            job.job,
            status(job.status.value),
            str(job.generation),
            str(job.last_completed or "-"),
            times.of(job.last_completed_at),
            "-" if progress is None or progress.lag is None else count(progress.lag),
            "-" if progress is None else count(round(progress.records_per_second)),
            "-" if oldest is None else f"{as_duration(oldest.open_for)} of {as_duration(oldest.timeout)}",
            str(job.unacknowledged_losses or "-"),
            _waits(job, times),
        )
    return shown


def _waits(job: JobSummary, times: Times) -> str:
    why = [job.status_detail] if job.status not in (JobStatus.RUNNING, *_ENDED) else []
    why.append(job.failing)
    why += [describe_wait(wait, times) for wait in job.waits]
    return " ".join("; ".join(filter(None, (*why, job.orphan))).split())
