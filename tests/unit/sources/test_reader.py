"""What the reader of ranges does with what a client delivers; with a client it is tested on a broker
(tests/integration/test_kafka_source.py)."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, TopicPartition

from connections import KafkaCluster
from connections.limits import LOST_S
from coordinator.errors import CheckpointFailedError
from sources.kafka import reader
from sources.kafka.client import Event, Fetched
from sources.kafka.columns import COLUMNS, schema_of
from sources.kafka.reader import KafkaSplitReader, _Range
from tests.unit.sources.memory import Memory

Answer = list[tuple[int, int] | Event]
"""Partition and offset of each record."""


class Answers:
    """In a consumer's place: what each call gives."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = iter(answers)
        self.asked: list[int] = []
        self.left: list[list[int]] = []
        self.rebootstraps = 0

    def rebootstrap(self) -> None:
        self.rebootstraps += 1

    @contextmanager
    def fetched(self, most: int, _timeout: float) -> Iterator[Fetched]:
        self.asked.append(most)
        answer = next(self._answers, [])
        memory = Memory()
        found = [each for each in answer if not isinstance(each, Event)]
        records = [
            memory.records("t", partition, [(offset, None, b"%d" % offset) for _, offset in run])
            for partition, run in groupby(found, lambda each: each[0])
        ]
        yield Fetched(records, [each for each in answer if isinstance(each, Event)])
        memory.forget()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self.left.append([each.partition for each in partitions])


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


def record(offset: int, partition: int = 0) -> tuple[int, int]:
    return partition, offset


def eof(offset: int, partition: int = 0) -> Event:
    return Event("t", partition, offset, KafkaError(KafkaError._PARTITION_EOF))


def batches(*answers: Answer, end: int) -> Iterator[pa.RecordBatch]:
    return together(Answers(*answers), end)


def together(consumer: Any, *ends: int) -> Iterator[pa.RecordBatch]:
    """Ranges from 0 to each of ``ends``, of partitions 0, 1, and so on."""
    split_reader = KafkaSplitReader(cluster=KafkaCluster("localhost:9092"), group_id="g", give_up_after=60)
    splits = [{"topic": "t", "partition": partition, "start": 0, "end": end} for partition, end in enumerate(ends)]
    schema, columns = schema_of(COLUMNS), frozenset({"partition", "offset", "value"})
    return split_reader._batches(consumer, [_Range.of(each, schema, columns) for each in splits])


def places(batches: Iterator[pa.RecordBatch]) -> list[list[tuple[int, int]]]:
    return [list(zip(b["partition"].to_pylist(), b["offset"].to_pylist(), strict=True)) for b in batches]


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


def test_a_consumer_gets_its_bootstrap_servers_again_while_nothing_comes(clock: Clock) -> None:
    consumer = Answers([record(0)], [], [record(1)], *[[]] * 10, [record(2)])
    taken = together(consumer, 3)
    next(taken)
    next(taken)
    assert consumer.rebootstraps == 0
    next(taken)
    assert consumer.rebootstraps == 10 - LOST_S


def test_several_ranges_are_read_at_once_each_to_its_end_and_no_further() -> None:
    consumer = Answers(
        [record(0), record(1), record(0, 1), record(2), record(3)],
        [record(1, 1), record(4), record(0, 2), record(5)],
        [eof(2, 1), record(2, 2)],
        [eof(7, 2)],
    )
    assert places(together(consumer, 3, 2, 7)) == [
        [(0, 0), (0, 1)],
        [(1, 0)],
        [(0, 2)],
        [(1, 1)],
        [(2, 0)],
        [(2, 2)],
    ]
    assert consumer.left == [[0], [1]], "what is read is fetched no longer, and the last one is left with the client"
    assert consumer.asked == [12, 8, 6, 4], "never more than can come"


def test_what_comes_behind_the_end_of_a_range_says_nothing_about_the_others(clock: Clock) -> None:
    taken = together(Answers([record(0), eof(1)], [record(1), eof(2)]), 1, 1)
    next(taken)
    with pytest.raises(CheckpointFailedError, match="t-1 stopped at offset 0 of 1"):
        next(taken)


@pytest.mark.parametrize(
    "wrong",
    [[record(0, 7)], [record(1), record(0)], [record(0), record(0, 1), record(0)]],
    ids=["of another partition", "backwards", "twice"],
)
def test_records_that_were_not_asked_for_are_never_taken(wrong: Answer) -> None:
    with pytest.raises(RuntimeError, match="no record was taken"):
        list(together(Answers(wrong), 5, 5))
