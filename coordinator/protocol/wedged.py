"""A driver whose main loop stands still: its threads keep the lease and the stream, so it never looks dead.

What it owes shows it: an abort that it does not carry out, or its generation that it does not end. After a lease and
the grace time of orphans it is given up. A driver whose brokers do not answer needs less for either (a sweep fails
after 30 s), and one that needs more loses nothing but its generation.
"""

from dataclasses import replace

from onceward.coordinator.protocol.facts import AbortReason
from onceward.coordinator.protocol.generations import Step, end_generation, terminal_transition
from onceward.coordinator.protocol.state import JobState
from onceward.coordinator.protocol.status import JobStatus, Transition

__all__ = ["due", "give_up", "owed", "record_contact"]


def owed(state: JobState) -> str:
    """What the driver was told to do and has not done, in words for people; empty for nothing."""
    durable = state.durable
    if not durable.driven or durable.unreadable or state.session is None:
        return ""
    if durable.status in (JobStatus.RESTARTING, JobStatus.HALTED):
        return "to end its generation"
    told = durable.told_abort
    if told is not None and told.id > state.carried_out:
        return f"to abort checkpoint {told.id}"
    return ""


def due(state: JobState) -> float | None:
    """When the driver is given up, monotonic seconds; None when it owes nothing."""
    if state.owing_since is None:
        return None
    settings = state.durable.settings
    return state.owing_since + settings.seconds("lease") + settings.seconds("orphan_grace")


def record_contact(state: JobState, now: float) -> JobState:
    """The driver's main loop has said something, so it does not stand still."""
    return state if state.owing_since is None else replace(state, owing_since=now)


def give_up(state: JobState, now: float) -> Step:
    """Measure for how long the driver owes something, and end its generation when that is too long.

    Begins when there is a stream to tell it, and goes on when that breaks.
    """
    what = owed(state)
    if not what:
        return (state if state.owing_since is None else replace(state, owing_since=None)), ()
    if state.owing_since is None:
        told = state.session is not None and state.session.stream_lost_at is None
        return (replace(state, owing_since=now) if told else state), ()
    until = due(state)
    if until is None or now < until:
        return state, ()
    detail = f"its driver renews its lease and does not do what it was told for {now - state.owing_since:.0f} s: {what}"
    return end_generation(
        state, now, terminal_transition(state.durable) or Transition.GIVEN_UP, detail, AbortReason.DRIVER_LOST
    )
