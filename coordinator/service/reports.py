"""What drivers report with their lease renewals: broken links, and the age of their transactions.

For listings only, so it is kept in memory; the next renewal repeats it.
"""

from dataclasses import dataclass

from onceward.coordinator.links import Trouble
from onceward.coordinator.protocol.committing import Age
from onceward.coordinator.protocol.values import Generation, JobName
from onceward.coordinator.v1 import participants_pb2 as pb
from onceward.coordinator.wire.limits import MAX_TROUBLES
from onceward.coordinator.wire.malformed import MalformedError
from onceward.coordinator.wire.values import age_from_wire, trouble_from_wire

__all__ = ["Report", "Reports", "read_report"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The latest report of a driver."""

    generation: Generation
    at: float
    """Monotonic seconds."""
    troubles: tuple[Trouble, ...]
    oldest: Age | None
    """Its oldest pre-committed, unsettled transaction."""


def read_report(request: pb.RenewRequest, now: float) -> Report:
    """The report in a renewal. Raises MalformedError when it exceeds the limits."""
    if len(request.troubles) > MAX_TROUBLES:
        raise MalformedError(f"troubles: {len(request.troubles)}, must be at most {MAX_TROUBLES}")
    return Report(
        generation=Generation(request.generation),
        at=now,
        troubles=tuple(trouble_from_wire(one) for one in request.troubles),
        oldest=age_from_wire(request.oldest) if request.HasField("oldest") else None,
    )


class Reports:
    """The latest reports, at most one per job."""

    def __init__(self) -> None:
        self._reports: dict[JobName, Report] = {}

    def note(self, job: JobName, report: Report) -> None:
        """Record the report of a driver whose renewal was accepted."""
        if report.troubles or report.oldest is not None:
            self._reports[job] = report
        else:
            self._reports.pop(job, None)

    def of(self, job: JobName, generation: Generation) -> Report | None:
        """The report of ``generation``; None when it reported no trouble and no transaction."""
        report = self._reports.get(job)
        return report if report is not None and report.generation == generation else None
