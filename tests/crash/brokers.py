"""Each of three brokers dies under a running job, then all of them at once; three replicas, two in sync."""

from tests.crash.ground import Ground
from tests.crash.jobs import ANY_TIME, Job, Setup, judged
from tests.crash.results import Kill, Schedule

__all__ = ["kill_brokers"]

_EVERY = (1, 2, 3, None)
"""None: all at once."""


def kill_brokers(ground: Ground, name: str, *, rounds: int = 1) -> Schedule:
    """``ground`` stands on three brokers. While one is away the job goes on without it."""

    def body(job: Job) -> None:
        job.settles(3)
        for _ in range(rounds):
            for node in _EVERY:
                _kill(job, node)

    return judged(ground, Schedule(part="brokers", name=name), Setup(settings={"lease": "30s"}), body)


def _kill(job: Job, node: int | None) -> None:
    kafka = job.ground.kafka
    kill = Kill(process="all brokers" if node is None else f"broker {node}", place=ANY_TIME)
    job.kill(kill, lambda: kafka.kill(node))
    kill.reached = not kafka.pids if node is None else node not in kafka.pids
    if node is not None:
        job.settles()  # by the two that are left
    kafka.restart(node)
    kill.back_at = job.now()
    job.settles(3)
