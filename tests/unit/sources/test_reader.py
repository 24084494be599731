"""When the reader of a range gives up; what it reads is tested on a broker (tests/integration/test_kafka_source.py)."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message

from connections import KafkaCluster
from coordinator.errors import CheckpointFailedError
from sources.kafka import reader
from sources.kafka.columns import batch_builder, schema_of
from sources.kafka.reader import KafkaSplitReader


class Answers:
    """In a consumer's place: what each call returns."""

    def __init__(self, *answers: list[Message]) -> None:
        self._answers = iter(answers)

    def consume(self, _records: int, _seconds: float) -> list[Message]:
        return next(self._answers, [])


class Clock:
    """Goes by a second with each look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=clock))
    return clock


def record(offset: int) -> Message:
    return Message(topic="t", partition=0, offset=offset, key=None, value=b"%d" % offset)


def batches(*answers: list[Message], end: int) -> Iterator[pa.RecordBatch]:
    split_reader = KafkaSplitReader(cluster=KafkaCluster("localhost:9092"), group_id="g", give_up_after=60)
    build = batch_builder(schema_of(False), frozenset({"value"}), "t", 0)
    consumer: Any = Answers(*answers)
    return split_reader._batches(consumer, build, "t", 0, 0, end)


def test_whoever_takes_the_batches_may_be_slow(clock: Clock) -> None:
    taken = batches([record(0)], [], [record(1)], end=2)
    next(taken)
    clock.now += 1_000
    assert next(taken)["value"].to_pylist() == [b"1"]


def test_nothing_for_as_long_as_it_waits_fails_the_task_and_says_where(clock: Clock) -> None:
    taken = batches([record(0)], end=2)
    next(taken)
    with pytest.raises(CheckpointFailedError, match="t-0 stopped at offset 1 of 2: nothing came for 60 s"):
        next(taken)
    assert 60 < clock.now < 80
