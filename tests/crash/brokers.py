"""Each of three brokers dies under a running job, then two, then all of them; three replicas, two in sync."""

from collections.abc import Sequence
from functools import partial

from tests.crash.ground import Ground
from tests.crash.jobs import ANY_TIME, Job, Setup, judged
from tests.crash.results import Kill, Schedule

__all__ = ["kill_brokers"]

_TOGETHER = ((1,), (2,), (3,), (1, 2), (1, 2, 3))
"""With two of them away too few replicas are in sync, so that nothing can be written."""


def kill_brokers(ground: Ground, name: str, *, rounds: int = 1) -> Schedule:
    """``ground`` stands on three brokers. While one is away the job goes on without it."""

    def body(job: Job) -> None:
        job.settles(3)
        for _ in range(rounds):
            for nodes in _TOGETHER:
                _kill(job, nodes)

    return judged(ground, Schedule(part="brokers", name=name), Setup(settings={"lease": "30s"}), body)


def _kill(job: Job, nodes: Sequence[int]) -> None:
    kafka = job.ground.kafka
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
