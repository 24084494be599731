"""The driver, its tasks and the coordinator die at every kill point, and every record still takes effect once."""

import os
import signal
from collections.abc import Iterator

import pytest

from onceward.common.killpoints import KillPoint
from tests.support.feeder import Feeder
from tests.support.processes import QUICK, JobProcesses, Starter, bounded, free_address
from tests.support.schedules import STAYING_POINTS
from tests.support.topics import Topics, assert_exactly_once, fill
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

REPLAY_POINTS = [KillPoint.DRIVER_BEFORE_REPLAY, KillPoint.DRIVER_AFTER_REPLAY, KillPoint.DRIVER_AFTER_AMEND]
"""Covered by test_replay.py, where a transaction is lost."""
ELSEWHERE = {KillPoint.DRIVER_AFTER_ABORT, KillPoint.DRIVER_BEFORE_CLOSE, *REPLAY_POINTS, *STAYING_POINTS}
DRIVER_POINTS = [point for point in KillPoint if point.startswith("driver.") and point not in ELSEWHERE]
OPENING_POINTS = {
    KillPoint.DRIVER_BEFORE_OPEN,
    KillPoint.DRIVER_AFTER_OPEN,
    KillPoint.DRIVER_BEFORE_CLAIM,
    KillPoint.DRIVER_AFTER_CLAIM,
    KillPoint.DRIVER_AFTER_RECOVERY_ABORT,
    KillPoint.DRIVER_AFTER_RECOVERY_COMMIT,
}
"""Passed once per generation."""
TASK_POINTS = [point for point in KillPoint if point.startswith("task.") and point not in ELSEWHERE]
COORDINATOR_RUNNING_POINTS = [
    KillPoint.COORDINATOR_BEFORE_GRANT,
    KillPoint.COORDINATOR_AFTER_GRANT,
    KillPoint.COORDINATOR_BEFORE_TRIGGER,
    KillPoint.COORDINATOR_AFTER_TRIGGER,
    KillPoint.COORDINATOR_BEFORE_DECISION,
    KillPoint.COORDINATOR_AFTER_DECISION,
    KillPoint.COORDINATOR_BEFORE_SETTLED,
    KillPoint.COORDINATOR_AFTER_SETTLED,
]


SPARK_POINTS = [KillPoint.DRIVER_AFTER_PRE_COMMIT, KillPoint.DRIVER_BETWEEN_END_TXN]
"""The points with Spark, whose processes outlive the driver for a moment. Without Spark, which is quicker, the driver
dies at every point."""


@pytest.mark.parametrize(
    ("spark", "points"),
    [
        pytest.param(False, DRIVER_POINTS, id="everywhere"),
        pytest.param(True, SPARK_POINTS, id="with_spark", marks=pytest.mark.crash),
    ],
)
def test_the_driver_dies_at_every_kill_point(
    topics: Topics, job_processes: Starter, spark: bool, points: list[KillPoint]
) -> None:
    source, sink = topics.create("in", 3), topics.create("out", 3)
    fill(topics, source, 5000)
    address = free_address()
    with job_processes(
        source, sink, coordinator=address, source_options=bounded(150), settings=QUICK, spark=spark
    ) as here:
        here.coordinator(address)
        for point in points:
            # the 4th pass of points that every checkpoint has, so that positions and ids are all in use
            count = 1 if point in OPENING_POINTS else 4
            here.wait_for_kill(point, count, here.driver(kill_at=[f"{point}:{count}"]))
        here.wait_for_kill(
            KillPoint.DRIVER_BEFORE_CLOSE, 1, here.driver(kill_at=[f"{KillPoint.DRIVER_BEFORE_CLOSE}:1"])
        )
        here.finish()
        assert_exactly_once(topics, source, sink)
        recovered = here.events("recovered")
        assert sum(event["resumed"] for event in recovered) > 0, "no transaction of another process was committed"
        assert sum(event["aborted"] for event in recovered) > 0, "no transaction of another process was aborted"


def test_driver_and_tasks_that_stay_die_at_every_kill_point_of_a_cut(topics: Topics, job_processes: Starter) -> None:
    source, sink = topics.create("in", 3), topics.create("out", 3)
    address = free_address()
    tasks = [point for point in STAYING_POINTS if point.startswith("task.")]
    with (
        Feeder(topics.servers, source, partitions=3, rate=100) as feeder,
        job_processes(
            source,
            sink,
            coordinator=address,
            source_options={"start": "earliest"},
            settings=QUICK,
            spark=True,
            tasks="staying",
        ) as here,
    ):
        here.coordinator(address)
        here.wait_for_kill(KillPoint.DRIVER_AFTER_CUT, 4, here.driver(kill_at=[f"{KillPoint.DRIVER_AFTER_CUT}:4"]), 240)
        # the tasks die under a driver that continues with its next generations
        driver = here.driver(kill_at=[f"{point}:4" for point in tasks])
        wait_until(lambda: {f"{point}:4" for point in tasks} <= here.killed_at(), "each point kills a task", 240)
        settled = len(here.events("settled"))
        here.wait_for_event("settled", driver, count=settled + 5, limit_s=240)
        feeder.finish()
        wait_until(lambda: len(topics.read(sink)) >= len(topics.read(source)), "all records are copied", 240)
        os.kill(driver.pid, signal.SIGTERM)
        assert driver.wait(120) == 0, driver.tail()
        assert_exactly_once(topics, source, sink)


@pytest.fixture
def rejected(topics: Topics, job_processes: Starter) -> Iterator[JobProcesses]:
    """A bounded job of which the output topic rejects a record, so that checkpoints abort."""
    source = topics.create("in", 3)
    sink = topics.create("out", 3, config={"max.message.bytes": "2000"})
    fill(topics, source, 100)
    topics.fill(source, [b"x" * 5000], partition=1, key=b"key-1")
    with job_processes(source, sink, coordinator=free_address(), source_options=bounded(), settings=QUICK) as here:
        yield here


def accept(topics: Topics, sink: str) -> None:
    """Let the output topic accept every record; it must be empty until then."""
    assert topics.read(sink) == [], "something of an aborted checkpoint is visible"
    topics.configure(sink, {"max.message.bytes": "100000"})


def test_the_driver_dies_while_it_aborts(topics: Topics, rejected: JobProcesses) -> None:
    rejected.coordinator(rejected.spec["coordinator"])
    dying = rejected.driver(kill_at=[f"{KillPoint.DRIVER_AFTER_ABORT}:1"])
    rejected.wait_for_kill(KillPoint.DRIVER_AFTER_ABORT, 1, dying)
    accept(topics, rejected.spec["sink"])
    rejected.finish()
    assert_exactly_once(topics, rejected.spec["source"], rejected.spec["sink"])


@pytest.mark.parametrize(
    "path",
    ["copy", *(pytest.param(path, marks=pytest.mark.crash) for path in ("dataframe", "batches", "split"))],
)
def test_a_worker_dies_at_every_kill_point_of_a_task(topics: Topics, job_processes: Starter, path: str) -> None:
    source, sink = topics.create("in", 3), topics.create("out", 3)
    fill(topics, source, 2000)
    options = bounded(300)
    if path == "split":
        options["min_partitions"] = 5
    with job_processes(
        source,
        sink,
        dataframe=path == "dataframe",
        batches=path in ("batches", "split"),
        source_options=options,
        settings={**QUICK, "tolerable_failed_checkpoints": 10},
        spark=True,
    ) as here:
        armed = [f"{point}:{count}" for count, point in enumerate(TASK_POINTS, start=1)]
        assert here.driver(kill_at=armed).wait(300) == 0
        assert here.killed_at() == set(armed), "a kill point was not reached"
        assert {event["path"] for event in here.events("planned")} == {"batches" if path == "split" else path}
        # min_partitions= gives up the order within a partition
        assert_exactly_once(topics, source, sink, ordered=path != "split")


def test_the_coordinator_dies_at_every_kill_point_under_a_running_job(topics: Topics, job_processes: Starter) -> None:
    source, sink = topics.create("in", 3), topics.create("out", 3)
    fill(topics, source, 5000)
    address = free_address()
    with job_processes(
        source,
        sink,
        coordinator=address,
        source_options={"start": "earliest", "max_offsets_per_checkpoint": 150},
        settings={**QUICK, "lease": "60s", "orphan_grace": "60s"},
    ) as here:
        first, *others = COORDINATOR_RUNNING_POINTS
        coordinator = here.coordinator(address, kill_at=[f"{first}:1"])
        driver = here.driver()
        here.wait_for_kill(first, 1, coordinator)
        for point in others:
            here.wait_for_kill(point, 1, here.coordinator(address, kill_at=[f"{point}:1"]))
        coordinator = here.coordinator(address)
        wait_until(
            lambda: len(topics.read(sink)) == 15000 or not driver.running, f"all is copied: {driver.tail()}", 120
        )
        assert {event["generation"] for event in here.events("recovered")} == {1}, "the running job was disturbed"
        coordinator.send(signal.SIGTERM)
        assert coordinator.wait(30) == 0
        closing = [KillPoint.COORDINATOR_BEFORE_CLOSE, KillPoint.COORDINATOR_AFTER_CLOSE]
        coordinator = here.coordinator(address, kill_at=[f"{closing[0]}:1"])
        driver.send(signal.SIGTERM)
        here.wait_for_kill(closing[0], 1, coordinator)
        here.wait_for_kill(closing[1], 1, here.coordinator(address, kill_at=[f"{closing[1]}:1"]))
        here.coordinator(address)
        assert driver.wait() == 0, driver.tail()
        assert_exactly_once(topics, source, sink)


@pytest.mark.parametrize("point", [KillPoint.COORDINATOR_BEFORE_ABORT, KillPoint.COORDINATOR_AFTER_ABORT])
def test_the_coordinator_dies_while_it_decides_against_a_checkpoint(
    topics: Topics, rejected: JobProcesses, point: KillPoint
) -> None:
    coordinator = rejected.coordinator(rejected.spec["coordinator"], kill_at=[f"{point}:1"])
    driver = rejected.driver()
    rejected.wait_for_kill(point, 1, coordinator)
    accept(topics, rejected.spec["sink"])
    rejected.coordinator(rejected.spec["coordinator"])
    assert driver.wait() == 0, driver.tail()
    assert_exactly_once(topics, rejected.spec["source"], rejected.spec["sink"])


def test_every_kill_point_is_covered() -> None:
    """The points above are the whole registry."""
    covered = {
        *DRIVER_POINTS,
        *TASK_POINTS,
        *COORDINATOR_RUNNING_POINTS,
        *ELSEWHERE,
        KillPoint.COORDINATOR_BEFORE_ABORT,
        KillPoint.COORDINATOR_AFTER_ABORT,
        KillPoint.COORDINATOR_BEFORE_CLOSE,
        KillPoint.COORDINATOR_AFTER_CLOSE,
        # covered by test_orphans.py
        KillPoint.ORPHAN_AFTER_ABORT,
        KillPoint.ORPHAN_AFTER_COMMIT,
        # covered by tests/crash/test_crash.py
        *(point for point in KillPoint if point.startswith("table.")),
        # covered by test_streaming_sink.py and tests/crash/streams.py
        *(point for point in KillPoint if point.startswith("batch.")),
    }
    assert covered == set(KillPoint)
