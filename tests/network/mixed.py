"""The random mode: faults of all scenarios, kills, and both at once, from a seed, for a given time."""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.network.results import Run
from tests.network.runs import run_scenario
from tests.network.scenario import Do, Kill, Scenario
from tests.network.world import LinkedHarness

__all__ = ["mixed"]

_RUNS_OF_A_JOB = 4
_LONGEST_S = 15.0


def mixed(world: LinkedHarness, scenarios: Sequence[Scenario], *, seed: int, minutes: float) -> Iterator[list[Run]]:
    """Run jobs until the time is over. The same seed gives the same jobs in the same order."""
    chance = random.Random(seed)
    end = time.monotonic() + 60 * minutes
    usable = [one for one in scenarios if one.do is Do.WAIT and one.seconds <= _LONGEST_S and not one.fault.bypass]
    number = 0
    while time.monotonic() < end:
        number += 1
        chosen = chance.choice(usable)
        kill = chance.choice([None, None, Kill.DRIVER, Kill.COORDINATOR])
        if chosen.coordinators > 1 and kill is Kill.COORDINATOR:
            kill = None  # a coordinator starts only when it reaches its database
        scenario = replace(
            chosen,
            seconds=chance.uniform(0.5, chosen.seconds),
            kill=kill,
            # a process that starts opens all of its connections at once
            connects_per_s=chosen.connects_per_s * (1 if kill is None else 2),
            aborts=False,  # a shortened fault may go unnoticed
            returns=False,
            goes_on=False,
        )
        phases = chance.choices(scenario.phases, k=_RUNS_OF_A_JOB)
        yield run_scenario(world, scenario, phases, f"seed-{seed}-{number}", chance.randrange(2**31))
