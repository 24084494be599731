"""Runs seeds: one world each."""

import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.simulation.checker import Violation
from tests.simulation.fault_profile import FaultProfile, draw
from tests.simulation.patches import patched
from tests.simulation.world import SimulatedWorld

__all__ = ["Result", "run_seed", "transcript"]

Mutant = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of a seed's world."""

    seed: int
    staying: bool
    """Whether the job's tasks stay."""
    violation: Violation | None
    ending: str
    """How the job ended: finished, or why it halted."""
    counts: Counter[str] = field(default_factory=Counter)


def run_seed(
    seed: int,
    *,
    mutant: Mutant | None = None,
    steer: Callable[[FaultProfile], FaultProfile] | None = None,
    trace: Callable[[float, str, str], None] | None = None,
    requests: bool = False,
    **fixed: Any,
) -> Result:
    """Run the world of one seed.

    :param mutant: makes a context that breaks the product while the world runs.
    :param steer: changes the faults that the seed drew, to make a fault likely; ``fixed`` sets single fields.
    :param trace: receives every line of the transcript: virtual seconds, who, what.
    :param requests: also writes a line for every request to the brokers and to the table.
    """
    random = Random(seed)
    faults = draw(random)
    if steer is not None:
        faults = steer(faults)
    if fixed:
        faults = replace(faults, **fixed)
    with patched(), (mutant or nullcontext)():
        world = SimulatedWorld(random, faults, trace)
        for system in world.systems:
            system.log_requests = requests and trace is not None
        world.run()
    checker, counts = world.checker, world.counts
    links = [world.rpc, *(system.link for system in world.systems)]
    counts.update(
        events=world.clock.steps,
        requests=sum(system.requests for system in world.systems),
        lost=sum(link.lost for link in links),
        duplicated=sum(link.duplicated for link in links),
        slow=sum(link.slowed for link in links),
        skipped_markers=sum(system.skipped for system in world.systems),
        second_sinks=len(world.checkers) - 1,
        tables=len(world.lakes),
        refused_looks=sum(lake.refused for lake in world.lakes),
        late_landings=sum(lake.late for lake in world.lakes),
        fences=sum(lake.fences for lake in world.lakes),
        store_failures=world.store.failures,
        late_store=world.store.lates,
        ended_sessions=world.store.ended,
        refused_commits=world.store.refused,
        outlived_commits=world.store.outlived,
        waited_terms=world.store.waited,
        elections=world.host.elections,
        led_again=world.host.returns,
        generations=checker.generations,
        completed=checker.completed,
        settled=checker.settled,
        aborted=checker.aborted,
        visible=sum(each.visible for each in world.checkers),
    )
    return Result(seed=seed, staying=faults.staying, violation=checker.violation, ending=world.ending, counts=counts)


def transcript(seed: int, **arguments: Any) -> tuple[Result, list[str]]:
    """A seed's result and transcript."""
    lines: list[str] = []

    def note(at: float, who: str, what: str) -> None:
        lines.append(f"{at:10.4f}  {who:<22} {what}")

    return run_seed(seed, trace=note, **arguments), lines


def digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
