"""All parts of the suite in their order: first those that cost little and find most."""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias, TypeVar

from onceward.common.killpoints import KillPoint
from onceward.dev.kafka import LocalKafka
from onceward.dev.postgres.server import LocalPostgres
from tests.crash.blackouts import black_out, black_out_after_end_txn, lose_leader, outlast, scenes_of_drivers
from tests.crash.brokers import SMALL, fill_disk, kill_brokers, roll_brokers
from tests.crash.cluster import allocate, change_executors, decommission
from tests.crash.combinations import combine
from tests.crash.disk import DISTURBANCES, disturb
from tests.crash.leaders import (
    FAULTS,
    LEADER_SCENES,
    OF_THE_LEADER,
    faulty_harness,
    strike_any_time,
    strike_at_driver_points,
    visit_leader,
)
from tests.crash.leaks import count_leaks
from tests.crash.points import SCENES, kill_without_transactions, scene_of, visit, visit_tables
from tests.crash.spark import kill_drivers, kill_in_spark, kill_standalone, kill_tasks, mark_letters
from tests.crash.staying import kill_driver_of_staying, kill_staying_tasks
from tests.crash.streams import kill_around_batches, kill_executors, set_aside, stay_away, visit_batches
from tests.support.harness import Harness
from tests.support.job_tables import DeltaTables, IcebergTables, PostgresTables
from tests.support.jobs import Setup
from tests.support.processes import ONCEWARD
from tests.support.schedules import Schedule
from tests.support.small_disk import SmallDisk
from tests.support.stream_queries import QUERIES

__all__ = ["PARTS", "SHARED", "Plan", "ground_of_three", "harness_of_one", "three_brokers"]

_T = TypeVar("_T")

SCAN_MS = 200
"""How often the brokers look for transactions that have timed out."""

_PER_STREAM = 10
"""Random schedules for each one of a query, which starts Spark eight times."""
_PER_LEADERS = 20
"""The same for each one of coordinators that share a database."""


class Plan:
    """The options of a run of the suite."""

    def __init__(self, *, directory: Path, seed: int = 1, schedules: int = 60, share: int = 0, shares: int = 1) -> None:
        """``seed``: of the first of ``schedules`` random schedules. ``directory``: for logs, stores and histories.
        ``share`` of ``shares``: the schedules of a part that this process runs."""
        self.directory, self.seed, self.schedules = directory, seed, schedules
        self.share, self.shares = share, shares

    def divided(self, shares: int) -> "list[Plan]":
        """Return the plans of the processes that share a part."""
        directory, seed, schedules = self.directory, self.seed, self.schedules
        return [
            Plan(directory=directory, seed=seed, schedules=schedules, share=share, shares=shares)
            for share in range(shares)
        ]

    def place(self, part: str) -> Path:
        """Return the directory of a part, of this process alone."""
        return self.directory / (f"{part}-{self.share}" if self.share else part)

    def mine(self, schedules: Iterable[_T]) -> Iterator[_T]:
        """Yield those that this process runs."""
        return islice(schedules, self.share, None, self.shares)

    def seeds(self, per: int = 1) -> range:
        """Return the seeds of a part with one random schedule for every ``per`` of the whole suite's."""
        return range(self.seed, self.seed + math.ceil(self.schedules / per))


Part: TypeAlias = Callable[[Plan], Iterator[Schedule]]
Scene: TypeAlias = Callable[[Harness], Schedule]


@contextmanager
def harness_of_one(directory: Path, program: Sequence[str] = ONCEWARD) -> Iterator[Harness]:
    """One broker and one coordinator, for many schedules."""
    with LocalKafka(transaction_timeout_scan_ms=SCAN_MS) as kafka, Harness(directory, kafka, program=program) as made:
        yield made


@contextmanager
def three_brokers(directory: Path) -> Iterator[Harness]:
    """Three brokers, and one coordinator."""
    with LocalKafka(3, transaction_timeout_scan_ms=SCAN_MS, heap="256m") as kafka, Harness(directory, kafka) as made:
        yield made


@contextmanager
def ground_of_three(directory: Path) -> Iterator[tuple[Harness, SmallDisk]]:
    """Three brokers, three replicas, two in sync; one broker has a small disk. Raises OSError as SmallDisk does."""
    data = directory / "kafka" / f"node-{SMALL}" / "data"
    mounted = directory / "disk"
    for made in (data.parent, mounted):
        made.mkdir(parents=True)
    with SmallDisk(mounted) as disk:
        data.symlink_to(disk.path)
        kafka = LocalKafka(3, transaction_timeout_scan_ms=SCAN_MS, heap="256m", directory=directory / "kafka")
        with kafka, Harness(directory, kafka) as harness:
            yield harness, disk
    shutil.rmtree(directory / "kafka")


def _points(plan: Plan) -> Iterator[Schedule]:
    with harness_of_one(plan.directory / "points") as harness:
        yield kill_without_transactions(harness, "at-least-once", passes=(1, 2))
        for scene in SCENES:
            for nth in (1, 2):
                if points := scene.points():
                    yield visit(harness, scene, points, [nth], f"{scene.name}-{nth}")


_TABLES: Sequence[Sequence[str]] = (("postgres",), ("delta",), ("iceberg",), ("postgres", "delta", "iceberg"))
"""Kinds of tables that jobs write to besides a topic."""


def _outputs(plan: Plan) -> Iterator[Schedule]:
    directory = plan.directory / "outputs"
    with LocalPostgres() as database, harness_of_one(directory) as harness:
        harness.tables = {
            "postgres": PostgresTables(database.url),
            "delta": DeltaTables(directory / "delta"),
            "iceberg": IcebergTables(directory / "iceberg"),
        }
        for outputs, tables in ((2, ()), (4, ()), *((1, tables) for tables in _TABLES)):
            yield from _kill_into(harness, outputs, tables)


def _kill_into(harness: Harness, outputs: int, tables: Sequence[str]) -> Iterator[Schedule]:
    """Kill at every kill point of a job that writes to ``outputs`` topics and to ``tables``."""
    into = "-and-".join([str(outputs), *tables])
    for scene in SCENES:
        if points := scene.points():
            several = replace(scene, setup=scene.setup.into(outputs, tables=tables))
            yield visit(harness, several, points, (1, 2), f"{scene.name}-into-{into}", part="outputs")
    if {"delta", "iceberg"} & {*tables}:
        yield from visit_tables(harness, tables, "-and-".join(tables))


def _letters(plan: Plan) -> Iterator[Schedule]:
    with harness_of_one(plan.directory / "letters") as harness:
        for scene in SCENES:
            if points := scene.points():
                with_letters = replace(scene, setup=scene.setup.into(1, letters=True))
                yield visit(harness, with_letters, points, (1, 2), f"{scene.name}-and-letters", part="letters")
        of_drivers = scene_of(KillPoint.DRIVER_AFTER_VOTES)
        per_batch = replace(of_drivers, setup=Setup(batches=True, adaptive=True, letters=True))
        yield visit(harness, per_batch, of_drivers.points(), (1, 2), "letters-of-batches", part="letters")
        refused = replace(of_drivers, setup=Setup(outputs=2, letters=True, refusing=True))
        yield visit(harness, refused, of_drivers.points(), (1, 2), "letters-of-an-output", part="letters")
        yield mark_letters(harness, "letters-of-dataframes")
        yield set_aside(harness, "letters-of-a-query", times=2)


def _disk(plan: Plan) -> Iterator[Schedule]:
    with harness_of_one(plan.directory / "disk", ("-m", "tests.crash.disturbed")) as harness:
        for disturbance in DISTURBANCES:
            yield disturb(harness, disturbance, f"disk-{disturbance.name}")


def _spark(plan: Plan) -> Iterator[Schedule]:
    with harness_of_one(plan.directory / "spark") as harness:
        for nth in (1, 2):
            yield kill_tasks(harness, f"tasks-copy-{nth}", nth)
            yield kill_tasks(harness, f"tasks-dataframe-{nth}", nth, transform=True)
        yield kill_tasks(harness, "tasks-batches", 1, batches=True)
        yield kill_tasks(harness, "tasks-split", 1, batches=True, min_partitions=7)
        yield kill_drivers(harness, "drivers", seed=plan.seed, times=2)
        yield kill_in_spark(harness, "local-cluster", seed=plan.seed, times=3)
        yield kill_standalone(harness, "standalone", seed=plan.seed)
        yield change_executors(harness, "executors-come-and-go")
        yield allocate(harness, "dynamic-allocation")
        yield decommission(harness, "decommissioned")


def _staying(plan: Plan) -> Iterator[Schedule]:
    with harness_of_one(plan.directory / "staying") as harness:
        for nth in (1, 2, 4):
            yield kill_staying_tasks(harness, f"staying-copy-{nth}", nth)
        for nth in (2, 3):
            yield kill_staying_tasks(harness, f"staying-batches-{nth}", nth, batches=True)
        yield kill_driver_of_staying(harness, "staying-drivers", seed=plan.seed, times=6)
        yield kill_in_spark(harness, "staying-cluster", seed=plan.seed, times=3, staying=True)


def _streams(plan: Plan) -> Iterator[Schedule]:
    scenes: list[Scene] = [partial(visit_batches, query=query) for query in QUERIES]
    scenes += [partial(kill_executors, query=query, seed=plan.seed) for query in ("running-count", "processor")]
    scenes += [partial(stay_away, name="transactions-of-a-batch-run-out")]
    scenes += [partial(kill_around_batches, seed=seed) for seed in plan.seeds(_PER_STREAM)]
    with harness_of_one(plan.place("streams")) as harness:
        for scene in plan.mine(scenes):
            yield scene(harness)


def _brokers(plan: Plan) -> Iterator[Schedule]:
    with ground_of_three(plan.directory / "brokers") as (harness, disk):
        yield kill_brokers(harness, "brokers", rounds=2)
        yield kill_brokers(harness, "brokers-of-a-query", query=True)
        yield roll_brokers(harness, "rolling-restart")
        yield fill_disk(harness, "disk-of-a-broker", disk)


def _blackouts(plan: Plan) -> Iterator[Schedule]:
    with three_brokers(plan.directory / "blackouts-of-three") as harness:
        yield lose_leader(harness, "leader-lost")
        yield black_out_after_end_txn(harness, "after-end-txn-of-three")
        yield outlast(harness, "outlasted-of-three")
    with harness_of_one(plan.directory / "blackouts") as harness:
        yield black_out_after_end_txn(harness, "after-end-txn")
        yield outlast(harness, "outlasted")
        for scene, points in scenes_of_drivers():
            yield black_out(harness, scene, points, f"{scene.name}-and-brokers")


def _combinations(plan: Plan) -> Iterator[Schedule]:
    with harness_of_one(plan.place("combinations")) as harness:
        for seed in plan.mine(plan.seeds()):
            yield combine(harness, seed)


def _leaders(plan: Plan) -> Iterator[Schedule]:
    with (
        LocalKafka(transaction_timeout_scan_ms=SCAN_MS) as kafka,
        faulty_harness(plan.directory / "leaders", kafka) as harness,
    ):
        for fault in FAULTS:
            for scene in LEADER_SCENES:
                yield visit_leader(harness, fault, scene, f"{fault.name}-{scene.name}")
        for fault in OF_THE_LEADER:
            yield strike_at_driver_points(harness, fault, f"{fault.name}-driver-points")
        for seed in plan.seeds(_PER_LEADERS):
            yield strike_any_time(harness, seed)


def _leaks(plan: Plan) -> Iterator[Schedule]:
    with harness_of_one(plan.directory / "leaks") as harness:
        yield count_leaks(harness, "leaks-driver", failures=60, spark=False)
        yield count_leaks(harness, "leaks-spark", failures=30, spark=True)


PARTS: Mapping[str, Part] = {
    "points": _points,
    "outputs": _outputs,
    "letters": _letters,
    "disk": _disk,
    "brokers": _brokers,
    "blackouts": _blackouts,
    "spark": _spark,
    "staying": _staying,
    "streams": _streams,
    "leaks": _leaks,
    "combinations": _combinations,
    "leaders": _leaders,
}
SHARED: Mapping[str, int] = {"streams": 2, "combinations": 2}
"""Processes that run the schedules of a part in turn. The others have one."""
