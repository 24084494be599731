"""Hunts for bugs of the driver and the sink: the simulation, with the faults that bring them out."""

from dataclasses import dataclass
from typing import Any

from tests.mutants.breaking import Break
from tests.mutants.mutant import Finding
from tests.simulation.executors import TaskFaults
from tests.simulation.network import LinkFaults
from tests.simulation.run import run_seed

__all__ = ["SeedHunt", "clear"]


@dataclass(frozen=True, kw_only=True)
class SeedHunt:
    """Runs seeds from 1 on, until one of them shows a violation."""

    name: str
    seeds: int
    """Maximum number of seeds."""
    faults: tuple[tuple[str, Any], ...] = ()
    """Fields of the fault profile that are fixed instead of drawn from the seed."""

    def find(self, breaks: Break) -> Finding | None:
        for seed in range(1, self.seeds + 1):
            violation = run_seed(seed, mutant=breaks, **dict(self.faults)).violation
            if violation is not None:
                return Finding(invariant=violation.invariant, text=violation.text, effort=f"{seed} seeds")
        return None


def clear(**faults: Any) -> tuple[tuple[str, Any], ...]:
    """The fault profile of a busy job without faults except the given ones, so that only these can cause a finding."""
    fields: dict[str, Any] = {
        "totals": (24, 24),
        "limit": 2,
        "fault_time": 6.0,
        "interval": 0.1,
        "timeout": 20.0,
        "tolerable": 50,
        "transaction_timeout": 120.0,
        "receipts_kept_minutes": 7 * 24 * 60,
        "rpc": LinkFaults(),
        "kafka": LinkFaults(),
        "tasks": TaskFaults(),
        "store_failures": 0.0,
        "kill_points": 0.0,
        "skew": 0.0,
        "lease": 3.0,
        "orphan_grace": 30.0,
        "absence": 0.0,
        "gone": False,
        "torn": 0.0,
        "standby": False,
    }
    counts = "coordinator_kills driver_kills driver_pauses coordinator_pauses takeovers cuts kafka_cuts moves"
    fields |= dict.fromkeys((*counts.split(), "broker_failures", "hijacks", "clean_ups", "stops"), 0)
    return tuple((fields | faults).items())
