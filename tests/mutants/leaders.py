"""Bugs of a coordinator that leads no more: it answers or writes what its successor contradicts."""

from collections.abc import Callable, Coroutine
from typing import Any

from onceward.coordinator.service.group_commit import GroupCommit
from tests.mutants.breaking import wrapped
from tests.mutants.mutant import Mutant
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant

__all__ = ["LEADERS"]

LATE = SeedHunt(
    name="the database is late",
    seeds=40,
    faults=clear(standby=True, late_store=0.05, interval=0.0, wishes=0, cancels=0),
)


async def _asks_nobody(confirm: Callable[[GroupCommit], Coroutine[Any, Any, None]], self: GroupCommit) -> None:
    pass


LEADERS = (
    Mutant(
        name="a leader answers without asking the database whether it still leads",
        hurts="a driver is refused by a coordinator that does not know what its successor has stored",
        breaks=wrapped(GroupCommit.confirm, _asks_nobody),
        hunt=LATE,
        caught_by=(Invariant.I8,),
    ),
)
