"""Tasks that stay, on the real broker and one Spark session: what goes in comes out once, whatever happens to them."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, OffsetSpec

from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline
from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.common.errors import CheckpointFailedError, ConfigurationError, CoordinatorLostError, OncewardError
from onceward.coordinator.service.state_dir import StateDirectory
from onceward.driver import opening
from onceward.driver.journal import EVENTS_VARIABLE
from onceward.driver.restarts import NO_RESTART, Restart
from onceward.protocol.events import CloseReason
from onceward.protocol.values import CheckpointId, CheckpointKind, JobName
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from tests.support.processes import Processes, free_address, listens
from tests.support.topics import (
    Topics,
    assert_exactly_once,
    open_transactions_hold_back,
    wait_for,
    wait_for_decided_ends,
)
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


class Bench:
    """One staying job with its topics."""

    def __init__(self, topics: Topics, job: str, spark: "SparkSession", directory: Path) -> None:
        self.topics, self.job, self.spark, self.directory = topics, job, spark, directory
        self.source, self.sink = topics.create("in", 3), topics.create("out", 2)
        self.filled = 0
        self._feeder = Producer(
            {"bootstrap.servers": topics.servers, "transactional.id": f"{topics.prefix}.feeder", "log_level": 0}
        )
        self._feeder.init_transactions(30)

    def pipeline(self, *, source: dict[str, Any] | None = None, **options: Any) -> Pipeline:
        return Pipeline(
            job=self.job,
            source=KafkaSource(self.topics.servers, topics=[self.source], **{"start": "earliest", **(source or {})}),
            sink=KafkaSink(self.topics.servers, topic=self.sink),
            spark=self.spark,
            **{
                "state_dir": self.directory / "state",
                "tasks": "staying",
                "settings": CheckpointSettings(interval="50ms"),
                "restart": NO_RESTART,
                **options,
            },
        )

    def fill(self, records: int, partitions: int = 3) -> None:
        """Add records in one transaction. An aborted one comes before and behind it, so that a partition ends with
        offsets that no reader gets."""
        first, self.filled = self.filled, self.filled + records
        for commit, numbers in ((False, range(2)), (True, range(first, first + records)), (False, range(1))):
            self._feeder.begin_transaction()
            for partition in range(partitions):
                for n in numbers:
                    value = b"%d-%d" % (partition, n) if commit else b"aborted"
                    self._feeder.produce(self.source, value, b"key-%d" % partition, partition=partition)
            assert self._feeder.flush(30) == 0
            if commit:
                self._feeder.commit_transaction(30)
            else:
                self._feeder.abort_transaction(30)

    def ends(self) -> list[TopicPartition]:
        """Where the log of each input partition ends, its last markers included."""
        wait_for_decided_ends(self.topics.servers)
        places = [TopicPartition(self.source, partition) for partition in range(3)]
        found = self.topics.admin.list_offsets(dict.fromkeys(places, OffsetSpec.latest()))
        return [TopicPartition(self.source, p.partition, future.result(30).offset) for p, future in found.items()]

    def mirrored(self) -> list[int]:
        """The settled positions."""
        asked = ConsumerGroupTopicPartitions(self.job)
        found = wait_for(self.topics.admin.list_consumer_group_offsets([asked])[self.job])
        assert isinstance(found, ConsumerGroupTopicPartitions)
        return [one.offset for one in sorted(found.topic_partitions or (), key=lambda one: one.partition)]

    def exact(self) -> None:
        assert_exactly_once(self.topics, self.source, self.sink)


class Running:
    """A pipeline in a thread."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.reason: CloseReason | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.reason = self.pipeline.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for ``condition``, and no longer once the job has failed."""
        wait_until(lambda: condition() or self.error is not None, what, 120)
        assert self.error is None, self.error

    def stop(self) -> None:
        self.pipeline.stop()
        self._thread.join(120)
        assert not self._thread.is_alive()


@pytest.fixture
def bench(topics: Topics, job: str, spark: "SparkSession", tmp_path: Path) -> Bench:
    return Bench(topics, job, spark, tmp_path)


def arrived(bench: Bench, records: int) -> Callable[[], bool]:
    return lambda: len(bench.topics.read(bench.sink)) >= records


def test_a_bounded_copy_is_exact_and_finishes(bench: Bench) -> None:
    bench.fill(1000)
    assert bench.pipeline(source={"end": "latest"}).run() is CloseReason.FINISHED
    bench.exact()
    assert bench.pipeline(source={"end": "latest"}).run() is CloseReason.FINISHED
    bench.exact()
    bench.fill(10)
    assert bench.pipeline(source={"end": "latest"}).run() is CloseReason.FINISHED
    bench.exact()


def test_records_that_come_one_by_one_arrive_while_the_tasks_stay(bench: Bench) -> None:
    with Running(bench.pipeline()) as running:
        for round_ in range(1, 6):
            bench.fill(7)
            running.until(arrived(bench, 21 * round_), f"round {round_} is copied")
    bench.exact()


def test_offsets_without_a_record_at_the_end_of_an_idle_input_are_passed_so_that_they_may_be_deleted(
    bench: Bench,
) -> None:
    for records, source in ((15, {}), (30, {"max_offsets_per_checkpoint": 100})):
        bench.fill(5)
        with Running(bench.pipeline(source=source)) as running:
            running.until(arrived(bench, records), "the records are copied")
            ends = bench.ends()
            at_end = [end.offset for end in ends]
            running.until(lambda at_end=at_end: bench.mirrored() == at_end, "the positions are at the end")  # type: ignore[misc]
        for deleted in bench.topics.admin.delete_records(ends).values():
            wait_for(deleted)
    expected = [b"%d-%d" % (partition, n) for partition in range(3) for n in range(10)]
    assert sorted(value or b"" for value in bench.topics.values(bench.sink)) == sorted(expected)


def test_a_choice_of_columns_and_a_function_on_batches_are_applied(bench: Bench) -> None:
    def upper(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = [b"<" + value.as_py() + b">" for value in batch.column("value")]
            yield pa.RecordBatch.from_pydict({"key": batch.column("key"), "value": pa.array(values, pa.binary())})

    bench.fill(100)
    bounded = {"end": "latest"}
    bench.pipeline(source=bounded, transform=lambda df: df.select("key", "value")).run()
    bench.exact()
    bench.fill(100)
    bench.pipeline(source=bounded, transform_batches=upper).run()
    new = bench.topics.values(bench.sink)
    assert sorted(value for value in new if value and value.startswith(b"<")) == sorted(
        b"<%d-%d>" % (partition, n) for partition in range(3) for n in range(100, 200)
    )


def test_what_staying_tasks_cannot_do_is_refused_before_anything_starts(bench: Bench) -> None:
    for options, named in (
        ({"transform": lambda df: df.where("value is not null")}, "transform_batches"),
        ({"settings": CheckpointSettings(interval="5min")}, "at most 60 s"),
        ({"settings": CheckpointSettings(interval=None)}, "interval must be at most 60 s"),
        ({"settings": CheckpointSettings(min_pause="20min")}, "min_pause must be at most 60 s"),
        ({"source": {"min_partitions": 8}}, "min_partitions"),
        ({"tasks": "stay"}, "neither 'per_checkpoint' nor 'staying'"),
    ):
        with pytest.raises(ConfigurationError, match=named):
            bench.pipeline(**options).run()
    assert bench.topics.read(bench.sink, committed=False) == []


def test_no_checkpoint_holds_more_than_its_limit_while_a_backlog_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 has most of the backlog; slots with several partitions divide what they get."""
    events = bench.directory / "events"
    monkeypatch.setenv(EVENTS_VARIABLE, str(events))
    bench.fill(300)
    bench.fill(1_500, partitions=1)
    assert bench.pipeline(source={"end": "latest", "max_offsets_per_checkpoint": 120}).run() is CloseReason.FINISHED
    bench.exact()
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    written = [line["written"] for line in lines if line["event"] == "pre-committed"]
    assert max(written) <= 120
    assert sum(written) == 2_400
    assert sum(count == 120 for count in written) > len(written) / 2, "partitions with a backlog use what others leave"


def test_a_rate_of_each_partition_holds_over_the_run(bench: Bench) -> None:
    """Partition 0 has 300 records more than the others."""
    bench.fill(20)
    bench.fill(300, partitions=1)
    began = time.monotonic()
    assert bench.pipeline(source={"end": "latest", "max_rate_per_partition": 40}).run() is CloseReason.FINISHED
    assert time.monotonic() - began >= (320 - 1) / 40
    bench.exact()


def test_a_record_at_fault_is_named_and_the_records_before_it_are_copied_once(bench: Bench) -> None:
    def fragile(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if b"poison" in batch.column("value").to_pylist():
                raise ValueError("cannot work with poison")
            yield batch.select(["key", "value"])

    bench.fill(50)
    with Running(bench.pipeline(transform_batches=fragile)) as running:
        running.until(arrived(bench, 150), "the first records are copied")
        bench.topics.fill(bench.source, [b"poison"], partition=1, key=b"p")
        wait_until(lambda: running.error is not None, "the job gives up", 120)
    assert isinstance(running.error, OncewardError)
    assert "cannot work with poison" in str(running.error)
    (at,) = [offset for _, offset, _, value in bench.topics.read(bench.source) if value == b"poison"]
    assert f"{bench.source}-1 offsets [{at}, {at + 1})" in str(running.error)
    assert len(bench.topics.read(bench.sink)) == 150
    assert not any(open_transactions_hold_back(bench.topics.servers, bench.sink).values())


def test_a_new_partition_is_read_from_its_beginning(bench: Bench) -> None:
    bench.fill(20)
    with Running(bench.pipeline(source={"discovery_interval": "200ms"})) as running:
        running.until(arrived(bench, 60), "the first records are copied")
        grown = wait_for(bench.topics.admin.create_partitions([NewPartitions(bench.source, 4)])[bench.source])
        assert grown is None
        bench.topics.fill(bench.source, [b"%d" % n for n in range(30)], partition=3, key=b"key-3")
        running.until(arrived(bench, 90), "the new partition is copied")
    bench.exact()


def test_an_aborted_checkpoint_is_read_again_by_new_tasks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers refuse to prove one pre-commit: the tasks have read on by then."""
    bench.fill(100)
    refused = threading.Event()
    pre_commit = KafkaSinkSession.pre_commit

    def refusing(self: KafkaSinkSession, checkpoint: CheckpointId, votes: Any, origins: Any, **more: Any) -> Any:
        made = pre_commit(self, checkpoint, votes, origins, **more)
        if made.committables and not refused.is_set():
            refused.set()
            raise CheckpointFailedError("refused by the test")
        return made

    monkeypatch.setattr(KafkaSinkSession, "pre_commit", refusing)
    settings = CheckpointSettings(interval="50ms", tolerable_failed_checkpoints=3)
    with Running(bench.pipeline(settings=settings)) as running:
        running.until(refused.is_set, "a checkpoint is refused")
        bench.fill(50)
        running.until(arrived(bench, 450), "all records are copied")
    bench.exact()


def test_what_a_failed_abort_leaves_open_is_aborted_before_new_tasks_begin(bench: Bench) -> None:
    def unlucky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Let the next abort of this worker fail."""
        from confluent_kafka import KafkaError, KafkaException

        from onceward.sinks.kafka.client import ArrowProducer

        aborting = ArrowProducer.abort_transaction

        def silent(*_: Any) -> None:
            ArrowProducer.abort_transaction = aborting  # type: ignore[method-assign]
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        for batch in batches:
            ArrowProducer.abort_transaction = silent  # type: ignore[assignment, method-assign]
            yield batch.select(["key", "value"])
        ArrowProducer.abort_transaction = aborting  # type: ignore[method-assign]

    settings = CheckpointSettings(interval="2s")
    bench.fill(20)
    with Running(
        bench.pipeline(source={"discovery_interval": "200ms"}, settings=settings, transform_batches=unlucky)
    ) as running:
        running.until(arrived(bench, 60), "the first records are copied")
        wait_for(bench.topics.admin.create_partitions([NewPartitions(bench.source, 4)])[bench.source])
        rounds = 0

        def grown() -> bool:
            """Keep the tasks writing until the new partition is read."""
            nonlocal rounds
            rounds += 1
            bench.topics.fill(bench.source, [b"new-%d" % rounds], partition=3, key=b"key-3")
            bench.fill(1)
            return b"new-1" in bench.topics.values(bench.sink)

        running.until(grown, "the records of the new partition are visible")
        running.until(arrived(bench, 3 * bench.filled + rounds), "all records are copied")
    bench.exact()


def held_back(bench: Bench) -> Iterable[int]:
    return open_transactions_hold_back(bench.topics.servers, bench.sink).values()


def test_staying_tasks_hold_readers_back_no_longer_than_their_driver_waits_for_its_coordinator(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their transactions would time out only after minutes."""
    monkeypatch.setattr(opening, "connect", partial(connect, patience="5s"))
    address = free_address()
    with Processes(tmp_path / "coordinator") as processes:
        serving = processes.start_coordinator(address, {})
        wait_until(lambda: listens(address), "the coordinator listens", 60)
        options: dict[str, Any] = {
            "coordinator": address,
            "state_dir": None,
            "settings": CheckpointSettings(interval="5s"),
        }
        bench.fill(5)
        with Running(bench.pipeline(**options)) as running:
            running.until(arrived(bench, 15), "the first records are copied")
            bench.fill(5)
            running.until(lambda: sum(held_back(bench)), "the next ones are in an open transaction")
            serving.send(signal.SIGKILL)
            wait_until(lambda: running.error is not None, "the driver has given its coordinator up", 120)
            assert isinstance(running.error, CoordinatorLostError), running.error
        wait_until(lambda: not sum(held_back(bench)), "the transaction is aborted", 30)
        processes.start_coordinator(address, {})
        with Running(bench.pipeline(**options)) as running:
            running.until(arrived(bench, 30), "all records are copied")
        bench.exact()


def test_rows_that_a_transform_makes_of_no_input_become_visible_with_their_checkpoint(bench: Bench) -> None:
    def counting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass the records, and say how many there were."""
        count = 0
        for batch in batches:
            count += batch.num_rows
            yield batch.select(["value"])
        yield pa.RecordBatch.from_pydict({"value": pa.array([b"count %d" % count], pa.binary())})

    bench.fill(5)
    with Running(bench.pipeline(transform_batches=counting)) as running:
        running.until(arrived(bench, 15), "the records are copied")
        running.until(lambda: bench.mirrored() == [end.offset for end in bench.ends()], "the job is idle")
        seen = len(bench.topics.values(bench.sink))
        with OperatorClient(StateDirectory(bench.directory / "state").published()) as people:
            people.request_checkpoint(JobName(bench.job), CheckpointKind.SAVEPOINT)
        running.until(arrived(bench, seen + 1), "the rows of the savepoint are visible")
        bench.fill(5)
        running.until(lambda: b"0-9" in bench.topics.values(bench.sink), "nothing holds back the next records")
    assert bench.topics.values(bench.sink).count(b"count 0") >= 1
    assert not any(open_transactions_hold_back(bench.topics.servers, bench.sink).values())


def fence(servers: str, transactional_id: str) -> None:
    """Abort the open transaction, as any producer of that id does."""
    Producer({"bootstrap.servers": servers, "transactional.id": transactional_id, "log_level": 0}).init_transactions(30)


def test_a_lost_slot_is_written_again_while_the_job_continues(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pre-committed transaction is aborted behind the job's back, as by the brokers' timeout."""
    bench.fill(100)
    lost = threading.Event()
    pre_commit = KafkaSinkSession.pre_commit

    def losing(self: KafkaSinkSession, checkpoint: CheckpointId, votes: Any, origins: Any, **more: Any) -> Any:
        made = pre_commit(self, checkpoint, votes, origins, **more)
        if made.committables and not lost.is_set():
            lost.set()
            fence(bench.topics.servers, KafkaCommittable.of(made.committables[0]).transaction.id)
        return made

    monkeypatch.setattr(KafkaSinkSession, "pre_commit", losing)
    with Running(bench.pipeline()) as running:
        running.until(lost.is_set, "a transaction is lost")
        bench.fill(50)
        running.until(arrived(bench, 450), "all records are copied")
    bench.exact()


def test_a_killed_worker_ends_the_generation_and_the_next_one_continues(bench: Bench) -> None:
    named = bench.directory / "worker"

    def naming(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            named.write_text(str(os.getpid()))
            yield batch.select(["key", "value"])

    bench.fill(100)
    restart = Restart(initial="100ms", maximum="1s")
    with Running(bench.pipeline(restart=restart, transform_batches=naming)) as running:
        running.until(arrived(bench, 300), "the first records are copied")
        os.kill(int(named.read_text()), signal.SIGKILL)
        bench.fill(50)
        running.until(arrived(bench, 450), "the next generation continues")
    assert running.error is None
    bench.exact()
