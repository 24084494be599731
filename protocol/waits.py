"""What a job waits for now, as far as the protocol knows; for display."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onceward.protocol.requests import Ending
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus
from onceward.protocol.values import ParticipantName
from onceward.protocol.wedged import owed

__all__ = ["Wait", "unsettled_slots", "waits"]


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One thing that must happen before the job continues."""

    what: str
    since: float | None
    """Monotonic seconds on the state's clock; a restart of the coordinator resets it. None means since the decision on
    the newest completed checkpoint."""


def waits(state: JobState) -> tuple[Wait, ...]:
    """Everything the job waits for, in the order in which it resolves."""
    person = (Wait(what="a person to decide", since=None),) if state.durable.status is JobStatus.HALTED else ()
    return (*person, *_driver(state), *_settling(state), *_pending(state))


def unsettled_slots(state: JobState) -> Mapping[ParticipantName, int]:
    """Number of transactions of the newest completed checkpoint that are not proved committed, by output; outputs
    without any are left out."""
    completed = state.durable.completed
    if completed is None or completed.settled:
        return {}
    found = {
        name: sum(one.slot not in state.settled_slots.get(name, frozenset()) for one in snapshot.committables)
        for name, snapshot in completed.snapshots.items()
    }
    return {name: count for name, count in found.items() if count}


def _driver(state: JobState) -> Iterator[Wait]:
    session = state.session
    if state.durable.awaits_driver:
        yield Wait(what="its driver, which announced its return", since=state.driverless_since)
    elif session is not None and session.stream_lost_at is not None:
        what = "the instruction stream of its driver" if session.watched else "its driver to take instructions"
        yield Wait(what=what, since=session.stream_lost_at)
    if state.owing_since is not None:
        yield Wait(what=f"its driver {owed(state)}", since=state.owing_since)


def _settling(state: JobState) -> Iterator[Wait]:
    durable = state.durable
    if durable.completed is None or durable.completed.settled:
        return
    checkpoint = durable.completed.id
    if durable.ending is not None and not durable.driven:
        end = "finished" if durable.ending is Ending.STOP else "cancelled"
        what = f"the coordinator or the next driver to settle checkpoint {checkpoint}, after which it is {end}"
        yield Wait(what=what, since=None)
    lost = sum(len(slots) for slots in durable.replaying.values())
    if lost:
        yield Wait(what=f"{lost} lost slots of checkpoint {checkpoint} to be written again", since=None)
    left = sum(unsettled_slots(state).values()) - lost
    if left > 0:
        yield Wait(what=f"settling checkpoint {checkpoint}: {left} commits are not proved", since=None)


def _pending(state: JobState) -> Iterator[Wait]:
    pending, undecided = state.pending, state.durable.pending
    if pending is None or undecided is None:
        return
    missing = [one.name for one in state.durable.participants if one.name not in pending.answers]
    if missing:
        names = " and ".join(missing)
        what = f"the driver's acknowledgement of checkpoint {undecided.id} for {names}"
        yield Wait(what=what, since=pending.started)
    elif not state.settled:
        what = f"checkpoint {undecided.base} to be settled before checkpoint {undecided.id} is completed"
        yield Wait(what=what, since=pending.answered)
