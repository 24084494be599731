"""Hunts for bugs of the driver and the sink: the simulation, with the faults that bring them out."""

from dataclasses import dataclass
from typing import Any

from tests.mutants.breaking import Break
from tests.mutants.mutant import Finding
from tests.simulation.fault_profile import alone
from tests.simulation.run import run_seed

__all__ = ["SeedHunt", "clear"]


@dataclass(frozen=True, kw_only=True)
class SeedHunt:
    """Runs seeds, one after the other, until one of them shows a violation."""

    name: str
    seeds: int
    """Maximum number of seeds."""
    first: int = 1
    faults: tuple[tuple[str, Any], ...] = ()
    """Fields of the fault profile that are fixed instead of drawn from the seed."""

    def find(self, breaks: Break) -> Finding | None:
        for tried, seed in enumerate(range(self.first, self.first + self.seeds), start=1):
            violation = run_seed(seed, mutant=breaks, **dict(self.faults)).violation
            if violation is not None:
                return Finding(invariant=violation.invariant, text=violation.text, effort=f"{tried} seeds")
        return None


def clear(**faults: Any) -> tuple[tuple[str, Any], ...]:
    """:func:`alone`, hashable."""
    return tuple(alone(**faults).items())
