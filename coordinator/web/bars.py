"""Checkpoints as bars: how long each phase took, on one scale. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from onceward.coordinator.listings import CheckpointSummary
from onceward.coordinator.protocol.values import CheckpointState

__all__ = ["PHASES", "WIDTH", "Bar", "Phase", "bars"]

WIDTH = 1000
"""Of the longest bar."""
_THINNEST = 3.0

PHASES = {
    "wait": "from when it was due or requested to its trigger",
    "run": "from the trigger to the last acknowledgement, or to the abort",
    "decide": "from the last acknowledgement to the decision",
    "settle": "from the decision to the proof of the last commit",
}


@dataclass(frozen=True, kw_only=True)
class Phase:
    name: str
    took: timedelta
    """Until now if it is not over."""
    over: bool
    x: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One checkpoint."""

    checkpoint: CheckpointSummary
    phases: Sequence[Phase]
    took: timedelta


def bars(checkpoints: Sequence[CheckpointSummary], now: datetime) -> list[Bar]:
    """All on the scale of the longest."""
    measured = [(one, _phases(one, now)) for one in checkpoints]
    longest = max((sum(took for _, took, _ in phases) for _, phases in measured), default=0.0)
    return [_bar(one, phases, longest) for one, phases in measured]


def _bar(checkpoint: CheckpointSummary, phases: Sequence[tuple[str, float, bool]], longest: float) -> Bar:
    x, shown = 0.0, []
    for name, took, over in phases:
        width = max(_THINNEST, took / longest * WIDTH) if took and longest else 0.0
        shown.append(Phase(name=name, took=timedelta(seconds=took), over=over, x=x, width=width))
        x += width
    return Bar(checkpoint=checkpoint, phases=shown, took=timedelta(seconds=sum(took for _, took, _ in phases)))


def _phases(checkpoint: CheckpointSummary, now: datetime) -> list[tuple[str, float, bool]]:
    """Name, seconds, and whether it is over; the phases that have begun."""
    if checkpoint.state is CheckpointState.UNREADABLE:
        return []
    found = [("wait", checkpoint.waited.total_seconds(), True)]
    begun = checkpoint.triggered_at
    for name, took in (("run", checkpoint.ran), ("decide", checkpoint.decided), ("settle", checkpoint.settled)):
        if took is not None:
            found.append((name, max(0.0, took.total_seconds()), True))
            if begun is not None:
                begun += took
        else:
            if checkpoint.state in (CheckpointState.TRIGGERED, CheckpointState.COMPLETED) and begun is not None:
                found.append((name, max(0.0, (now - begun).total_seconds()), False))
            break
    return found
