"""How the reader of ranges handles what a client delivers.

tests/integration/test_kafka_source.py tests it with a client on a broker.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from onceward import KafkaCluster
from onceward.common.errors import CheckpointFailedError
from onceward.connections.limits import LOST_S
from onceward.sources.kafka.client import Event, Fetched, Throttling
from onceward.sources.kafka.client.fetched import MessageRecords
from onceward.sources.kafka.executor import reader
from onceward.sources.kafka.executor.clients import Client, Fetch
from onceward.sources.kafka.executor.columns import COLUMNS, schema_of
from onceward.sources.kafka.executor.offset_gone import OffsetGone, offset_gone_in
from onceward.sources.kafka.executor.ranges import Range
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from tests.unit.sources.memory import Memory

Answer = list[tuple[int, int] | Event]
"""Partition and offset of each record."""


class Answers:
    """A stand-in for a consumer: the result of each call."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = iter(answers)
        self.asked: list[int] = []
        self.left: list[list[int]] = []
        self.rebootstraps = 0
        self.throttling = Throttling()
        self.topic_errors: list[KafkaError | KafkaException] = []
        """One for each time that the reader asks."""

    def rebootstrap(self) -> None:
        self.rebootstraps += 1

    def topic_error(self, _topic: str, _timeout: float) -> KafkaError | None:
        answer = self.topic_errors.pop(0) if self.topic_errors else None
        if isinstance(answer, KafkaException):
            raise answer
        return answer

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
    """A clock that advances one second on each reading."""

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
    """Read ranges from 0 to each of ``ends``, of partitions 0, 1, and so on."""
    split_reader = KafkaSplitReader(cluster=KafkaCluster("localhost:9092"), group_id="g", give_up_after=60)
    splits = [{"topic": "t", "partition": partition, "start": 0, "end": end} for partition, end in enumerate(ends)]
    schema, columns = schema_of(COLUMNS), frozenset({"partition", "offset", "value"})
    return split_reader._batches(consumer, [Range.of(each, schema, columns) for each in splits])


def places(batches: Iterator[pa.RecordBatch]) -> list[list[tuple[int, int]]]:
    return [list(zip(b["partition"].to_pylist(), b["offset"].to_pylist(), strict=True)) for b in batches]


def test_a_slow_consumer_of_the_batches_is_no_error(clock: Clock) -> None:
    taken = batches([record(0)], [], [record(1)], end=2)
    next(taken)
    clock.now += 1_000
    assert next(taken)["value"].to_pylist() == [b"1"]


def test_a_silent_partition_fails_the_task_with_its_position(clock: Clock) -> None:
    taken = batches([record(0)], end=2)
    next(taken)
    with pytest.raises(CheckpointFailedError, match=r"offset 1 of 2: nothing came for 60 s.* next attempt"):
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


def test_records_behind_the_end_of_a_range_do_not_affect_the_others(clock: Clock) -> None:
    taken = together(Answers([record(0), eof(1)], [record(1), eof(2)]), 1, 1)
    next(taken)
    with pytest.raises(CheckpointFailedError, match="t-1 stopped at offset 0 of 1"):
        next(taken)


@pytest.mark.parametrize(
    "wrong",
    [
        [record(0, 7)],
        [record(1), record(0)],
        [record(0), record(2), record(1)],
        [record(0), record(0)],
        [record(0), record(0, 1), record(0)],
    ],
    ids=["of another partition", "backwards", "backwards later", "twice", "twice in two runs"],
)
def test_records_outside_the_range_are_never_taken(wrong: Answer) -> None:
    with pytest.raises(RuntimeError, match="no record was taken"):
        list(together(Answers(wrong), 5, 5))


class Logs:
    """A stand-in for a consumer: delivers assigned records up to the ends of its logs."""

    def __init__(self, ends: dict[int, int]) -> None:
        self._ends = ends
        self._at: dict[int, int] = {}
        self.assigned: list[list[tuple[int, int]]] = []
        self.throttling = Throttling()
        self.state = "used"

    def assign(self, places: list[TopicPartition], **_hints: Any) -> None:
        assert all(place.topic == "t" for place in places)
        self._at = {place.partition: place.offset for place in places}
        self.assigned.append(list(self._at.items()))

    @contextmanager
    def fetched(self, _most: int, _timeout: float) -> Iterator[Fetched]:
        memory, records, events = Memory(), [], []
        for partition, offset in list(self._at.items()):
            end = min(offset + 2, self._ends[partition])
            if offset < end:
                records.append(memory.records("t", partition, [(each, None, b"") for each in range(offset, end)]))
            else:
                events.append(eof(end, partition))
            self._at[partition] = end
        yield Fetched(records, events)
        memory.forget()

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        for place in places:
            del self._at[place.partition]

    def unassign(self) -> None:
        self._at.clear()
        self.state = "idle"

    @property
    def closed(self) -> bool:
        return self.state == "closed"

    def close(self) -> None:
        self.state = "closed"


class Pool:
    """The clients of a process, taken one at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, consumer: Any, fetches: list[Fetch]) -> None:
        self.kept: list[Fetch] = []
        self._consumer = consumer
        monkeypatch.setattr(reader, "take", self._take)
        monkeypatch.setattr(reader, "keep", self._keep)
        monkeypatch.setattr(reader, "fetch_for", lambda _, offsets, cluster: fetches[offsets > 100])

    def _take(self, client: Client) -> Any:
        self._taken = client
        return self._consumer

    def _keep(self, client: Client, consumer: Any) -> None:
        assert client == self._taken
        assert consumer.state == "idle"
        self.kept.append(client.fetch)


SMALL, LARGE = (Fetch(size=size, ahead=1, ranges=3, most=1) for size in (1, 2))


def split_reader() -> KafkaSplitReader:
    return KafkaSplitReader(cluster=KafkaCluster("localhost:9092"), group_id="g")


@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_each_range_of_a_split_is_read_once_and_whole_a_few_at_a_time(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long range gets its own client; an empty range gets none."""
    ranges = {number: (number, 5 + number if number % 3 else 300) for number in range(count)}
    consumer = Logs(dict.fromkeys(ranges, 1000))
    pool = Pool(monkeypatch, consumer, [SMALL, LARGE])
    splits = [{"topic": "t", "partition": n, "start": first, "end": end} for n, (first, end) in ranges.items()]
    empty = {"topic": "t", "partition": 99, "start": 7, "end": 7}
    found: dict[int, list[int]] = {}
    for batch in split_reader()({"ranges": [empty, *splits]}, frozenset({"partition", "offset"})):
        (number,) = set(batch["partition"].to_pylist())
        found.setdefault(number, []).extend(batch["offset"].to_pylist())
    assert found == {number: list(range(first, end)) for number, (first, end) in ranges.items()}
    assert sorted(place for each in consumer.assigned for place in each) == [(n, ranges[n][0]) for n in ranges]
    assert max(map(len, consumer.assigned)) <= 3
    assert set(pool.kept) == ({SMALL, LARGE} if count > 1 else {LARGE})
    assert len(pool.kept) == len(consumer.assigned)


def test_time_for_which_brokers_hold_fetches_back_is_no_stall_and_is_reported_once(clock: Clock) -> None:
    consumer = Answers(*[[]] * 100, [record(0)])
    consumer.throttling.add(90.0)
    assert places(together(consumer, 1)) == [[(0, 0)]], "it was waited for longer than reading waits without a word"
    assert (split_reader().held_back(), split_reader().held_back()) == (90.0, 0.0)


def test_a_client_is_kept_after_a_limit_and_closed_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"topic": "t", "partition": 0, "start": 0, "end": 9}
    consumer = Logs({0: 1_000})
    pool = Pool(monkeypatch, consumer, [SMALL, LARGE])
    limited = split_reader()(one, frozenset({"offset"}))
    next(limited)
    limited.close()  # type: ignore[attr-defined]
    assert (pool.kept, consumer.state) == ([SMALL], "idle")
    failing: Any = consumer
    failing.fetched = Answers([record(0, 7)]).fetched
    with pytest.raises(RuntimeError, match="no record was taken"):
        list(split_reader()(one, frozenset({"offset"})))
    assert (pool.kept, consumer.state) == ([SMALL], "closed")


def said(code: int, partition: int = 0, *, fatal: bool = False) -> Event:
    return Event("t", partition, -1, KafkaError(code, "said so", fatal=fatal))


@pytest.mark.parametrize("known", [True, False])
def test_a_missing_offset_fails_the_task_with_all_known_facts(known: bool) -> None:
    consumer: Any = Answers([record(0), said(KafkaError._AUTO_OFFSET_RESET)])

    def watermarks(place: TopicPartition, timeout: float) -> tuple[int, int]:
        assert (place.topic, place.partition, timeout > 0) == ("t", 0, True)
        if not known:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 5, 90

    consumer.get_watermark_offsets = watermarks
    with pytest.raises(CheckpointFailedError) as failed:
        list(together(consumer, 3))
    first, last = (5, 90) if known else (-1, -1)
    gone = OffsetGone(topic="t", partition=0, position=1, end=3, log_start=first, log_end=last)
    assert offset_gone_in(str(failed.value)) == gone


def test_an_offset_behind_a_range_that_was_read_is_nobodys() -> None:
    consumer = Answers([record(0), record(0, 1)], [said(KafkaError._AUTO_OFFSET_RESET), record(1, 1)])
    assert places(together(consumer, 1, 2)) == [[(0, 0)], [(1, 0)], [(1, 1)]]


@pytest.mark.parametrize(
    "event",
    [said(KafkaError._FATAL), said(KafkaError._TRANSPORT, fatal=True)],
    ids=["unknown", "permanent"],
)
def test_a_permanent_error_fails_the_task(event: Event) -> None:
    taken = together(Answers([event, record(0)]), 2)
    next(taken)
    with pytest.raises(KafkaException):
        next(taken)


def test_a_missing_right_fails_the_task_and_is_no_records_fault() -> None:
    with pytest.raises(CheckpointFailedError, match=r"may not read topic 't'.*Grant READ on Topic 't'"):
        list(together(Answers([said(KafkaError.TOPIC_AUTHORIZATION_FAILED)]), 2))


def test_a_topic_that_may_not_be_described_is_named_though_the_client_reports_nothing(clock: Clock) -> None:
    consumer = Answers()
    silent, forbidden = KafkaError(KafkaError._TIMED_OUT), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    consumer.topic_errors = [KafkaException(silent), forbidden]
    with pytest.raises(CheckpointFailedError, match="Grant READ on Topic 't'"):
        list(together(consumer, 2))
    assert not consumer.topic_errors
    assert consumer.rebootstraps > LOST_S


def test_a_passing_error_is_reported_if_no_record_follows(clock: Clock) -> None:
    taken = batches([said(KafkaError._TRANSPORT), record(0)], [said(KafkaError._TRANSPORT)], end=2)
    next(taken)
    with pytest.raises(CheckpointFailedError, match="the client last said: said so"):
        next(taken)


@pytest.mark.parametrize(("planned", "refused"), [(None, False), (3, False), (2, True)])
def test_records_of_a_later_leader_than_was_planned_are_not_taken(
    planned: int | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log lost its end and was filled again."""
    monkeypatch.setattr(MessageRecords, "last_epoch", lambda _: 3)
    consumer: Any = Answers([record(0), record(1)])
    split = {"topic": "t", "partition": 0, "start": 0, "end": 2, "epoch": planned}
    each = Range.of(split, schema_of(COLUMNS), frozenset({"partition", "offset"}))
    taken = split_reader()._batches(consumer, [each])
    if refused:
        with pytest.raises(CheckpointFailedError, match="at offset 1 a record of leader epoch 3"):
            next(taken)
    else:
        assert places(taken) == [[(0, 0), (0, 1)]]
