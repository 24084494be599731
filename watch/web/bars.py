"""Checkpoints as bars: how long each phase took, on one scale. Pure.

The coordinator knows when a checkpoint runs; what happens meanwhile is what its driver reported. A phase that it did
not report is not drawn and not counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from onceward.protocol.phases import Phase as Measured
from onceward.protocol.values import CheckpointState
from onceward.wire.rows import CheckpointSummary

__all__ = ["PHASES", "WIDTH", "Bar", "Phase", "bars", "legend"]

WIDTH = 1000
"""Of the longest bar."""
_THINNEST = 3.0

PHASES: Mapping[str, str] = {
    "wait": "from when it was due or requested to its trigger",
    "run": "from the trigger to the last acknowledgement, or to the abort",
    **{phase: phase.meaning for phase in Measured},
    "rest": "what of the run its driver did not measure, to the last acknowledgement or to the abort",
    "decide": "from the last acknowledgement to the decision",
    "settle": "from the decision to the proof of the last commit",
}


@dataclass(frozen=True, kw_only=True)
class Phase:
    name: str
    """One of ``PHASES``."""
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
    widths = [max(_THINNEST, took / longest * WIDTH) if took and longest else 0.0 for _, took, _ in phases]
    shrunk = min(1.0, WIDTH / (sum(widths) or WIDTH))  # thin ones take more than their share
    x, shown = 0.0, []
    for (name, took, over), thick in zip(phases, widths, strict=True):
        width = thick * shrunk
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
            seconds = max(0.0, took.total_seconds())
            found += _measured(checkpoint, seconds) if name == "run" else [(name, seconds, True)]
            if begun is not None:
                begun += took
        else:
            if checkpoint.state in (CheckpointState.TRIGGERED, CheckpointState.COMPLETED) and begun is not None:
                found.append((name, max(0.0, (now - begun).total_seconds()), False))
            break
    return found


def _measured(checkpoint: CheckpointSummary, ran: float) -> list[tuple[str, float, bool]]:
    """The phases of a run of ``ran`` seconds, and the rest. The run as a whole if they are not known, or are longer:
    the coordinator has restarted and counts from then."""
    known = [(phase, checkpoint.phases[phase].total_seconds()) for phase in Measured if phase in checkpoint.phases]
    rest = ran - sum(took for _, took in known)
    if not known or rest < 0:
        return [("run", ran, True)]
    return [*((phase.value, took, True) for phase, took in known), ("rest", rest, True)]


def legend(shown: Sequence[Bar]) -> dict[str, str]:
    """The meaning of each phase that is drawn, in their order in time."""
    drawn = {phase.name for bar in shown for phase in bar.phases if phase.width}
    return {name: meaning for name, meaning in PHASES.items() if name in drawn}
