"""What the suite found out: runs, and what they mean for the suite's exit code."""

from dataclasses import dataclass, field

from tests.crash.results import Outcome

__all__ = ["RECOVERY_LIMIT_S", "Run"]

RECOVERY_LIMIT_S = 20.0
"""From the heal to the next settled checkpoint, on two quiet cores."""


@dataclass(kw_only=True)
class Run:
    """One fault at one phase."""

    scenario: str
    row: str
    phase: str
    job: str
    seed: int | None = None
    killed: str | None = None
    """What died by SIGKILL in the middle of the fault."""
    outcome: Outcome = Outcome.UNKNOWN
    expected: Outcome = Outcome.PASS
    """UNKNOWN for a run that is void on purpose."""
    reasons: list[str] = field(default_factory=list)
    """Why it is not what was expected."""
    fault_s: float = 0.0
    """How long the fault was in force."""
    recovery_s: float | None = None
    """From the heal to the next settled checkpoint."""
    connections: tuple[int, int] = (0, 0)
    """Of driver and coordinator, before the fault and at the end."""
    connects_per_s: float = 0.0
    """Through the busiest link, while the fault was in force."""
    left: int | None = None
    """Exit code of a driver that the fault made leave, so that it had to be started again. Nothing justifies that but a
    preflight which was not answered, of a driver that was started under the fault."""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.outcome is self.expected and not self.reasons
