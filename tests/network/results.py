"""The suite's results: runs, and what they mean for the suite's exit code."""

from dataclasses import dataclass, field

from tests.support.schedules import Outcome

__all__ = ["RECOVERY_LIMIT_S", "Run"]

RECOVERY_LIMIT_S = 20.0
"""Limit from the heal to the next settled checkpoint, on two quiet cores."""


@dataclass(kw_only=True)
class Run:
    """One fault at one phase."""

    scenario: str
    row: str
    phase: str
    job: str
    seed: int | None = None
    killed: str | None = None
    """The process that died by SIGKILL in the middle of the fault."""
    outcome: Outcome = Outcome.UNKNOWN
    expected: Outcome = Outcome.PASS
    """UNKNOWN for a run that is void on purpose."""
    reasons: list[str] = field(default_factory=list)
    """Why the run is not as expected."""
    fault_s: float = 0.0
    """Duration of the fault."""
    recovery_s: float | None = None
    """From the heal to the next settled checkpoint."""
    connections: tuple[int, int] = (0, 0)
    """Connections of driver and coordinator, before the fault and at the end."""
    connects_per_s: float = 0.0
    """New connections through the busiest link during the fault."""
    left: int | None = None
    """Exit code of a driver that left because of the fault and had to be started again. This is justified only by an
    unanswered preflight of a driver that started during the fault."""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.outcome is self.expected and not self.reasons
