"""Executors of a standalone Spark cluster come and go under a running job: by hand, by dynamic allocation, by being
decommissioned."""

import os
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from onceward.common.killpoints import KillPoint
from tests.support.harness import Harness
from tests.support.jobs import Job, Setup, judged
from tests.support.killed_job import ANY_TIME
from tests.support.processes import Process, armed_with, descendants
from tests.support.schedules import Kill, Schedule
from tests.support.spark_cluster import SMALL, standalone
from tests.support.waiting import wait_until

__all__ = ["allocate", "change_executors", "decommission"]

_EXECUTOR, _WORKER = "CoarseGrainedExecutorBackend", "pyspark.worker"
_CORES = "--conf spark.executor.cores=1 --conf spark.cores.max=4"
_ALLOCATION = (
    "--conf spark.dynamicAllocation.enabled=true --conf spark.dynamicAllocation.shuffleTracking.enabled=true "
    "--conf spark.dynamicAllocation.minExecutors=1 --conf spark.dynamicAllocation.maxExecutors=2 "
    "--conf spark.dynamicAllocation.schedulerBacklogTimeout=1s --conf spark.dynamicAllocation.executorIdleTimeout=2s"
)
_SLOTS = 24
"""Enough for tasks to wait for more than a second: then Spark asks for an executor."""
_STANDS_STILL = f"{KillPoint.TASK_BEFORE_RECEIPT.value}:3"
"""In the middle of the Python worker's third slot."""
_LIMIT_S = 300.0
"""Limit for a Spark process to appear or disappear; only a stalled machine needs this long."""


def change_executors(harness: Harness, name: str) -> Schedule:
    """Between checkpoints, start workers that take tasks and terminate old ones, until none of the first remains."""
    with standalone(harness) as (master, workers, start):

        def body(job: Job) -> None:
            job.settles()
            for number in (4, 5):
                workers.append(start(number))
                wait_until(partial(_works, workers[-1]), "a task runs where a worker joined", _LIMIT_S)
                job.settles(2)
                left = workers.pop(0)
                job.kill(Kill(process="Spark worker, asked to leave", place=ANY_TIME), left.terminate)
                job.settles(2)
                left.end()

        return judged(harness, Schedule(part="spark", name=name), _setup(master), body)


def allocate(harness: Harness, name: str) -> Schedule:
    """Spark starts a second executor while tasks wait, and ends one while the input pauses; kill the one it started."""
    with standalone(harness) as (master, workers, _start):

        def body(job: Job) -> None:
            def reaches(number: int) -> None:
                what = f"Spark has {number} executors"
                wait_until(lambda: len(_executors(workers)) == number, what, _LIMIT_S)

            for _ in range(2):
                reaches(2)
                job.settles(2)
                job.feeder.flowing.clear()
                reaches(1)
                job.feeder.flowing.set()
            reaches(2)
            allocated = Kill(process="executor JVM, allocated", place=ANY_TIME)
            job.kill(allocated, partial(os.kill, max(_executors(workers)), signal.SIGKILL))
            job.settles(2)

        setup = _setup(master, _ALLOCATION, min_partitions=_SLOTS)
        return judged(harness, Schedule(part="spark", name=name), setup, body)


def decommission(harness: Harness, name: str) -> Schedule:
    """Decommission an executor while one of its tasks writes: it takes no new tasks, finishes that task, and leaves."""
    stops = harness.directory / f"{name}.stops"
    environment = armed_with([f"{_STANDS_STILL}:stop"], stops)
    more = [f"--conf spark.executorEnv.{name}={value}" for name, value in environment.items()]
    with standalone(harness) as (master, workers, _start):

        def body(job: Job) -> None:
            job.wait((stops / _STANDS_STILL).exists, "a task stands still while it writes")
            task, executor = next(_stopped(workers))
            taken = Kill(process="executor JVM, decommissioned", place=_STANDS_STILL)
            job.kill(taken, partial(os.kill, executor, signal.SIGPWR))
            wait_until(partial(_said, harness.directory, "Decommission executor"), "it says so", _LIMIT_S)
            os.kill(task, signal.SIGCONT)
            wait_until(lambda: executor not in _executors(workers), "it leaves", _LIMIT_S)
            job.settles(3)

        return judged(
            harness,
            Schedule(part="spark", name=name),
            _setup(master, "--conf spark.decommission.enabled=true", *more),
            body,
        )


def _setup(master: str, *more: str, min_partitions: int | None = None) -> Setup:
    spark = " ".join((f"--master {master} {SMALL} {_CORES}", *more))
    return Setup(spark=spark, per_checkpoint=5000, settings={"lease": "5s"}, rate=40, min_partitions=min_partitions)


def _said(directory: Path, words: str) -> bool:
    """Whether an executor has logged ``words``."""
    return any(words in log.read_text(errors="replace") for log in directory.glob("work-*/*/*/stderr"))


def _works(worker: Process) -> bool:
    return any(_WORKER in command for _, command in descendants(worker.pid))


def _executors(workers: Sequence[Process]) -> list[int]:
    return [pid for worker in workers for pid, command in descendants(worker.pid) if _EXECUTOR in command]


def _stopped(workers: Sequence[Process]) -> Iterator[tuple[int, int]]:
    """Yield (a stopped Python worker, its executor) as process ids."""
    for executor in _executors(workers):
        for pid, command in descendants(executor):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
            if _WORKER in command and state.startswith("T"):
                yield pid, executor
