"""Processes of real Spark die: tasks' workers at every kill point of a task, workers, executors, JVMs and drivers."""

import os
import random
import signal
from collections.abc import Iterator

from onceward.common.killpoints import KillPoint
from tests.crash.points import SCENES, scene_of
from tests.support.harness import Harness
from tests.support.jobs import Job, Setup, judged
from tests.support.killed_job import ANY_TIME, SPARK_LIMIT_S, KilledJob, at_point
from tests.support.processes import descendants
from tests.support.schedules import STAYING_POINTS, Kill, Schedule
from tests.support.spark_cluster import AWAY_S, CLUSTER, LOCAL, SMALL, standalone
from tests.support.waiting import wait_until

__all__ = [
    "DRIVER",
    "EXECUTOR",
    "WORKER",
    "kill_driver",
    "kill_driver_jvm",
    "kill_drivers",
    "kill_in_spark",
    "kill_one",
    "kill_standalone",
    "kill_tasks",
    "mark_letters",
]

WORKER, EXECUTOR, _JVM = "pyspark.worker", "CoarseGrainedExecutorBackend", "org.apache.spark.deploy.SparkSubmit"
_SETTINGS = {"lease": "5s"}
DRIVER = "driver with Spark"
"""With ``local[...]``. On a cluster, where executors have to start too, the kind of cluster is appended."""
_FEW = 40
"""Records per second and partition. These schedules are long, and every record is judged at the end."""
_MUCH = 5000
"""Records per checkpoint, so that the backlog from Spark's start does not take long."""


def kill_tasks(
    harness: Harness,
    name: str,
    nth: int,
    *,
    transform: bool = False,
    batches: bool = False,
    min_partitions: int | None = None,
) -> Schedule:
    """Kill a Python worker at every kill point of a task, at the ``nth`` pass; Spark retries. Ranges have default
    sizes."""
    points = [point for point in KillPoint if point.startswith("task.") and point not in STAYING_POINTS]
    kills = [at_point("Python worker", point, nth) for point in points]
    armed = harness.arm(*kills)
    setup = Setup(
        spark=LOCAL,
        transform=transform,
        batches=batches,
        adaptive=True,
        min_partitions=min_partitions,
        per_checkpoint=_MUCH,
        settings=_SETTINGS,
        rate=_FEW,
    )

    def body(job: Job) -> None:
        job.note(*kills)
        job.wait(armed.look, "a worker has died at every kill point of a task")
        job.settles()

    return judged(harness, Schedule(part="spark", name=name), setup, body, armed)


def kill_drivers(harness: Harness, name: str, *, seed: int, times: int) -> Schedule:
    """Kill the driver with its JVM and its workers, at points of its third checkpoint and at any time.

    The checkpoints before show how long the restart took.
    """
    chance = random.Random(seed)
    setup = Setup(spark=LOCAL, transform=True, per_checkpoint=_MUCH, settings=_SETTINGS, rate=_FEW)

    def body(job: Job) -> None:
        job.settles(2)
        for _ in range(times):
            kill_driver(job, chance)
            for point in (KillPoint.DRIVER_AFTER_PRE_COMMIT, KillPoint.DRIVER_BETWEEN_END_TXN):
                armed = job.harness.arm(at_point(DRIVER, point, 3))
                job.dies(job.drive(armed), armed, SPARK_LIMIT_S)
            job.drive()
            job.settles(2)

    return judged(harness, Schedule(part="spark", name=name, seed=seed), setup, body)


def mark_letters(harness: Harness, name: str) -> Schedule:
    """Kill a job whose DataFrame marks its dead letters: its driver, one after the other, at every kill point that each
    checkpoint passes, and Python workers at every kill point of a task."""
    points = [point for point in KillPoint if point.startswith("driver.") and scene_of(point) is SCENES[-1]]
    tasks = [point for point in KillPoint if point.startswith("task.") and point not in STAYING_POINTS]
    kills = [at_point("Python worker", point) for point in tasks]
    armed = harness.arm(*kills)
    setup = Setup(spark=LOCAL, transform=True, letters=True, per_checkpoint=_MUCH, settings=_SETTINGS, rate=_FEW)

    def body(job: Job) -> None:
        job.note(*kills)
        job.wait(armed.look, "a worker has died at every kill point of a task")
        for point in points:
            if point not in STAYING_POINTS:
                dying = job.harness.arm(at_point(DRIVER, point, 1))
                job.dies(job.drive(dying), dying, SPARK_LIMIT_S)
        job.drive()
        job.settles()

    return judged(harness, Schedule(part="letters", name=name), setup, body, armed)


def kill_in_spark(harness: Harness, name: str, *, seed: int, times: int, staying: bool = False) -> Schedule:
    """Kill workers, an executor's JVM, the driver's JVM and the driver of a ``local-cluster``, each ``times`` times."""
    chance = random.Random(seed)
    setup = Setup(spark=CLUSTER, staying=staying, per_checkpoint=_MUCH, settings=_SETTINGS, rate=_FEW)

    def body(job: Job) -> None:
        job.settles()
        for _ in range(times):
            kill_one(job, "Python worker", WORKER, chance)
            kill_one(job, "executor JVM", EXECUTOR, chance)
            kill_driver_jvm(job)
            kill_driver(job, chance, f"{DRIVER}, local-cluster")

    return judged(harness, Schedule(part="staying" if staying else "spark", name=name, seed=seed), setup, body)


def kill_standalone(harness: Harness, name: str, *, seed: int) -> Schedule:
    """Kill an executor, a Spark worker and the driver of a standalone cluster; its two workers have own addresses."""
    chance = random.Random(seed)
    with standalone(harness) as (master, workers, start):
        spark = f"--master {master} {SMALL} --conf spark.executor.cores=1"
        setup = Setup(spark=spark, per_checkpoint=_MUCH, settings=_SETTINGS, rate=_FEW)

        def body(job: Job) -> None:
            job.settles()
            executors = [process for worker in workers for process, _ in _those(worker.pid, EXECUTOR)]
            job.kill(Kill(process="executor JVM", place=ANY_TIME), lambda: _sigkill(chance.choice(executors)))
            job.settles(2)
            job.kill(Kill(process="Spark worker", place=ANY_TIME), workers[0].end)
            job.settles(2)
            workers[0] = start(2)
            kill_driver(job, chance, f"{DRIVER}, standalone")

        return judged(harness, Schedule(part="spark", name=name, seed=seed), setup, body)


def kill_one(job: KilledJob, process: str, what: str, chance: random.Random) -> None:
    assert job.driver is not None
    driver = job.driver
    wait_until(lambda: list(_those(driver.pid, what)), f"there is a {process}", AWAY_S)
    found = [pid for pid, _ in _those(driver.pid, what)]
    job.kill(Kill(process=process, place=ANY_TIME), lambda: _sigkill(chance.choice(found)))
    job.settles(2)


def kill_driver_jvm(job: KilledJob) -> None:
    """Kill the driver's JVM. The driver must notice and leave; it may settle completed checkpoints before."""
    assert job.driver is not None
    driver = job.driver
    jvm = next(pid for pid, _ in _those(driver.pid, _JVM))
    job.kill(Kill(process="driver JVM", place=ANY_TIME), lambda: _sigkill(jvm))
    if driver.wait(AWAY_S) == 0:
        job.schedule.reasons.append(f"the driver left well without its JVM:\n{driver.tail()}")
    job.drive()
    job.settles(2)


def kill_driver(job: Job, chance: random.Random, process: str = DRIVER) -> None:
    assert job.driver is not None
    job.lives(chance.uniform(0, 1))
    job.kill(Kill(process=process, place=ANY_TIME), job.driver.end)
    job.drive()
    job.settles(2)


def _those(pid: int, what: str) -> Iterator[tuple[int, str]]:
    return ((child, command) for child, command in descendants(pid) if what in command)


def _sigkill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
