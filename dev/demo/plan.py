"""Which processes the demo kills, at which points, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onceward.common.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE, KillPoint

__all__ = ["LEAST_CHECKPOINTS", "PLAN", "Kill", "KillPlan"]

LEAST_CHECKPOINTS = 34
"""Least number of checkpoints for the job's input; with fewer, the last kills may come after the work is done."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The process that passes `point` for the `nth` time dies there by SIGKILL."""

    point: KillPoint
    nth: int
    meaning: str
    """What the process leaves behind, for display."""

    @property
    def name(self) -> str:
        """The value of the environment variable, and the name of the marker file that proves the kill."""
        return f"{self.point.value}:{self.nth}"

    def environment(self, markers: Path) -> dict[str, str]:
        """Return variables that arm this kill in the processes that get them; only the first to pass the point dies."""
        return {KILL_POINT_VARIABLE: self.name, KILL_ONCE_VARIABLE: str(markers)}

    def happened(self, markers: Path) -> bool:
        """Return whether a process died at the point."""
        return (markers / self.name).exists()


@dataclass(frozen=True, kw_only=True)
class KillPlan:
    """One kill per driver process, in sequence, and the coordinator's kills."""

    driver: Sequence[Kill]
    coordinator: Sequence[Kill]

    @property
    def all(self) -> Sequence[Kill]:
        return (*self.driver, *self.coordinator)


# However slow the machine is: every driver dies after a few checkpoints, the coordinator during the last driver's run,
# and by then at most two thirds of the records are processed (`LEAST_CHECKPOINTS`).
PLAN = KillPlan(
    driver=(
        Kill(
            point=KillPoint.DRIVER_AFTER_DECISION,
            nth=6,
            meaning="the checkpoint is completed, none of its transactions is committed: the next driver commits",
        ),
        Kill(
            point=KillPoint.DRIVER_AFTER_PRE_COMMIT,
            nth=5,
            meaning="records are written and flushed, no vote was sent: the next driver aborts",
        ),
        Kill(
            point=KillPoint.DRIVER_BETWEEN_END_TXN,
            nth=5,
            meaning="one transaction of a completed checkpoint is committed, the others not: the next driver commits",
        ),
    ),
    coordinator=(
        Kill(
            point=KillPoint.COORDINATOR_AFTER_DECISION,
            nth=21,
            meaning="the decision is durable, the driver does not know it: the next coordinator instructs it",
        ),
    ),
)
