"""Input partitions and slots change between two checkpoints and across restarts, without an effect on the output."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import NewPartitions

from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline
from onceward.driver.restarts import NO_RESTART
from onceward.protocol.events import CloseReason
from tests.support.processes import JobProcesses
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics, assert_exactly_once, open_transactions_hold_back, wait_for
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


class Growing:
    """A job whose input grows in records and in partitions."""

    def __init__(self, topics: Topics, job: str, directory: Path) -> None:
        self.topics, self.job, self.directory = topics, job, directory
        self.source, self.sink = topics.create("in", 2), topics.create("out", 3)
        self.partitions = 2
        self.filled = 0

    def fill(self, records: int) -> None:
        """Add ``records`` to every partition."""
        for partition in range(self.partitions):
            values: list[bytes | None] = [b"%d-%d" % (partition, self.filled + n) for n in range(records)]
            self.topics.fill(self.source, values, partition=partition, key=b"key-%d" % partition)
        self.filled += records

    def grow(self, partitions: int) -> None:
        wait_for(self.topics.admin.create_partitions([NewPartitions(self.source, partitions)])[self.source])
        self.partitions = partitions

    def run(self, kind: type[Pipeline] = SparklessPipeline, *, limit: int = 70, **options: Any) -> None:
        """Start the program and let it run until all input is copied, with at most ``limit`` offsets per checkpoint."""
        pipeline = kind(
            job=self.job,
            source=KafkaSource(
                self.topics.servers,
                topics=[self.source],
                start="earliest",
                discovery_interval="100ms",
                max_offsets_per_checkpoint=limit,
            ),
            sink=KafkaSink(self.topics.servers, topic=self.sink),
            state_dir=self.directory / "state",
            settings=CheckpointSettings(interval="20ms"),
            restart=NO_RESTART,
            **options,
        )

        def stop() -> None:
            try:
                wait_until(self.complete, "everything is copied", 120)
            finally:
                pipeline.stop()

        stopper = Thread(target=stop)
        stopper.start()
        assert pipeline.run() is CloseReason.STOPPED
        stopper.join()

    def complete(self) -> bool:
        return len(self.topics.read(self.sink)) >= len(self.topics.read(self.source))

    def assert_nothing_lost_or_doubled(self) -> None:
        """Compare input and output without their order, which a shuffle may have changed."""
        assert not any(open_transactions_hold_back(self.topics.servers, self.sink).values())
        assert Counter(self.topics.values(self.source)) == Counter(self.topics.values(self.sink))


@pytest.fixture
def growing(topics: Topics, job: str, tmp_path: Path) -> Growing:
    return Growing(topics, job, tmp_path)


def test_input_partitions_grow_across_restarts_and_every_order_is_kept(growing: Growing) -> None:
    growing.fill(100)
    growing.run()
    for partitions in (3, 7):
        growing.grow(partitions)
        growing.fill(40)
        growing.run()
    assert_exactly_once(growing.topics, growing.source, growing.sink)


def test_input_partitions_grow_under_a_running_driver(growing: Growing, tmp_path: Path) -> None:
    growing.fill(200)
    directory = tmp_path / "process"
    directory.mkdir()
    with JobProcesses(
        directory,
        growing.job,
        growing.topics.servers,
        growing.source,
        growing.sink,
        source_options={"start": "earliest", "discovery_interval": "100ms", "max_offsets_per_checkpoint": 50},
        settings={"interval": "20ms"},
    ) as here:
        driver = here.driver()
        here.wait_for_event("settled", driver, count=2)
        growing.grow(5)

        def slots_of_their_own() -> bool:
            growing.fill(60)  # partition by partition: a quick driver finds few records at a time
            return any(event["transactions"] > 2 for event in here.events("pre-committed"))

        wait_until(lambda: slots_of_their_own() or not driver.running, "the new partitions have got slots", 120)
        wait_until(lambda: growing.complete() or not driver.running, f"all is copied: {driver.tail()}", 120)
        assert {event["generation"] for event in here.events("pre-committed")} == {1}, driver.tail()
    assert_exactly_once(growing.topics, growing.source, growing.sink)


SHAPES: list[tuple[str, "Callable[[DataFrame], DataFrame] | None"]] = [
    ("as many slots as partitions", None),
    ("more slots", lambda df: df.select("key", "value").repartition(5)),
    ("one slot", lambda df: df.select("key", "value").coalesce(1)),
    ("as many again", lambda df: df.select("key", "value").where("partition >= 0")),
]


def test_the_number_of_slots_is_another_one_after_each_restart(growing: Growing, spark: "SparkSession") -> None:
    for number, (_, transform) in enumerate(SHAPES):
        growing.grow(3 + number)
        growing.fill(30)
        growing.run(Pipeline, limit=10_000, transform=transform, spark=spark)
    growing.assert_nothing_lost_or_doubled()
