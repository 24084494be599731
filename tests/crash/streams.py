"""Structured Streaming queries: their drivers die at every kill point of a batch, and each of their processes at any
time."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from onceward.common.killpoints import KillPoint
from tests.crash.points import lose_transactions
from tests.crash.spark import EXECUTOR, WORKER, kill_driver_jvm, kill_one
from tests.support.harness import Harness
from tests.support.jobs import Job, Setup, judged
from tests.support.killed_job import ANY_TIME, SPARK_LIMIT_S, at_point, conduct
from tests.support.schedules import Kill, Schedule
from tests.support.spark_cluster import CLUSTER, LOCAL
from tests.support.stream_job import StreamJob
from tests.support.stream_queries import FAST_STATE, NAMED_STATE, QUERIES, ROCKSDB, VISITS
from tests.support.topics import abort_with_the_brokers_tool, open_transactions_hold_back
from tests.support.waiting import wait_until

__all__ = ["POINTS", "kill_around_batches", "kill_executors", "set_aside", "stay_away", "visit_batches"]

Move: TypeAlias = Callable[[StreamJob, random.Random], None]

_DRIVER, _COORDINATOR = "driver of a query", "coordinator of a query"
POINTS = [point for point, _ in VISITS if point.startswith("batch.")]
_FEW, _MANY = 4, 30
"""Files that each driver finds unread. With few it dies in its third batch; many outlast several kills."""
_STATES: Sequence[Mapping[str, str]] = ({}, ROCKSDB, NAMED_STATE, FAST_STATE)
_SLOW, _MUCH = 40, 5000
"""Records per second and partition, and per batch: the backlog from a start of Spark must not take long."""
_MANY_PARTITIONS = {"spark.sql.shuffle.partitions": "6"}
_EVERY_BATCH = (
    KillPoint.BATCH_BEFORE_OFFER,
    KillPoint.BATCH_AFTER_OFFER,
    KillPoint.DRIVER_AFTER_TRIGGER,
    KillPoint.DRIVER_AFTER_PLAN,
    KillPoint.BATCH_AFTER_RUN,
    KillPoint.DRIVER_AFTER_VOTES,
    KillPoint.DRIVER_AFTER_PRE_COMMIT,
    KillPoint.DRIVER_AFTER_ACKNOWLEDGE,
    KillPoint.BATCH_AFTER_SETTLE,
)
"""Points that a batch passes even if it writes no records."""


def visit_batches(harness: Harness, query: str) -> Schedule:
    """Kill the driver of a query at every kill point of a batch, one after the other."""

    def body(job: StreamJob) -> None:
        for point, nth in VISITS:
            _driver_dies(job, point, nth)
            if point is KillPoint.DRIVER_AFTER_DECISION:
                _abort_by_hand(job)
        job.drive()

    schedule = Schedule(part="streams", name=f"batches-{query}")
    return conduct(StreamJob(harness, schedule, query, ahead=_FEW), body)


def kill_around_batches(harness: Harness, seed: int) -> Schedule:
    """Kill each process of a query in random order, at random times in its batches. Query and state store follow from
    the seed. With an odd one, several partitions share each transaction from a driver's second batch on."""
    chance = random.Random(seed)
    query = sorted(QUERIES)[seed % len(QUERIES)]
    state = {**_STATES[(seed + seed // len(QUERIES)) % len(_STATES)], **(_MANY_PARTITIONS if seed % 2 else {})}
    plan = chance.sample(_MOVES, len(_MOVES))

    def body(job: StreamJob) -> None:
        job.drive()
        job.settles()
        for move in plan:
            job.lives(chance.uniform(0, 2))
            move(job, chance)

    schedule = Schedule(part="streams", name=f"stream-seed-{seed}", seed=seed)
    return conduct(StreamJob(harness, schedule, query, ahead=_MANY, state=state), body)


def kill_executors(harness: Harness, query: str, *, seed: int) -> Schedule:
    """Kill a Python worker and an executor's JVM of a ``local-cluster``, twice each. Executors keep the state; another
    one loads what a dead one had."""
    chance = random.Random(seed)

    def body(job: StreamJob) -> None:
        job.drive()
        job.settles()
        for process, what in (("Python worker", WORKER), ("executor JVM", EXECUTOR)) * 2:
            kill_one(job, process, what, chance)

    schedule = Schedule(part="streams", name=f"executors-{query}", seed=seed)
    return conduct(StreamJob(harness, schedule, query, ahead=2 * _MANY, spark=CLUSTER), body)


def stay_away(harness: Harness, name: str) -> Schedule:
    """Complete a batch and let its transactions time out before a driver is back. The query reads from Kafka."""

    def body(job: Job) -> None:
        job.settles()
        lose_transactions(job, SPARK_LIMIT_S)
        job.drive()
        job.wait(lambda: job.events("replayed"), "the lost transactions are written again")
        job.settles(2)

    setup = Setup(spark=LOCAL, query=True, transaction_timeout="20s", settings={"timeout": "15s"})
    return judged(harness, Schedule(part="streams", name=name), setup, body)


def set_aside(harness: Harness, name: str, times: int) -> Schedule:
    """Kill the driver of a query that sets records aside at every kill point of a batch, ``times`` times. The query
    reads from Kafka."""

    def body(job: Job) -> None:
        job.settles()
        for _ in range(times):
            for point, nth in VISITS:
                armed = harness.arm(at_point(_DRIVER, point, nth))
                job.dies(job.drive(armed), armed, SPARK_LIMIT_S)
                if point is KillPoint.DRIVER_AFTER_DECISION:
                    _abort_by_hand(job)
        job.drive()

    setup = Setup(spark=LOCAL, query=True, letters=True, settings={"lease": "5s"}, rate=_SLOW, per_checkpoint=_MUCH)
    return judged(harness, Schedule(part="letters", name=name), setup, body)


def _kill_driver(job: StreamJob) -> None:
    assert job.driver is not None
    job.kill(Kill(process=_DRIVER, place=ANY_TIME), job.driver.end)


def _driver(job: StreamJob, chance: random.Random) -> None:
    """Kill the driver, and the next one at a point of one of its first batches."""
    _kill_driver(job)
    _driver_dies(job, chance.choice(_EVERY_BATCH), chance.randint(1, 3))
    job.drive()
    job.settles()


def _driver_and_transactions(job: StreamJob, _chance: random.Random) -> None:
    """Kill the driver, and the next one when a batch is decided, whose transactions are then lost."""
    _kill_driver(job)
    _driver_dies(job, KillPoint.DRIVER_AFTER_DECISION, 1)
    _abort_by_hand(job)
    job.drive()
    job.wait(lambda: job.events("replayed"), "the lost transactions are written again")
    job.settles()


def _driver_and_orphan(job: StreamJob, _chance: random.Random) -> None:
    """Kill the driver, and the next one when a batch is decided; the coordinator settles it before a driver is back."""
    usual, job.orphan_grace = job.orphan_grace, "5s"
    _kill_driver(job)
    _driver_dies(job, KillPoint.DRIVER_AFTER_DECISION, 1)
    job.orphan_grace = usual
    wait_until(lambda: not any(open_transactions_hold_back(job.topics.servers, job.sink).values()), "it is settled")
    job.drive()
    job.settles()


def _jvm(job: StreamJob, _chance: random.Random) -> None:
    kill_driver_jvm(job)


def _worker(job: StreamJob, chance: random.Random) -> None:
    kill_one(job, "Python worker", WORKER, chance)


def _coordinator(job: StreamJob, chance: random.Random) -> None:
    job.kill(Kill(process=_COORDINATOR, place=ANY_TIME), job.harness.stop_serving)
    job.lives(chance.uniform(0, 1))
    job.back()
    job.settles(2)


_MOVES: Sequence[Move] = (_driver, _driver_and_transactions, _driver_and_orphan, _jvm, _worker, _coordinator)


def _driver_dies(job: StreamJob, point: KillPoint, nth: int) -> None:
    armed = job.harness.arm(at_point(_DRIVER, point, nth))
    job.dies(job.drive(armed), armed, SPARK_LIMIT_S)


def _abort_by_hand(job: StreamJob | Job) -> None:
    """Abort the open transactions that a dead driver has left, as a person with rights on the cluster can."""
    for partition, records in open_transactions_hold_back(job.topics.servers, job.sink).items():
        if records:
            abort_with_the_brokers_tool(job.topics.servers, job.sink, partition)
