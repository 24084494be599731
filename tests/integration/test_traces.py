"""Traces of jobs on a real broker: one of each checkpoint, across coordinator and driver."""

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline, StreamingPipeline, register
from onceward.client.operators import OperatorClient
from onceward.common.errors import CheckpointFailedError, OncewardError
from onceward.common.killpoints import KillPoint
from onceward.coordinator.service.state_dir import StateDirectory
from onceward.driver.opening import OpenJob
from onceward.driver.restarts import NO_RESTART, Restart
from onceward.driver.spark.tasks import Tasks
from onceward.protocol.events import CloseReason
from onceward.protocol.values import CheckpointId, CheckpointState, Committable, JobName
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.watch.traces.ids import ids_of
from tests.support.collector import Collector, Trace
from tests.support.processes import CLUSTER, JobProcesses, bounded
from tests.support.scripted import CoordinatorProcess
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics, assert_exactly_once
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COORDINATOR, DRIVER = "onceward-coordinator", "onceward-driver"
KEY = b"key"
VALUES: list[bytes | None] = [b"value %04d" % number for number in range(500)]
BYTES = sum(len(KEY) + len(value or b"") for value in VALUES)


class Job:
    """A job that copies all values, and exports traces."""

    def __init__(
        self, topics: Topics, job: str, *, kind: type[SparklessPipeline] = SparklessPipeline, **options: Any
    ) -> None:
        self.topics, self.name = topics, JobName(job)
        self.source, self.sink = topics.create("in", 2), topics.create("out", 2)
        topics.fill(self.source, VALUES, partition=0, key=KEY)
        self.pipeline = kind(
            job=job,
            source=KafkaSource(topics.servers, topics=[self.source], start="earliest", adaptive=False),
            sink=KafkaSink(topics.servers, topic=self.sink),
            traces=True,
            **{"settings": CheckpointSettings(interval="50ms"), "restart": NO_RESTART, **options},
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run until all values are copied; stop at the exit."""
        ended: list[CloseReason] = []
        thread = threading.Thread(target=lambda: ended.append(self.pipeline.run()))
        thread.start()
        try:
            wait_until(lambda: len(self.topics.read(self.sink)) == len(VALUES) or ended, "the values are copied", 120)
            yield
        finally:
            self.pipeline.stop()
            thread.join()
        assert ended == [CloseReason.STOPPED]
        assert_exactly_once(self.topics, self.source, self.sink)


def written(people: OperatorClient, job: JobName) -> CheckpointId:
    """The checkpoint that has the records, once it is settled."""
    found: list[CheckpointId] = []

    def settled() -> bool:
        rows = [one for one in people.checkpoints(job, 1000) if one.records_written]
        found[:] = [one.checkpoint for one in rows if one.state is CheckpointState.SETTLED]
        return bool(found)

    wait_until(settled, "the checkpoint with the records is settled")
    (checkpoint,) = found
    return checkpoint


def assert_a_tree(trace: Trace) -> None:
    """Every parent is in the trace, and only the checkpoint has none."""
    known = {span.id for span in trace.spans}
    assert len(known) == len(trace.spans)
    assert [span.name for span in trace.spans if not span.parent] == ["checkpoint"]
    assert all(span.parent in known for span in trace.spans if span.parent)


def test_a_checkpoint_is_one_trace_of_coordinator_driver_and_tasks(
    topics: Topics, job: str, tmp_path: Path, collector: Collector
) -> None:
    coordinator = CoordinatorProcess(tmp_path / "c", environment=collector.variables, options=["--traces"])
    try:
        coordinator.wait_ready()
        made = Job(topics, job, coordinator=coordinator.address)
        with made.running(), OperatorClient(coordinator.address) as people:
            checkpoint = written(people, made.name)
            ids = ids_of(people.store_id(), made.name, checkpoint)
        wait_until(
            lambda: len(collector.trace(f"{ids.trace:032x}").all("settle")) == 2, "coordinator and driver exported it"
        )
        trace = collector.complete(f"{ids.trace:032x}", "prove", "settle")
    finally:
        coordinator.end()
    assert_a_tree(trace)
    root = trace.one("checkpoint", COORDINATOR)
    assert root.id == f"{ids.root:016x}"
    assert root.error is None
    below = [name for name in trace.below(root) if name != "decide"]
    assert below == ["plan", "prove", "run", "settle", "store commit", "wait"]
    settle = trace.one("settle", COORDINATOR)
    assert settle.id == f"{ids.settle:016x}"
    assert trace.one("settle", DRIVER).parent == settle.id
    run = trace.one("run", DRIVER)
    assert trace.below(run) == ["slot", "slot", "vote"]
    for slot in trace.all("slot"):
        assert trace.below(slot) == ["flush", "produce", "read", "transform"]
        assert slot.service == DRIVER
    assert sum(slot.attributes["onceward.records_written"] for slot in trace.all("slot")) == len(VALUES)
    for span in (root, run):
        assert span.attributes["onceward.records_written"] == len(VALUES)
        assert span.attributes["onceward.bytes_written"] == BYTES
    assert root.attributes["onceward.transactions"] == 1  # the second partition is empty
    assert all(span.attributes["onceward.job"] == job for span in trace.spans)
    assert all(span.attributes["onceward.checkpoint"] == checkpoint for span in trace.spans)
    assert "value 0" not in repr(trace.spans)


class FailsOnce(SparklessPipeline):
    """The tasks of one checkpoint fail after they have written."""

    def _tasks(self, stack: contextlib.ExitStack, opened: OpenJob) -> Tasks:
        tasks = super()._tasks(stack, opened)
        run, own = tasks.run, vars(tasks)

        def failing(**given: Any) -> Any:
            run(**given)
            own.pop("run")
            raise CheckpointFailedError("the disk is full\x1b[2J")

        own["run"] = failing
        return tasks


def test_an_aborted_checkpoint_says_why_on_both_sides(
    topics: Topics, job: str, tmp_path: Path, collector: Collector
) -> None:
    settings = CheckpointSettings(interval="50ms", tolerable_failed_checkpoints=3)
    made = Job(topics, job, kind=FailsOnce, settings=settings, state_dir=tmp_path / "state")
    with made.running(), OperatorClient(StateDirectory(tmp_path / "state").published()) as people:
        rows = [one for one in people.checkpoints(made.name, 1000) if one.state is CheckpointState.ABORTED]
        (aborted,) = rows
        ids = ids_of(people.store_id(), made.name, aborted.checkpoint)
    trace = collector.complete(f"{ids.trace:032x}", "abort")
    assert_a_tree(trace)
    root, abort = trace.one("checkpoint"), trace.one("abort")
    assert trace.below(root) == ["abort", "plan", "run", "store commit", "wait"]
    assert root.error is not None
    assert root.error.startswith("a participant declined it: source: the disk is full\\x1b[2J")
    assert root.attributes["onceward.result"] == "aborted"
    assert abort.error == "the disk is full\\x1b[2J"
    assert abort.attributes["onceward.transactions"] == 1
    assert trace.one("run").error is not None


def test_a_checkpoint_that_the_next_generation_settles_stays_one_trace(
    topics: Topics, job: str, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = KafkaSystem.commit
    failed: list[Sequence[Committable]] = []

    def failing(self: KafkaSystem, author: Any, committables: Sequence[Committable], **more: Any) -> Any:
        if committables and not failed:
            failed.append(committables)
            raise OncewardError("the driver fails before it commits")
        return commit(self, author, committables, **more)

    monkeypatch.setattr(KafkaSystem, "commit", failing)
    made = Job(topics, job, restart=Restart(initial="100ms"), state_dir=tmp_path / "state")
    with made.running(), OperatorClient(StateDirectory(tmp_path / "state").published()) as people:
        ids = ids_of(people.store_id(), made.name, written(people, made.name))
    trace = collector.complete(f"{ids.trace:032x}", "settle")
    assert len(failed) == 1
    assert_a_tree(trace)
    root = trace.one("checkpoint")
    assert root.id == f"{ids.root:016x}"
    assert root.error is None
    assert {trace.one(name).attributes["onceward.generation"] for name in ("checkpoint", "plan", "run", "prove")} == {1}
    settling = trace.all("settle")
    assert [span.attributes["onceward.generation"] for span in settling] == [2, 2]
    assert {span.parent for span in settling} == {root.id, f"{ids.settle:016x}"}


def test_a_collector_that_never_answers_costs_no_checkpoint(
    topics: Topics, job: str, tmp_path: Path, collector: Collector
) -> None:
    answers = threading.Event()

    def hang() -> None:
        answers.wait(170)

    collector.answers = hang
    try:
        with Job(topics, job, state_dir=tmp_path / "state").running():
            wait_until(collector.asked.is_set, "the collector is asked")
        assert not answers.is_set()  # the end of the job did not wait for it
    finally:
        answers.set()


@pytest.mark.kill
def test_a_checkpoint_whose_driver_is_gone_is_ended_by_the_coordinator(
    topics: Topics, job: str, tmp_path: Path, collector: Collector
) -> None:
    source, sink = topics.create("in", 1), topics.create("out", 1)
    topics.fill(source, VALUES, partition=0, key=KEY)
    clusters = tmp_path / "clusters.toml"
    clusters.write_text(f'[clusters.{CLUSTER}]\nbootstrap_servers = "{topics.servers}"\n')
    coordinator = CoordinatorProcess(
        tmp_path / "c", environment=collector.variables, options=["--traces", "--clusters", str(clusters)]
    )
    spec: dict[str, Any] = {"cluster": CLUSTER, "source_options": bounded(), "traces": True}
    settings = {"interval": "100ms", "stream_grace": "200ms", "lease": "1s", "orphan_grace": "1s"}
    try:
        coordinator.wait_ready()
        with (
            JobProcesses(
                tmp_path, job, topics.servers, source, sink, coordinator=coordinator.address, settings=settings, **spec
            ) as here,
            OperatorClient(coordinator.address) as people,
        ):
            point = KillPoint.DRIVER_AFTER_DECISION
            here.wait_for_kill(point, 1, here.driver(kill_at=[f"{point}:1"]))
            ids = ids_of(people.store_id(), JobName(job), written(people, JobName(job)))
        trace = collector.complete(f"{ids.trace:032x}", "settle")
    finally:
        coordinator.end()
    root = trace.one("checkpoint", COORDINATOR)
    assert (root.id, root.error) == (f"{ids.root:016x}", None)
    assert root.attributes["onceward.generation"] == 1
    settle = trace.one("settle")
    assert (settle.service, settle.parent) == (COORDINATOR, root.id)
    assert settle.attributes["onceward.generation"] == 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("given", ["batches", "query"])
def test_tasks_on_spark_are_drawn_and_executors_need_no_package(
    topics: Topics, job: str, spark: "SparkSession", tmp_path: Path, collector: Collector, given: str
) -> None:
    source, sink = topics.create("in", 2), topics.create("out", 2)
    topics.fill(source, VALUES, partition=0, key=KEY)
    common: dict[str, Any] = {
        "job": job,
        "sink": KafkaSink(topics.servers, topic=sink),
        "spark": spark,
        "state_dir": tmp_path / "state",
        "traces": True,
        "restart": NO_RESTART,
    }

    # not a function of this module: the executors would import it, and so the collector
    def without_the_package(batches: Iterator[Any]) -> Iterator[Any]:
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
        for batch in batches:
            yield batch.select(["key", "value"])

    def query(spark: "SparkSession") -> "DataFrame":
        register(spark)
        read = spark.readStream.format("onceward").option("kafka.bootstrap.servers", topics.servers)
        return read.option("subscribe", source).option("startingOffsets", "earliest").load().select("key", "value")

    if given == "query":
        location, once = tmp_path / "query", {"availableNow": True}
        ran = StreamingPipeline(query=query, checkpoint_location=location, trigger=once, **common).run()
    else:
        read = KafkaSource(topics.servers, topics=[source], start="earliest", end="latest", adaptive=False)
        ran = Pipeline(source=read, transform_batches=without_the_package, **common).run()
    assert ran is CloseReason.FINISHED
    roots = [span for span in collector.all().all("checkpoint") if span.attributes.get("onceward.records_written")]
    assert sum(root.attributes["onceward.records_written"] for root in roots) == len(VALUES)
    steps = ["flush", "produce", "read", "transform"] if given == "batches" else ["flush", "produce", "read+transform"]
    for root in roots:
        trace = collector.trace(root.trace)
        assert_a_tree(trace)
        run = trace.one("run")
        slots = trace.all("slot")
        assert slots
        assert trace.below(run) == ["slot"] * len(slots) + ["vote"]
        assert all(trace.below(slot) == steps for slot in slots)
        assert all(run.began <= slot.began <= slot.ended <= run.ended + 1e-4 for slot in slots)
