"""What the suite found out: kills, schedules, and what they mean for the suite's exit code."""

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Kill", "Outcome", "Schedule"]


class Outcome(StrEnum):
    """How a schedule ended. Only PASS and an expected HALTED are good."""

    PASS = "PASS"
    HALTED = "HALTED"
    """The job stopped and named the records, as it must when nobody can tell; nothing was lost or doubled before."""
    UNKNOWN = "UNKNOWN"
    """The check could not be made. Never a pass."""
    FAIL = "FAIL"


@dataclass(kw_only=True)
class Kill:
    """One process ended by SIGKILL, or by a disk that refuses."""

    process: str
    place: str
    """A kill point and which pass of it, ``any time``, or a system call."""
    reached: bool = False
    """Proved: by the file that the kill point leaves, or by the process' exit code."""
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
    """One job, what was killed under it, and the verdict."""

    part: str
    name: str
    seed: int | None = None
    kills: list[Kill] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN
    reasons: list[str] = field(default_factory=list)
    """Why it is not a PASS."""
    rulings: dict[str, str] = field(default_factory=dict)
    """What was checked -> PASS, FAIL or UNKNOWN."""
    halt_explained: bool = False
    """A halt was what this schedule had to end with."""
    resumed: int = 0
    """Transactions committed by another generation than the one that wrote them."""
    replayed: int = 0
    """Transactions whose records were written again."""
    aborted: int = 0
    generations: int = 0
    checkpoints: int = 0
    records: int = 0
    seconds: float = 0.0

    @property
    def not_reached(self) -> list[Kill]:
        return [kill for kill in self.kills if not kill.reached]

    @property
    def good(self) -> bool:
        """Whether the suite may pass with this."""
        ended_well = self.outcome is Outcome.PASS or (self.outcome is Outcome.HALTED and self.halt_explained)
        return ended_well and not self.not_reached
