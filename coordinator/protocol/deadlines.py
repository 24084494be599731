"""When time alone will next change a job: until then no tick is needed."""

from coordinator.protocol.facts import JobStatus
from coordinator.protocol.state import JobState

__all__ = ["next_deadline"]


def next_deadline(state: JobState) -> float | None:
    """The earliest ``now`` at which a tick can have an effect; None when only an event can change the job.

    Monotonic seconds; may lie in the past, which means at once.
    """
    session, pending = state.session, state.pending
    if session is None:
        return None
    deadlines: list[float] = []
    if session.stream_lost_at is not None:
        deadlines.append(session.lease_ends)
    if pending is not None and not state.all_answered:
        deadlines.append(pending.started + state.durable.settings.seconds("timeout"))
    if (
        session.stream_lost_at is None
        and pending is None
        and state.failed is None
        and state.durable.status is JobStatus.RUNNING
        and not state.durable.stop_requested
    ):
        deadlines.append(state.next_trigger)
    return min(deadlines, default=None)
