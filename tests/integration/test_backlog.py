"""A backlog on the real broker is processed in ranges that start small and adapt to the time that they take."""

import hashlib
import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline
from onceward.client.operators import OperatorClient
from onceward.driver.journal import EVENTS_VARIABLE
from onceward.protocol.events import CloseReason
from onceward.protocol.values import JobName
from onceward.sources.kafka.driver.sizing import FIRST, GROWTH, LEAST
from onceward.wire.rows import JobDescription
from tests.support.scripted import CoordinatorProcess
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics, assert_exactly_once
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

BACKLOG = (40_000, 9_000, 500)
"""Records per partition: the first partition is far behind, the last one hardly."""


def work_off(
    topics: Topics, job: str, directory: Path, *, interval: str = "300ms", **source: Any
) -> list[dict[str, Any]]:
    """Process a backlog and return the pre-committed events of its checkpoints."""
    given, output = topics.create("in", len(BACKLOG)), topics.create("out", 2)
    for partition, records in enumerate(BACKLOG):
        topics.fill(
            given, [b"%d-%d" % (partition, n) for n in range(records)], partition=partition, key=b"%d" % partition
        )
    pipeline = SparklessPipeline(
        job=job,
        source=KafkaSource(topics.servers, topics=[given], start="earliest", end="latest", **source),
        sink=KafkaSink(topics.servers, topic=output),
        settings=CheckpointSettings(interval=interval),
        state_dir=directory / "state",
    )
    assert pipeline.run() is CloseReason.FINISHED
    assert_exactly_once(topics, given, output)
    lines = map(json.loads, (directory / "events").read_text().splitlines())
    return [line for line in lines if line["event"] == "pre-committed"]


def test_a_backlog_starts_small_grows_with_the_measured_speed_and_logs_it(
    topics: Topics, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    checkpoints = work_off(topics, job, tmp_path)
    assert sum(one["read"] for one in checkpoints) == sum(BACKLOG)
    assert (checkpoints[0]["read"], checkpoints[0]["sized_by"]) == (FIRST, "adaptive")
    assert checkpoints[-1]["sized_by"] == "everything"
    grew = follows_the_time(checkpoints)
    assert grew or all(one["seconds"] > 0.2 for one in checkpoints), "it is quick and takes no more"


def test_a_backlog_does_not_wait_for_the_interval_and_neither_does_the_end(
    topics: Topics, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    checkpoints = work_off(topics, job, tmp_path, interval="1h")
    assert len(checkpoints) > 2
    assert {one["sized_by"] for one in checkpoints[:-1]} == {"adaptive"}


def follows_the_time(checkpoints: Sequence[dict[str, Any]]) -> int:
    """Check that each checkpoint keeps its limit and a smaller one follows a long one; return how often limits grew."""
    assert all(one["read"] <= one["limit"] for one in checkpoints)
    grew = 0
    for former, one in itertools.pairwise(checkpoints):
        assert one["limit"] <= max(former["limit"], GROWTH * former["read"])
        if former["seconds"] > former["aim_seconds"] * 1.2:  # it ran long: the next one is smaller at once
            assert one["limit"] < former["limit"] or one["limit"] <= LEAST * len(BACKLOG)
        grew += one["limit"] > former["limit"]
    return grew


HEAVY = 2_200
"""Offset of the record that is so expensive that its checkpoint runs long."""


def working(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Copy the input; one record takes seconds of work."""
    for batch in batches:
        if HEAVY in batch.column("offset").to_pylist():
            hashlib.pbkdf2_hmac("sha256", b"heavy", b"record", 3_000_000)
        yield batch.select(["key", "value"])


def test_ranges_through_spark_begin_small_and_shrink_after_a_checkpoint_that_ran_long(
    topics: Topics, job: str, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    given, output = topics.create("in", 1), topics.create("out", 1)
    topics.fill(given, [b"0-%d" % n for n in range(6_000)], partition=0, key=b"0")
    pipeline = Pipeline(
        job=job,
        source=KafkaSource(topics.servers, topics=[given], start="earliest", end="latest"),
        sink=KafkaSink(topics.servers, topic=output),
        transform_batches=working,
        spark=spark,
        settings=CheckpointSettings(interval="300ms"),
        state_dir=tmp_path / "state",
    )
    assert pipeline.run() is CloseReason.FINISHED
    assert_exactly_once(topics, given, output)
    lines = map(json.loads, (tmp_path / "events").read_text().splitlines())
    checkpoints = [line for line in lines if line["event"] == "pre-committed"]
    assert (checkpoints[0]["read"], checkpoints[0]["sized_by"]) == (FIRST, "adaptive")
    assert len(checkpoints) > 2, "all was read before anything was known of its time"
    follows_the_time(checkpoints)
    reached = itertools.accumulate(one["read"] for one in checkpoints)
    heavy = next(n for n, end in enumerate(reached) if end > HEAVY)
    assert checkpoints[heavy]["steps"]["transform"] > checkpoints[0]["steps"]["transform"]
    if heavy + 1 < len(checkpoints):
        assert checkpoints[heavy + 1]["limit"] < max(checkpoints[heavy]["limit"], LEAST + 1)


def test_without_the_controller_a_checkpoint_reads_all_that_is_there(
    topics: Topics, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    (only,) = work_off(topics, job, tmp_path, adaptive=False)
    assert (only["read"], only["sized_by"]) == (sum(BACKLOG), "everything")


def test_the_lag_of_a_backlog_is_listed_until_it_is_gone_and_again_after_a_restart_of_the_coordinator(
    topics: Topics, job: str, tmp_path: Path
) -> None:
    given, output = topics.create("in", 2), topics.create("out", 2)
    topics.fill(given, [b"0-%d" % n for n in range(400)], partition=0, key=b"0")
    topics.fill(given, [b"1-%d" % n for n in range(40)], partition=1, key=b"1")
    coordinator = CoordinatorProcess(tmp_path / "coordinator").wait_ready()
    pipeline = SparklessPipeline(
        job=job,
        source=KafkaSource(topics.servers, topics=[given], start="earliest", max_offsets_per_checkpoint=22),
        sink=KafkaSink(topics.servers, topic=output),
        coordinator=coordinator.address,
        settings=CheckpointSettings(interval="300ms"),
    )
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    try:
        with OperatorClient(coordinator.address) as people:
            described: list[JobDescription] = []

            def lists(lag: Callable[[int], bool]) -> bool:
                described[:] = [people.describe(JobName(job))]
                progress = described[0].summary.progress
                return progress is not None and progress.lag is not None and lag(progress.lag)

            wait_until(lambda: any(one.job == job for one in people.jobs()), "the job is opened")
            wait_until(lambda: lists(lambda lag: lag > 0), "the backlog is listed", 120)
            behind = described[0]
            assert behind.summary.progress is not None
            assert sum(one.lag or 0 for one in behind.partitions) == behind.summary.progress.lag
            assert [one.partition for one in behind.partitions] == [f"{given}-0", f"{given}-1"], "the most lag first"
            assert {one.partition: one.position + (one.lag or 0) for one in behind.partitions}[f"{given}-1"] == 40
            wait_until(lambda: lists(lambda lag: lag == 0), "the backlog is gone", 120)
            assert {(one.position, one.lag) for one in described[0].partitions} == {(400, 0), (40, 0)}
            coordinator.send(signal.SIGKILL)
            coordinator.wait()
        again = CoordinatorProcess(tmp_path / "coordinator", port=coordinator.port).wait_ready()
        coordinator = again
        with OperatorClient(again.address) as people:
            wait_until(lambda: lists(lambda lag: lag == 0), "the driver reports to the new process", 120)
    finally:
        pipeline.stop()
        thread.join()
        coordinator.end()
    assert_exactly_once(topics, given, output)
