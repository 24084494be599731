"""Detects a driver whose main loop hangs: its other threads keep the lease and the stream, so it looks alive.

An outstanding instruction reveals the hang: an abort that is not carried out, or a generation that is not ended. After
lease + orphan_grace the driver is given up. A driver whose brokers do not answer needs less time for either (a sweep
fails after 30 s). A driver that needs more loses only its generation.
"""

from dataclasses import replace

from onceward.protocol.facts import AbortReason
from onceward.protocol.generations import Step, end_generation, terminal_transition
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus, Transition

__all__ = ["due", "give_up", "owed", "record_contact"]


def owed(state: JobState) -> str:
    """The instruction that the driver has not carried out, for display; empty if there is none."""
    durable = state.durable
    if not durable.driven or durable.unreadable or state.session is None:
        return ""
    if durable.status in (JobStatus.RESTARTING, JobStatus.HALTED):
        return "to end its generation"
    abort = durable.instructed_abort
    if abort is not None and abort.id > state.carried_out:
        return f"to abort checkpoint {abort.id}"
    return ""


def due(state: JobState) -> float | None:
    """When the driver is given up, in monotonic seconds; None when no instruction is outstanding."""
    if state.owing_since is None:
        return None
    settings = state.durable.settings
    return state.owing_since + settings.seconds("lease") + settings.seconds("orphan_grace")


def record_contact(state: JobState, now: float) -> JobState:
    """Record a call from the driver's main loop, which shows that it does not hang."""
    return state if state.owing_since is None else replace(state, owing_since=now)


def give_up(state: JobState, now: float) -> Step:
    """Measure how long an instruction is outstanding, and end the driver's generation when that is too long.

    The measurement starts only while the instruction stream is connected; it continues when the stream breaks.
    """
    what = owed(state)
    if not what:
        return (state if state.owing_since is None else replace(state, owing_since=None)), ()
    if state.owing_since is None:
        connected = state.session is not None and state.session.stream_lost_at is None
        return (replace(state, owing_since=now) if connected else state), ()
    until = due(state)
    if until is None or now < until:
        return state, ()
    detail = (
        f"its driver renews its lease but has not followed its instruction for {now - state.owing_since:.0f} s: {what}"
    )
    return end_generation(
        state, now, terminal_transition(state.durable) or Transition.GIVEN_UP, detail, AbortReason.DRIVER_LOST
    )
