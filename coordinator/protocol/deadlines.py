"""When time alone next changes a job; no tick is needed before."""

from onceward.coordinator.protocol import wedged
from onceward.coordinator.protocol.checkpoints import due
from onceward.coordinator.protocol.state import JobState

__all__ = ["next_deadline"]


def next_deadline(state: JobState) -> float | None:
    """The earliest ``now`` at which a tick can have an effect; None when only an event can change the job.

    In monotonic seconds. May lie in the past, which means at once.
    """
    deadlines = [due(state), wedged.due(state), state.restart_due]
    if state.session is not None and state.session.stream_lost_at is not None:
        deadlines.append(state.session.lease_ends)
    if state.pending is not None and not state.all_answered:
        deadlines.append(state.pending.started + state.durable.settings.seconds("timeout"))
    elif state.pending is not None:
        deadlines.append(state.pending.good_until)
    return min((deadline for deadline in deadlines if deadline is not None), default=None)
