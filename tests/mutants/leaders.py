"""Bugs of a coordinator that leads no more: it answers or writes what its successor contradicts."""

from collections.abc import Callable, Coroutine
from typing import Any

from onceward.coordinator.service.group_commit import GroupCommit
from onceward.coordinator.store.term import next_number
from tests.explorer.world import WORLDS
from tests.mutants.breaking import wrapped
from tests.mutants.hunts import Exploration
from tests.mutants.mutant import Mutant
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant
from tests.support.oracle import Invariant as Small

__all__ = ["LEADERS"]

LATE = SeedHunt(
    name="the database is late",
    seeds=60,
    first=20_001,  # one of some hundred worlds shows it: 20,039 does
    faults=clear(standby=True, late_store=0.05, interval=0.0, wishes=0, cancels=0),
)
COPIES = Exploration(
    name="a small world of an older copy of the store, and a leader that does not know of it",
    bounds=WORLDS["leaders of copies after a restart"],
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
    Mutant(
        name="the terms on a promoted copy of the store may be those of the leader before",
        hurts="a driver believes that leader, which answers that a checkpoint needs no settling",
        breaks=wrapped(next_number, lambda number, last, timeline: number(last, 1)),
        hunt=COPIES,
        caught_by=(Small.SETTLED,),
    ),
)
