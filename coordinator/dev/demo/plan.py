"""Which processes the demo kills, where, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE, KillPoint

__all__ = ["Kill", "KillPlan", "planned_kills"]

_SETTLED_IN = 8
"""Checkpoints that a driver completes before it dies, at the demo's normal rate: enough to be in full flow."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The process that passes `point` for the `nth` time dies there by SIGKILL."""

    point: KillPoint
    nth: int
    meaning: str
    """What the process leaves behind, for people."""

    @property
    def name(self) -> str:
        """As in the environment variable, and as the marker file that proves the kill."""
        return f"{self.point.value}:{self.nth}"

    def environment(self, markers: Path) -> dict[str, str]:
        """Arms this kill in the processes that get these variables; only the first one to pass dies."""
        return {KILL_POINT_VARIABLE: self.name, KILL_ONCE_VARIABLE: str(markers)}

    def happened(self, markers: Path) -> bool:
        """Whether a process died there."""
        return (markers / self.name).exists()


@dataclass(frozen=True, kw_only=True)
class KillPlan:
    """One kill per driver process, one after the other, and those of the coordinator."""

    driver: Sequence[Kill]
    coordinator: Sequence[Kill]

    @property
    def all(self) -> Sequence[Kill]:
        return (*self.driver, *self.coordinator)


def planned_kills(feed_seconds: float) -> KillPlan:
    """Kills spread over the feed: a driver needs about 8 s to start and makes a checkpoint a second."""
    n = max(2, min(_SETTLED_IN, int(feed_seconds / 12)))
    return KillPlan(
        driver=(
            Kill(
                point=KillPoint.DRIVER_AFTER_DECISION,
                nth=n,
                meaning="the checkpoint is completed, none of its transactions is committed: the next driver commits",
            ),
            Kill(
                point=KillPoint.DRIVER_AFTER_PRE_COMMIT,
                nth=n,
                meaning="records are written and flushed, nobody was told: the next driver aborts them",
            ),
            Kill(
                point=KillPoint.DRIVER_BETWEEN_END_TXN,
                nth=n,
                meaning="some transactions of a completed checkpoint are committed, some not: the next driver finishes",
            ),
        ),
        coordinator=(
            Kill(
                point=KillPoint.COORDINATOR_AFTER_DECISION,
                nth=3 * n + n // 2,
                meaning="the decision is durable, no driver knows it: the next coordinator tells",
            ),
        ),
    )
