"""Random schedules from a seed: drivers and coordinators die anywhere, together, during recovery, or stay down for
longer than their transactions live."""

import random
from collections.abc import Callable
from typing import TypeAlias

from onceward.common.killpoints import KillPoint
from tests.crash.points import NOT_ALONE, ONCE_PER_PROCESS, lose_transactions, scene_of
from tests.support.harness import Harness
from tests.support.jobs import Job, Setup, judged
from tests.support.killed_job import ANY_TIME, at_point
from tests.support.schedules import STAYING_POINTS, Kill, Schedule

__all__ = ["combine"]

Move: TypeAlias = Callable[[Job, random.Random], None]

_SHORT = Setup(transaction_timeout="2s", settings={"timeout": "2s"})
_LONG = Setup()
_MOVES_OF_A_SCHEDULE = 8
_REACHED_BY_ALL = {"driver", "coordinator"}
"""Scenes whose points every job passes."""


def combine(harness: Harness, seed: int, *, moves: int = _MOVES_OF_A_SCHEDULE) -> Schedule:
    """Run the schedule of a seed. In every second schedule an outage lasts longer than the transactions live."""
    chance = random.Random(seed)
    short = seed % 2 == 0
    plan = [chance.choice(_MOVES) for _ in range(moves)]
    if short:
        plan.insert(chance.randrange(moves), _stay_away_too_long)

    def body(job: Job) -> None:
        job.settles()
        for move in plan:
            move(job, chance)
        job.drive()

    schedule = Schedule(part="combinations", name=f"seed-{seed}", seed=seed)
    return judged(harness, schedule, _SHORT if short else _LONG, body)


def _point(chance: random.Random, process: str) -> tuple[KillPoint, int]:
    passed = [p for p in KillPoint if p.startswith(process) and p not in STAYING_POINTS]
    points = [p for p in passed if scene_of(p).name in _REACHED_BY_ALL]
    point = chance.choice(points)
    return point, 1 if point in ONCE_PER_PROCESS else chance.randint(1, 3)


def _driver_at_point(job: Job, chance: random.Random) -> None:
    armed = job.harness.arm(at_point("driver", *_point(chance, chance.choice(("driver.", "task.")))))
    job.dies(job.drive(armed), armed)


def _driver_any_time(job: Job, chance: random.Random) -> None:
    driver = job.drive()
    job.lives(chance.uniform(0, 3))
    job.kill(Kill(process="driver", place=ANY_TIME), driver.end)


def _coordinator_at_point(job: Job, chance: random.Random) -> None:
    armed = job.harness.arm(at_point(NOT_ALONE, *_point(chance, "coordinator.")))
    coordinator = job.harness.serve(armed)
    job.drive()
    job.dies(coordinator, armed)
    job.back()
    job.settles()


def _coordinator_any_time(job: Job, chance: random.Random) -> None:
    job.drive()
    job.lives(chance.uniform(0, 3))
    job.kill(Kill(process=NOT_ALONE, place=ANY_TIME), job.harness.stop_serving)
    job.back()


def _both_at_once(job: Job, chance: random.Random) -> None:
    """Kill the driver at a point and the coordinator within 0.3 s after it."""
    armed = job.harness.arm(at_point("driver", *_point(chance, "driver.")))
    job.dies(job.drive(armed), armed)
    job.lives(chance.uniform(0, 0.3))
    job.kill(Kill(process=NOT_ALONE, place=ANY_TIME), job.harness.stop_serving)
    job.back()


def _stay_away_too_long(job: Job, _chance: random.Random) -> None:
    """Complete a checkpoint and let its transactions time out before they are committed."""
    lose_transactions(job)
    job.drive()
    job.settles(2)


_MOVES: tuple[Move, ...] = (
    _driver_at_point,
    _driver_at_point,
    _driver_any_time,
    _coordinator_at_point,
    _coordinator_any_time,
    _both_at_once,
)
