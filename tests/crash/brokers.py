"""Brokers die under a running job, leave one after the other, and run out of disk; three replicas, two in sync."""

from collections.abc import Sequence
from functools import partial

from tests.crash.harness import Harness
from tests.crash.jobs import ANY_TIME, Job, Setup, judged
from tests.crash.results import Kill, Schedule
from tests.crash.small_disk import SmallDisk
from tests.integration.tools import wait_until

__all__ = ["SMALL", "fill_disk", "kill_brokers", "roll_brokers"]

SMALL = 2
"""The broker whose disk is a small one."""
_TOGETHER = ((1,), (2,), (3,), (1, 2), (1, 2, 3))
"""With two of them away too few replicas are in sync, so that nothing can be written."""
_LEASE = {"lease": "30s"}
_NOTICE_LIMIT_S = 60.0


def kill_brokers(harness: Harness, name: str, *, rounds: int = 1) -> Schedule:
    """``harness`` has three brokers. While one is away the job goes on without it."""

    def body(job: Job) -> None:
        job.settles(3)
        for _ in range(rounds):
            for nodes in _TOGETHER:
                _kill(job, nodes)

    return judged(harness, Schedule(part="brokers", name=name), Setup(settings=_LEASE), body)


def roll_brokers(harness: Harness, name: str) -> Schedule:
    """A rolling restart, as for an update: each broker hands over what it leads, leaves and comes back, under load."""

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
    """``disk`` is that of broker ``SMALL``. It fills up; there is room again, and the broker is started again."""

    def body(job: Job) -> None:
        job.settles(3)
        full = Kill(process="broker, disk full", place="ENOSPC")
        job.kill(full, disk.fill)
        wait_until(
            lambda: SMALL not in harness.kafka.pids, "the broker leaves because its disk is full", _NOTICE_LIMIT_S
        )
        job.settles(3)  # by the two that are left
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
        job.settles()  # by the two that are left
    for again in nodes if len(nodes) < kafka.brokers else (None,):
        kafka.restart(again)  # all at once where one alone would wait for a quorum
    for kill in kills:
        kill.back_at = job.now()
    job.settles(3)
