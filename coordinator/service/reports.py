"""What drivers report with their lease renewals: broken links, the age of their transactions, how far they have read.

For listings only, so it is kept in memory; the next renewal repeats it.
"""

from dataclasses import dataclass, replace

from onceward.common.links import Trouble
from onceward.protocol.committing import Age
from onceward.protocol.read_progress import ReadProgress
from onceward.protocol.values import Generation, JobName
from onceward.wire.limits import MAX_SHOWN_TEXT, MAX_TROUBLES
from onceward.wire.malformed import MalformedError, as_text
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.values import AGE, TROUBLE, progress_from_wire

__all__ = ["MAX_RECENT", "Report", "Reports", "read_report"]

MAX_RECENT = 30
"""Reports whose lag and rate are kept for a sparkline."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The latest report of a driver."""

    generation: Generation
    at: float
    """Monotonic seconds."""
    troubles: tuple[Trouble, ...]
    oldest: Age | None
    """Its oldest pre-committed, unsettled transaction."""
    progress: ReadProgress | None
    """None until it has planned a checkpoint."""
    machine: str = ""
    """Machine and process of the driver; a driver of an older program does not name them."""
    recent_lag: tuple[int, ...] = ()
    """Of the job's latest reports, oldest first."""
    recent_rates: tuple[float, ...] = ()
    """Records per second, as reported with them."""


def read_report(request: pb.RenewRequest, now: float) -> Report:
    """The report in a renewal. Raises MalformedError when it exceeds the limits."""
    if len(request.troubles) > MAX_TROUBLES:
        raise MalformedError(f"troubles: {len(request.troubles)}, must be at most {MAX_TROUBLES}")
    return Report(
        generation=Generation(request.generation),
        at=now,
        troubles=tuple(_short_trouble(TROUBLE.from_wire(one)) for one in request.troubles),
        oldest=_short_age(AGE.from_wire(request.oldest)) if request.HasField("oldest") else None,
        progress=_short_progress(progress_from_wire(request.progress)) if request.HasField("progress") else None,
        machine=_short(as_text(request.machine, "machine")),
    )


def _short_trouble(one: Trouble) -> Trouble:
    return replace(one, link=_short(one.link), why=_short(one.why), waiting=_short(one.waiting))


def _short_age(one: Age) -> Age:
    return replace(one, transaction=_short(one.transaction))


def _short_progress(one: ReadProgress) -> ReadProgress:
    return replace(one, partitions=tuple(replace(each, partition=_short(each.partition)) for each in one.partitions))


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_TEXT else f"{text[: MAX_SHOWN_TEXT - 3]}..."


class Reports:
    """The latest reports, at most one per job."""

    def __init__(self) -> None:
        self._reports: dict[JobName, Report] = {}

    def note(self, job: JobName, report: Report) -> None:
        """Record the report of a driver whose renewal was accepted."""
        before, progress = self._reports.get(job), report.progress
        lags, rates = (before.recent_lag, before.recent_rates) if before is not None else ((), ())
        if before is not None and before.generation != report.generation:
            rates = (*rates, 0.0)  # between two generations nothing is read
        if progress is not None:
            lags = (*lags, progress.lag)[-MAX_RECENT:] if progress.lag is not None else ()
            rates = (*rates, progress.records_per_second)[-MAX_RECENT:]
        self._reports[job] = replace(report, recent_lag=lags, recent_rates=rates)

    def forget(self, job: JobName) -> None:
        """Drop the report of a driver that has left."""
        self._reports.pop(job, None)

    def of(self, job: JobName, generation: Generation) -> Report | None:
        """The latest report of ``generation``; None before the first."""
        report = self._reports.get(job)
        return report if report is not None and report.generation == generation else None
