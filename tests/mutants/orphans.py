"""Bugs of the coordinator in place of a driver: something stays open, or is ended wrongly or by the wrong process."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onceward.coordinator.service.engine import Engine
from onceward.coordinator.service.orphan import Orphan
from onceward.coordinator.service.orphan_systems import OrphanSystems
from onceward.coordinator.service.orphans import Orphans
from onceward.protocol import evolve, generations, orphans, settling
from onceward.protocol import state as states
from onceward.protocol.answers import Ready
from onceward.protocol.committing import System
from onceward.protocol.durable import Durable
from onceward.protocol.events import TakeOrphan
from onceward.protocol.facts import GenerationGranted
from onceward.protocol.state import JobState
from onceward.protocol.values import (
    COORDINATOR,
    Committable,
    Generation,
    Outcome,
    ParticipantName,
    Settlement,
)
from tests.explorer.world import WORLDS, Bounds
from tests.mutants.breaking import always, both, within, wrapped
from tests.mutants.hunts import Exploration
from tests.mutants.kafka import SETTLES_UNSEEN
from tests.mutants.mutant import Mutant
from tests.mutants.rivals import Fork
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant
from tests.simulation.executors import TaskFaults
from tests.support.oracle import Invariant as Small

__all__ = ["ORPHANS"]

ALONE = Exploration(
    name="a small world without a driver",
    bounds=Bounds(checkpoints=2, generations=3, crashes=2, messages=0, store=0, declines=0, timeouts=0, alone=True),
)
COPIES = Exploration(
    name="a small world without a driver, and an older copy of the store", bounds=WORLDS["copies of orphans"]
)
FORK = Fork(name="two copies of one store, and a coordinator in place of a driver", orphan=True)
_GONE = {"gone": True, "lease": 1.0, "orphan_grace": 1.0, "fault_time": 8.0, "interval": 0.0, "marker_delay": 0.0}
GONE = SeedHunt(
    name="drivers never return",
    seeds=40,
    faults=clear(**_GONE, coordinator_kills=4, tasks=TaskFaults(slow=0.3)),
)
ROBBED = SeedHunt(
    name="drivers never return, and another program aborts decided transactions",
    seeds=12,
    faults=clear(**_GONE, robberies=0.5),
)
KILLED = SeedHunt(
    name="drivers never return, and coordinators are killed while they settle",
    seeds=220,
    faults=clear(**_GONE, kill_points=0.05, coordinator_kills=2),
)

LATE = SeedHunt(
    name="drivers never return, and markers are late",
    seeds=12,
    faults=clear(**{**_GONE, "marker_delay": 0.5}),
)


async def _none_ending(
    self: OrphanSystems, name: ParticipantName, committables: Sequence[Committable]
) -> Sequence[str]:
    return ()


async def _does_nothing(_commit_decided: object, self: Orphan, among: Collection[str]) -> None:
    pass


async def _takes_for_committed(
    commit: Callable[
        [OrphanSystems, ParticipantName, Sequence[Committable], Callable[[], bool], Collection[str]],
        Coroutine[Any, Any, tuple[Settlement, ...]],
    ],
    self: OrphanSystems,
    name: ParticipantName,
    committables: Sequence[Committable],
    give_up: Callable[[], bool],
    among: Collection[str],
) -> tuple[Settlement, ...]:
    settlements = await commit(self, name, committables, give_up, among)
    return tuple(replace(one, outcome=Outcome.COMMITTED) for one in settlements)


def _compares_once(
    take: Callable[[JobState, TakeOrphan], tuple[JobState, Ready]], state: JobState, event: TakeOrphan
) -> tuple[JobState, Ready]:
    return take(state, replace(event, claims=()) if state.durable.orphaned else event)


def _not_of_the_coordinator(
    with_holder: Callable[[Mapping[Generation, str], GenerationGranted], Mapping[Generation, str]],
    holders: Mapping[Generation, str],
    fact: GenerationGranted,
) -> Mapping[Generation, str]:
    return holders if fact.driver == COORDINATOR else with_holder(holders, fact)


_UNNAMED = wrapped(evolve._with_holder, _not_of_the_coordinator)

ORPHANS = (
    Mutant(
        name="the store does not record that a generation is its coordinator's",
        hurts="a driver that got this generation from another copy of the store passes, and records are written twice",
        breaks=_UNNAMED,
        hunt=FORK,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="the coordinator takes the claim of a driver that got its generation from another copy of the store",
        hurts="the driver's sweep has aborted what the coordinator then settles",
        breaks=_UNNAMED,
        hunt=COPIES,
        caught_by=(Small.NEVER_CHANGES,),
    ),
    Mutant(
        name="the coordinator does not compare the claim of an orphan that it has already taken",
        hurts="an older copy of the store replaces a newer claim, and the next driver there writes records twice",
        breaks=wrapped(orphans.take, _compares_once),
        hunt=COPIES,
        caught_by=(Small.CLAIMED,),
    ),
    Mutant(
        name="the coordinator settles an orphan before readers see its commits",
        hurts="a reader that starts after its end misses the last records",
        breaks=both(SETTLES_UNSEEN, within(Orphan._await_ends, OrphanSystems.ending, _none_ending)),
        hunt=LATE,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="a restarted coordinator does not look for orphans",
        hurts="readers wait until the brokers time out the transactions",
        breaks=within(Orphans.start, Engine.jobs, always([])),
        hunt=GONE,
        caught_by=(Invariant.ORPHANS,),
    ),
    Mutant(
        name="a restarted coordinator does not continue with the orphans that it has taken",
        hurts="the transactions that it had not ended stay open",
        breaks=within(orphans.take, Durable.orphaned, always(False)),
        hunt=ALONE,
        caught_by=(Small.CONTRACT,),
    ),
    Mutant(
        name="the coordinator never takes a job whose driver was lost while it was down",
        hurts="readers wait until an operator starts the job",
        breaks=wrapped(
            states.restart, lambda restart, durable, now: replace(restart(durable, now), driverless_since=None)
        ),
        hunt=ALONE,
        caught_by=(Small.ALONE,),
    ),
    Mutant(
        name="the coordinator refuses its own outcomes of an orphan's commits",
        hurts="it repeats the commits forever, and the checkpoint is never settled",
        breaks=within(settling._unsettled, generations.may_report, generations.may_drive),
        hunt=ALONE,
        caught_by=(Small.SETTLED,),
    ),
    Mutant(
        name="the coordinator takes an orphan in its driver's generation",
        hurts="a driver that was only disconnected is not fenced, and both end transactions",
        breaks=within(orphans.take, Generation, lambda item: Generation(item - 1)),
        hunt=GONE,
        caught_by=(Invariant.I7,),
    ),
    Mutant(
        name="the coordinator leaves undecided transactions of an orphan open",
        hurts="readers wait until the brokers time out the transactions",
        breaks=within(
            OrphanSystems.sweep, System.sweep, lambda self, job, *, keep=(), **_: self.leftovers(job, keep=keep)
        ),
        hunt=GONE,
        caught_by=(Invariant.ORPHANS,),
    ),
    Mutant(
        name="the coordinator leaves decided transactions of an orphan open",
        hurts="readers wait until an operator starts the job, and after the brokers' timeout the records are lost",
        breaks=wrapped(Orphan._commit_decided, _does_nothing),
        hunt=GONE,
        caught_by=(Invariant.ORPHANS,),
    ),
    Mutant(
        name="the coordinator sweeps decided transactions of an orphan",
        hurts="a completed checkpoint has lost its transactions",
        breaks=within(OrphanSystems.sweep, System.sweep, lambda self, job, *, keep=(), **_: self.sweep(job)),
        hunt=KILLED,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the coordinator treats each commit of an orphan that it has sent as done",
        hurts="an aborted transaction counts as settled, and its records never become visible",
        breaks=wrapped(OrphanSystems.commit, _takes_for_committed),
        hunt=ROBBED,
        caught_by=(Invariant.I1,),
    ),
)
