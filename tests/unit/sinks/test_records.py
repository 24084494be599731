"""Batches become records of modelled partitions: complete, in order, in the right topic, never too many at once."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from onceward.sinks.kafka.client import UnfitRecordError
from onceward.sinks.kafka.errors import DeliveryError, RouteError
from onceward.sinks.kafka.executor import records
from onceward.sinks.kafka.executor.records import BatchProducer
from tests.support.kafka_model import SimProducer
from tests.support.kafka_model.bench import OUT, Bench

OTHER = ("other", 0)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.cluster.create_topic("other")
    return made


def batch(values: Sequence[bytes | None], **columns: Any) -> pa.RecordBatch:
    count = len(values)
    partitions = pa.array(columns.pop("partition", [0] * count), pa.int32())
    arrays = {"value": pa.array(values, pa.binary()), "partition": partitions, **columns}
    return pa.RecordBatch.from_pydict(arrays)


class Writer:
    """A producer with an open transaction, and the records it wrote."""

    def __init__(self, bench: Bench, *, topic: str | None = "out", room: int = 100_000) -> None:
        self.bench = bench
        self.client: SimProducer = bench.producer(room=room)
        self.client.begin_transaction()
        client: Any = self.client
        self.producer = BatchProducer(client, topic=topic, topics=("out", "other"))
        self.checks = 0

    def check(self) -> None:
        self.checks += 1

    def write(self, *batches: pa.RecordBatch) -> None:
        for each in batches:
            self.producer.produce(each, self.check)

    def written(self, partition: tuple[str, int] = OUT) -> list[bytes | None]:
        """Flush, and return the records in the log, committed or not."""
        self.client.flush(30)
        entries, _ = self.bench.cluster.log(partition).read(0, committed=False)
        return [entry.record.value for entry in entries if entry.record is not None]


def values(count: int, size: int = 4) -> list[bytes]:
    return [str(number).encode().rjust(size, b"0") for number in range(count)]


def test_all_records_arrive_in_order_and_are_counted(bench: Bench) -> None:
    writer = Writer(bench)
    keyed = batch([b"cc", None], key=pa.array([b"kkk", None], pa.binary()))
    writer.write(batch([b"a", b"bb"]), batch([]), keyed)
    assert writer.producer.records == {"out": 4}
    assert writer.producer.bytes == 1 + 2 + 2 + 3
    assert writer.written() == [b"a", b"bb", b"cc", None]


def test_a_large_batch_is_handed_over_in_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CHUNK_RECORDS", 7)
    handed: list[int] = []
    writer = Writer(bench)
    produce = writer.client.produce
    client: Any = writer.client

    def noted(topic: str, chunk: pa.RecordBatch, full: Any) -> None:
        handed.append(chunk.num_rows)
        produce(topic, chunk, full)

    client.produce = noted
    writer.write(batch(values(20)), batch(values(7)))
    monkeypatch.setattr(records, "CHUNK_BYTES", 10)
    writer.write(batch(values(5)), batch(values(2, size=40)))
    assert handed == [7, 7, 6, 7, 2, 2, 1, 1, 1]
    assert writer.producer.bytes == 4 * 32 + 80
    assert writer.written() == [*values(20), *values(7), *values(5), *values(2, size=40)]


def test_records_go_to_the_topic_that_their_column_names(bench: Bench) -> None:
    writer = Writer(bench, topic=None)
    writer.write(batch([b"a", b"b", b"c"], topic=["out", "other", "out"]), batch([b"d"], topic=["other"]))
    assert writer.producer.records == {"out": 2, "other": 2}
    assert writer.written() == [b"a", b"c"]
    assert writer.written(OTHER) == [b"b", b"d"]


@pytest.mark.parametrize(
    ("topics", "named"),
    [
        (["out", "bills"], "'bills'"),
        ([None, "out"], "null"),
        (["a", "b", "c", "b", "d", "e", "f"], "'a', 'b', 'c', 'd', 'e'"),
    ],
)
def test_a_topic_that_was_not_declared_is_refused_before_anything_of_the_batch_is_written(
    bench: Bench, topics: list[str | None], named: str
) -> None:
    writer = Writer(bench, topic=None)
    with pytest.raises(RouteError, match=rf"says {named}, but the sink declares only \['other', 'out'\]"):
        writer.write(batch(values(len(topics)), topic=pa.array(topics, pa.string())))
    assert writer.producer.records.total() == writer.client.accepted == 0


def test_a_negative_partition_is_refused_and_none_is_the_partitioners(bench: Bench) -> None:
    writer = Writer(bench)
    with pytest.raises(RouteError, match="partition column says -2"):
        writer.write(batch([b"a", b"b"], partition=[0, -2]))
    assert writer.client.accepted == 0
    writer.write(batch([b"a"], partition=[None]), batch([b"b"], partition=[0]))
    assert writer.client.accepted == 2
    without = pa.RecordBatch.from_pydict({"value": pa.array([b"c"], pa.binary())})
    writer.write(without)
    assert writer.producer.records == {"out": 3}


@pytest.mark.parametrize(("limit", "at_most"), [("QUEUED_RECORDS", 6), ("QUEUED_BYTES", 24)])
def test_no_more_waits_in_the_client_than_is_allowed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: str, at_most: int
) -> None:
    monkeypatch.setattr(records, "CHUNK_RECORDS", 3)
    monkeypatch.setattr(records, limit, at_most)
    writer, longest = Writer(bench), 0
    poll, client = writer.client.poll, writer.client
    changed: Any = client

    def rarely(seconds: float) -> Any:
        nonlocal longest
        longest = max(longest, len(client))
        return poll(seconds) if seconds else 0

    changed.poll = rarely
    writer.write(batch(values(30)))
    assert longest == 6
    assert writer.checks > 0, "a failed delivery would stay unnoticed"
    assert writer.written() == values(30)


class OneByOne:
    """A client whose brokers confirm one record on each poll with a timeout."""

    def __init__(self) -> None:
        self.accepted = 0
        self.waiting: list[int] = []
        """Size of each waiting record, in bytes."""
        self.found: list[int] = []
        """Bytes that waited when each record was handed over."""

    def __len__(self) -> int:
        return len(self.waiting)

    def produce(self, _topic: str, chunk: pa.RecordBatch, _full: Any) -> None:
        self.found.append(sum(self.waiting))
        self.waiting += [len(value) for value in chunk.column("value").to_pylist()]
        self.accepted += chunk.num_rows

    def poll(self, seconds: float) -> None:
        if seconds:
            del self.waiting[:1]


@given(st.lists(st.integers(1, 12), max_size=20))
def test_a_record_waits_for_room_and_no_longer(sizes: list[int]) -> None:
    limit = 16
    client: Any = OneByOne()
    producer = BatchProducer(client, topic="out", topics=("out",))

    def check() -> None:
        assert sum(client.waiting) + size > limit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "QUEUED_BYTES", limit)
        for size in sizes:
            producer.produce(batch([b"x" * size]), check)
    assert all(found + size <= limit for found, size in zip(client.found, sizes, strict=True))


def test_a_full_client_queue_is_polled_until_it_has_room(bench: Bench) -> None:
    writer = Writer(bench, room=2)

    def check() -> None:
        writer.check()
        if writer.checks > 100:
            raise DeliveryError("no room")

    writer.producer.produce(batch(values(7)), check)
    assert writer.checks > 0
    assert writer.written() == values(7)


def test_a_chunk_above_the_limit_waits_for_an_empty_queue_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "QUEUED_BYTES", 5)
    writer = Writer(bench)
    writer.write(batch(values(1, size=100)), batch(values(2, size=100)))
    assert writer.written() == [*values(1, size=100), *values(2, size=100)]


def test_a_check_that_fails_while_the_queue_is_full_ends_the_slot(bench: Bench) -> None:
    writer = Writer(bench, room=2)

    def check() -> None:
        raise DeliveryError("the slot took too long")

    with pytest.raises(DeliveryError, match="took too long"):
        writer.producer.produce(batch(values(5)), check)
    assert writer.client.accepted == 2


class Broken(SimProducer):
    """A client that fails on demand."""

    error: Exception

    def produce(self, *_: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)),
            "client refused a record for topic 'out'.*message.max",
        ),
        (
            KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True)),
            "client cannot continue this transaction",
        ),
        (
            UnfitRecordError("a header without a name"),
            "record for topic 'out' cannot be written: a header without a name",
        ),
    ],
)
def test_a_client_refusal_is_reported_by_its_cause(bench: Bench, error: Exception, said: str) -> None:
    writer = Writer(bench)
    client: Any = writer.client
    client.__class__ = Broken
    client.error = error
    with pytest.raises(DeliveryError, match=said):
        writer.write(batch([b"a"]))
    assert writer.producer.records.total() == 0


def test_a_client_that_breaks_while_it_is_polled_ends_the_slot(bench: Bench) -> None:
    writer = Writer(bench)
    client: Any = writer.client

    def poll(_seconds: float) -> int:
        raise KafkaException(KafkaError(KafkaError._FATAL))

    client.poll = poll
    with pytest.raises(DeliveryError, match="cannot continue"):
        writer.write(batch([b"a"]))


def test_records_that_stand_still_are_timed_from_the_last_that_moved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("onceward.sinks.kafka.executor.records.time.monotonic", lambda: now)
    writer = Writer(bench)
    client: Any = writer.client
    poll, client.poll = client.poll, lambda _seconds: 0
    now = 130.0
    assert writer.producer.stalled_for() == 0, "nothing waits"
    writer.write(batch(values(2)))
    now = 150.0
    assert writer.producer.stalled_for() == 20
    poll(0)
    now = 160.0
    assert writer.producer.stalled_for() == 0
    now = 170.0
    assert writer.producer.stalled_for() == 0
