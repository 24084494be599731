"""The Kafka sink and the Kafka source keep what every sink and every source promises, on a real broker."""

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from onceward import KafkaCluster, KafkaSink, KafkaSource
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.testing import SINK_PROMISES, SOURCE_PROMISES, Promise, SinkCase, SourceCase
from tests.support.sink_job import QUICK
from tests.support.topics import Topics

PARTITIONS = 2


@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_kafka_sink_keeps(promise: Promise[SinkCase], topics: Topics, out: str) -> None:
    with ExitStack() as opened:

        def system() -> KafkaSystem:
            control = ControlPlane(KafkaCluster(topics.servers))
            opened.callback(control.close)
            return KafkaSystem(control, clock=QUICK)

        promise(
            SinkCase(
                sink=lambda name: KafkaSink(topics.servers, topic=out, name=name),
                refused=bytes(2_000_000),
                system=system,
                visible=lambda: [value for value in topics.values(out) if value is not None],
            )
        )


@pytest.mark.parametrize("promise", SOURCE_PROMISES)
def test_the_kafka_source_keeps(promise: Promise[SourceCase], topics: Topics) -> None:
    read = topics.create("in", PARTITIONS)

    def add(values: Sequence[bytes]) -> None:
        for partition in range(PARTITIONS):
            topics.fill(read, values[partition::PARTITIONS], partition=partition)

    def remove() -> None:
        topics.delete(read)
        topics.create("in", PARTITIONS)

    promise(
        SourceCase(
            source=lambda: KafkaSource(topics.servers, topics=[read], start="earliest"),
            bounded=lambda: KafkaSource(topics.servers, topics=[read], start="earliest", end="latest"),
            add=add,
            remove=remove,
        )
    )
