"""Tasks that stay die, with everything around them. A generation that loses a task ends, and the next one continues."""

import random

from onceward.common.killpoints import KillPoint
from tests.crash.spark import DRIVER, kill_driver
from tests.support.harness import Harness
from tests.support.jobs import Job, Setup, judged
from tests.support.killed_job import ANY_TIME, SPARK_LIMIT_S, at_point
from tests.support.schedules import Kill, Schedule
from tests.support.spark_cluster import LOCAL

__all__ = ["kill_driver_of_staying", "kill_staying_tasks"]

_PART = "staying"
_FEW = 40
"""Records per second and partition."""
_SETTINGS = {"lease": "5s"}
_DRIVER_POINTS = (
    KillPoint.DRIVER_AFTER_CUT,
    KillPoint.DRIVER_AFTER_VOTES,
    KillPoint.DRIVER_AFTER_PRE_COMMIT,
    KillPoint.DRIVER_AFTER_ACKNOWLEDGE,
    KillPoint.DRIVER_BETWEEN_END_TXN,
)


def kill_staying_tasks(harness: Harness, name: str, nth: int, *, batches: bool = False) -> Schedule:
    """Kill a Python worker at every kill point of a task and of a cut, at the ``nth`` pass of its process."""
    kills = [at_point("Python worker", point, nth) for point in KillPoint if point.startswith("task.")]
    armed = harness.arm(*kills)
    setup = Setup(spark=LOCAL, staying=True, batches=batches, settings=_SETTINGS, rate=_FEW)

    def body(job: Job) -> None:
        job.note(*kills)
        job.wait(armed.look, "a worker has died at every kill point of a task that stays")
        job.settles()

    return judged(harness, Schedule(part=_PART, name=name), setup, body, armed)


def kill_driver_of_staying(harness: Harness, name: str, *, seed: int, times: int) -> Schedule:
    """Kill the driver with its JVM and its tasks, at points of its third checkpoint and at any time; and the
    coordinator, without which the tasks have to hold what they have read."""
    chance = random.Random(seed)
    setup = Setup(spark=LOCAL, staying=True, settings=_SETTINGS, rate=_FEW)

    def body(job: Job) -> None:
        job.settles(2)
        for _ in range(times):
            kill_driver(job, chance)
            job.kill(Kill(process="coordinator", place=ANY_TIME), job.harness.stop_serving)
            job.back()
            job.settles(2)
        for point in _DRIVER_POINTS:
            armed = job.harness.arm(at_point(DRIVER, point, 3))
            job.dies(job.drive(armed), armed, SPARK_LIMIT_S)
        job.drive()
        job.settles(2)

    return judged(harness, Schedule(part=_PART, name=name, seed=seed), setup, body)
