"""Acknowledging losses: a person confirms that they know which records were given up."""

from onceward.coordinator.protocol.answers import Answer, Ready, Verdict
from onceward.coordinator.protocol.events import AcknowledgeLoss
from onceward.coordinator.protocol.facts import LossAcknowledged
from onceward.coordinator.protocol.state import JobState, record

__all__ = ["acknowledge"]


def acknowledge(state: JobState, event: AcknowledgeLoss) -> tuple[JobState, Ready]:
    """Remove a loss from the unacknowledged ones. Changes nothing else."""
    key = (event.checkpoint, event.participant)
    unknown = next((one.slots for one in state.durable.losses if (one.checkpoint, one.participant) == key), frozenset())
    slots = event.slots or unknown
    if not slots or not slots <= unknown:
        which = f"slots {sorted(slots - unknown)}" if slots else "slots"
        detail = (
            f"no loss of {which} of {event.participant} in checkpoint {event.checkpoint} waits to be acknowledged; "
            "it was acknowledged before, or there was none"
        )
        return state, Ready(answer=Answer(verdict=Verdict.REFUSED, detail=detail))
    fact = LossAcknowledged(
        checkpoint=event.checkpoint, participant=event.participant, slots=slots, reason=event.reason
    )
    return record(state, (fact,)), Ready(answer=Answer(verdict=Verdict.ACCEPTED), facts=(fact,))
