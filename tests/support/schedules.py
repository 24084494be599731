"""The suite's results: kills, schedules, and what they mean for the suite's exit code."""

from dataclasses import dataclass, field
from enum import StrEnum

from onceward.common.killpoints import KillPoint

__all__ = ["STAYING_POINTS", "Kill", "Outcome", "Schedule"]

STAYING_POINTS = (KillPoint.DRIVER_AFTER_CUT, KillPoint.TASK_AFTER_CUT, KillPoint.TASK_AFTER_VOTE)
"""Passed only where tasks stay."""


class Outcome(StrEnum):
    """How a schedule ended. Only PASS and an expected HALTED are good."""

    PASS = "PASS"
    HALTED = "HALTED"
    """The job halted and named the records, as it must if the outcome cannot be known. Before, nothing was lost or
    doubled."""
    UNKNOWN = "UNKNOWN"
    """The check was impossible. Never a pass."""
    FAIL = "FAIL"


@dataclass(kw_only=True)
class Kill:
    """One process that ended by SIGKILL, or by a failing disk."""

    process: str
    place: str
    """A kill point and the number of its pass, ``any time``, or a system call."""
    reached: bool = False
    """Proved by the file that the kill point leaves, or by the exit code of the process."""
    at: float = 0.0
    """Seconds since the epoch."""
    back_at: float = 0.0
    """When what was killed was started again; 0 = never."""
    recovered_at: float = 0.0
    """When the next checkpoint was settled; 0 = another kill came first."""

    @property
    def recovery_s(self) -> float | None:
        """From the kill to the next settled checkpoint."""
        return self.recovered_at - self.at if self.recovered_at else None


@dataclass(kw_only=True)
class Schedule:
    """One job, the kills during it, and the verdict."""

    part: str
    name: str
    seed: int | None = None
    kills: list[Kill] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN
    reasons: list[str] = field(default_factory=list)
    """Why the outcome is not PASS."""
    results: dict[str, str] = field(default_factory=dict)
    """Property -> PASS, FAIL or UNKNOWN."""
    halt_explained: bool = False
    """The schedule had to end with a halt."""
    resumed: int = 0
    """Transactions committed by another generation than the one that wrote them."""
    replayed: int = 0
    """Transactions whose records were written again."""
    aborted: int = 0
    unmarked: int = 0
    """Transactions that the brokers had ended without a marker, and that a driver finished."""
    generations: int = 0
    checkpoints: int = 0
    records: int = 0
    seconds: float = 0.0

    @property
    def not_reached(self) -> list[Kill]:
        return [kill for kill in self.kills if not kill.reached]

    @property
    def good(self) -> bool:
        """Whether the suite may pass with this schedule."""
        ended_well = self.outcome is Outcome.PASS or (self.outcome is Outcome.HALTED and self.halt_explained)
        return ended_well and not self.not_reached
