"""All mutants, and how each is hunted."""

import time
from dataclasses import dataclass

from tests.mutants.core import CORE
from tests.mutants.driver import DRIVER
from tests.mutants.kafka import KAFKA
from tests.mutants.leaders import LEADERS
from tests.mutants.mutant import CLEAN, Finding, Hunt, Mutant
from tests.mutants.operator_requests import OPERATOR_REQUESTS
from tests.mutants.orphans import ORPHANS
from tests.mutants.replays import REPLAYS
from tests.mutants.staying import STAYING
from tests.mutants.store import STORE
from tests.mutants.tables import TABLES

__all__ = ["HUNTS", "MUTANTS", "Report", "hunt_clean", "hunt_mutant"]

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (*CORE, *OPERATOR_REQUESTS, *STORE, *LEADERS, *DRIVER, *STAYING, *REPLAYS, *ORPHANS, *KAFKA, *TABLES)
}

HUNTS: dict[str, Hunt] = {mutant.hunt.name: mutant.hunt for mutant in MUTANTS.values()}
"""Each distinct hunt once."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of one hunt, with names only: it comes from another process."""

    name: str
    hunt: str
    finding: Finding | None
    seconds: float
    gone: str = ""
    """Why the mutant no longer applies to the product; empty if it does."""

    @property
    def problem(self) -> str | None:
        """Why this fails the build; None if it does not."""
        if self.gone:
            return f"out of date: {self.gone}"
        mutant = MUTANTS.get(self.name)
        if mutant is None:
            return None if self.finding is None else f"the product itself violates {self._violated}"
        if self.finding is None:
            return f"survived: {mutant.hurts}"
        if self.finding.invariant not in mutant.caught_by:
            return f"violated {self._violated}, which is not what it breaks"
        return None

    @property
    def _violated(self) -> str:
        assert self.finding is not None
        return f"{type(self.finding.invariant).__name__}.{self.finding.invariant.name}: {self.finding.text}"


def hunt_mutant(name: str) -> Report:
    """Hunt one mutant by name."""
    mutant = MUTANTS[name]
    try:
        with mutant.breaks():
            pass
    except AssertionError as error:
        return Report(name=name, hunt=mutant.hunt.name, finding=None, seconds=0.0, gone=str(error))
    return _timed(name, mutant.hunt, mutant)


def hunt_clean(name: str) -> Report:
    """Run the hunt of this name on the unbroken product."""
    return _timed(f"nothing is broken: {name}", HUNTS[name], None)


def _timed(name: str, hunt: Hunt, mutant: Mutant | None) -> Report:
    began = time.monotonic()
    finding = hunt.find(mutant.breaks if mutant is not None else CLEAN)
    return Report(name=name, hunt=hunt.name, finding=finding, seconds=time.monotonic() - began)
