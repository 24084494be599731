"""Every deliberate bug is caught by the invariant that it breaks, and hunts find nothing in the product itself."""

import multiprocessing
import os
from collections.abc import Callable, Iterator

import pytest

from tests.mutants.hunts import Exploration
from tests.mutants.runner import HUNTS, MUTANTS, Report, hunt_clean, hunt_mutant
from tests.mutants.seed_hunts import SeedHunt

pytestmark = pytest.mark.long

IN_NO_OTHER_TEST = [name for name, hunt in HUNTS.items() if not isinstance(hunt, SeedHunt | Exploration)]
"""Other tests simulate and explore the product with what the other hunts look at; `make mutants` runs all on it."""

TAKES_LONG = "the terms on a promoted copy of the store may be those of the leader before"
"""Half a minute of CPU. `make mutants` hunts it, and tests/unit/store/test_term.py has the rule on real servers."""

Waiting = Callable[[str, str], Report]
"""Returns the report of one hunt, by kind and name."""


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[Waiting]:
    """The reports that this module's chosen tests need. All hunts start at once on two processes. Under xdist, where
    pytest has a process per core, each test hunts on its own."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        yield lambda kind, name: _HUNTERS[kind](name)
        return
    wanted = [
        item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")
    ]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        waiting = {
            (kind, spec.params[kind]): pool.apply_async(hunt, (spec.params[kind],))
            for spec in wanted
            for kind, hunt in _HUNTERS.items()
            if kind in spec.params
        }
        yield lambda kind, name: waiting[kind, name].get()


_HUNTERS: dict[str, Callable[[str], Report]] = {"mutant": hunt_mutant, "hunt": hunt_clean}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", [name for name in MUTANTS if name != TAKES_LONG])
def test_a_broken_product_is_found_out_by_name(mutant: str, reports: Waiting) -> None:
    report = reports("mutant", mutant)
    assert report.problem is None, report.problem


@pytest.mark.slow
@pytest.mark.parametrize("hunt", IN_NO_OTHER_TEST)
def test_the_same_hunt_finds_nothing_in_the_product(hunt: str, reports: Waiting) -> None:
    report = reports("hunt", hunt)
    assert report.problem is None, report.problem


@pytest.mark.parametrize(
    "name",
    [
        "the coordinator orders a commit before its decision is durable",
        "a checkpoint counts as settled with one slot missing",
        "the driver commits before the coordinator has decided",
    ],
)
def test_some_are_found_out_at_once(name: str) -> None:
    assert hunt_mutant(name).problem is None


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_applies_and_leaves_nothing_behind(mutant: str) -> None:
    with MUTANTS[mutant].breaks():
        pass


def test_hunts_have_unique_names_and_every_mutant_describes_its_harm() -> None:
    assert all(HUNTS[mutant.hunt.name] == mutant.hunt for mutant in MUTANTS.values())
    assert all(mutant.caught_by and mutant.hurts for mutant in MUTANTS.values())
    assert len(MUTANTS) >= 28


def test_a_survivor_and_a_catch_by_another_name_fail() -> None:
    mutant = next(iter(MUTANTS.values()))
    assert Report(name=mutant.name, hunt="any", finding=None, seconds=0).problem is not None
    found = mutant.hunt.find(mutant.breaks)
    assert found is not None
    named = Report(name=mutant.name, hunt="any", finding=found, seconds=0)
    assert named.problem is None
    other = next(one for one in MUTANTS.values() if found.invariant not in one.caught_by)
    assert Report(name=other.name, hunt="any", finding=found, seconds=0).problem is not None
