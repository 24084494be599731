"""The outputs of a job, as its page lists them. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from onceward.protocol.values import NO_CHECKPOINT, OnLost, Outcome, ParticipantName, Role
from onceward.wire.rows import JobDescription

__all__ = ["OutputRow", "outputs_of"]


@dataclass(frozen=True, kw_only=True)
class OutputRow:
    name: ParticipantName
    place: str
    """Where it writes; what kind of sink it is where a driver of an earlier release has not said it."""
    state: str
    """One word; empty if it has nothing yet."""
    detail: str
    on_lost: OnLost


def outputs_of(job: JobDescription) -> Sequence[OutputRow]:
    """Those of the latest generation in their order, then those that are gone and not closed."""
    present = [one for one in job.participants if one.role is Role.SINK]
    gone = job.summary.gone_outputs
    return [
        OutputRow(
            name=one.name,
            place=one.place or f"{one.kind} sink",
            state=state,
            detail=detail,
            on_lost=one.on_lost,
        )
        for one in (*present, *gone)
        for state, detail in [_gone(job, one.name) if one in gone else _state(job, one.name)]
    ]


def _gone(job: JobDescription, name: ParticipantName) -> tuple[str, str]:
    close = f"onceward close {job.summary.job} {name} --reason 'NAME: REASON' --systems FILE"
    return "gone", f"it gets nothing more; to remove what it has left: {close}"


def _state(job: JobDescription, name: ParticipantName) -> tuple[str, str]:
    last = job.summary.last_completed
    if job.summary.unreadable:
        return "unknown", f"checkpoint {last} cannot be read"
    if unresolved := job.unresolved.get(name):
        counts = Counter(unresolved.values())
        found = [f"{counts[outcome]} {outcome.value.replace('_', ' ')}" for outcome in Outcome if counts[outcome]]
        word = Outcome.IN_DOUBT if counts[Outcome.IN_DOUBT] else Outcome.LOST
        return word.value, f"checkpoint {last}: {', '.join(found)}"
    if left := job.unsettled.get(name):
        return "completed", f"checkpoint {last}: {left} not proved committed yet"
    return ("settled", f"up to checkpoint {last}") if last != NO_CHECKPOINT else ("", "nothing yet")
