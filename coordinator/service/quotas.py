"""What the store may keep: of a job, and how many jobs. Savepoints have their quota where they are requested."""

from onceward.protocol.answers import Answer, Verdict
from onceward.protocol.events import Event, OpenJob
from onceward.wire.limits import MAX_JOBS, MAX_RETAINED

__all__ = ["jobs_refusal", "quota_refusal"]


def quota_refusal(event: Event) -> Answer | None:
    """The answer to an event that wants more than its job may have; None for all others."""
    if not isinstance(event, OpenJob) or event.settings.num_retained <= MAX_RETAINED:
        return None
    detail = (
        f"num_retained: {event.settings.num_retained} checkpoints, and a coordinator keeps at most {MAX_RETAINED} of a "
        "job. Nothing was opened. Lower it, and keep older ones as savepoints"
    )
    return Answer(verdict=Verdict.REFUSED, detail=detail)


def jobs_refusal(jobs: int) -> Answer | None:
    """The answer to an event that would add a job to ``jobs`` others; None while there is room."""
    if jobs < MAX_JOBS:
        return None
    detail = (
        f"this coordinator's store holds {jobs} jobs, and a coordinator keeps at most {MAX_JOBS}. Nothing was changed. "
        "Delete one that has ended: onceward forget JOB --reason WHY --systems FILE"
    )
    return Answer(verdict=Verdict.REFUSED, detail=detail)
