"""Brokers die, shut down one after the other, and run out of disk, under a running job; three replicas, two in sync."""

from collections.abc import Sequence
from functools import partial

from tests.support.harness import Harness
from tests.support.jobs import Job, Setup, judged
from tests.support.killed_job import ANY_TIME
from tests.support.schedules import Kill, Schedule
from tests.support.small_disk import SmallDisk
from tests.support.spark_cluster import LOCAL
from tests.support.waiting import wait_until

__all__ = ["SMALL", "fill_disk", "kill_brokers", "roll_brokers"]

SMALL = 2
"""The broker with the small disk."""
_TOGETHER = ((1,), (2,), (3,), (1, 2), (1, 2, 3))
"""The brokers that die together. With two down, too few replicas are in sync for any write."""
_LEASE = {"lease": "30s"}
_NOTICE_LIMIT_S = 60.0


def kill_brokers(harness: Harness, name: str, *, rounds: int = 1, query: bool = False) -> Schedule:
    """Kill each of the three brokers of ``harness``, then two, then all. The job continues while one is down.

    ``query``: the job is a Structured Streaming query.
    """

    def body(job: Job) -> None:
        job.settles(3)
        for _ in range(rounds):
            for nodes in _TOGETHER:
                _kill(job, nodes)

    setup = Setup(settings=_LEASE, spark=LOCAL if query else None, query=query)
    return judged(harness, Schedule(part="brokers", name=name), setup, body)


def roll_brokers(harness: Harness, name: str) -> Schedule:
    """Restart the brokers in turn under load, as in an upgrade: each hands over its leaderships, leaves and returns."""

    def body(job: Job) -> None:
        job.settles(3)
        for node in range(1, harness.kafka.brokers + 1):
            left = Kill(process="broker, shut down", place=ANY_TIME)
            job.kill(left, partial(harness.kafka.shut_down, node))
            job.settles(3)
            harness.kafka.restart(node)
            left.back_at = job.now()
            job.settles(3)

    setup = Setup(settings=_LEASE, rate=500, per_checkpoint=20_000)
    return judged(harness, Schedule(part="brokers", name=name), setup, body)


def fill_disk(harness: Harness, name: str, disk: SmallDisk) -> Schedule:
    """Fill ``disk``, the disk of broker ``SMALL``, then free it and start the broker again."""

    def body(job: Job) -> None:
        job.settles(3)
        full = Kill(process="broker, disk full", place="ENOSPC")
        job.kill(full, disk.fill)
        wait_until(
            lambda: SMALL not in harness.kafka.pids, "the broker leaves because its disk is full", _NOTICE_LIMIT_S
        )
        job.settles(3)  # on the two other brokers
        disk.free()
        harness.kafka.restart(SMALL)
        full.back_at = job.now()
        job.settles(3)

    return judged(harness, Schedule(part="brokers", name=name), Setup(settings=_LEASE), body)


def _kill(job: Job, nodes: Sequence[int]) -> None:
    kafka = job.harness.kafka
    kills = []
    for node in nodes:
        process = "broker" if len(nodes) == 1 else f"{len(nodes)} of {kafka.brokers} brokers"
        kills.append(Kill(process=process, place=ANY_TIME))
        job.kill(kills[-1], partial(kafka.kill, node))
    if len(nodes) == 1:
        job.settles()  # on the two other brokers
    for again in nodes if len(nodes) < kafka.brokers else (None,):
        kafka.restart(again)  # all at once: one alone would wait for a quorum
    for kill in kills:
        kill.back_at = job.now()
    job.settles(3)
