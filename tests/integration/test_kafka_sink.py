"""The sink against the real broker: what becomes visible, when, and what the sink refuses."""

import pickle
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from onceward import KafkaCluster, KafkaSink
from onceward.common.errors import ConfigurationError, HaltedError, PreflightError
from onceward.connectors.interfaces import Finding, JobContext, Severity, SinkSession
from onceward.driver.spark.passes import chosen_by
from onceward.protocol.values import CheckpointId, Generation, JobName, Outcome
from onceward.sinks.kafka.client.partitioner import LONGEST_KEY
from onceward.sinks.kafka.control.brokers import topic_facts
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.fencing import fence_ids
from onceward.sinks.kafka.control.transactions import State
from onceward.sinks.kafka.driver import columns
from onceward.sinks.kafka.errors import DeliveryError, PreCommitError, RouteError
from onceward.sinks.kafka.executor import producers, records
from onceward.sinks.kafka.identifiers import TransactionalId
from tests.support.shared_kafka import SharedKafka
from tests.support.sink_job import QUICK, SinkJob, batch
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("each_writer")


@pytest.fixture
def out(topics: Topics) -> str:
    return topics.create("out", partitions=3)


def settle(sink: SinkJob, checkpoint: int, *votes: Any) -> None:
    """Pre-commit and commit a checkpoint, and notify the sink."""
    committables = sink.pre_commit(checkpoint, votes)
    assert {each.outcome for each in sink.system().commit(sink.author, committables)} <= {Outcome.COMMITTED}
    sink.sink.on_settled(CheckpointId(checkpoint), committables)


def assert_values(topics: Topics, topic: str, expected: list[bytes | None]) -> None:
    """Compare the topic's values in any order."""
    assert sorted(map(repr, topics.values(topic))) == sorted(map(repr, expected))


def test_nothing_is_visible_before_the_commit_and_exactly_everything_after(
    sink: SinkJob, topics: Topics, out: str
) -> None:
    values = [b"%d" % number for number in range(25_000)]
    vote = sink.write(1, batch(*values[:10_000]), batch(), batch(*values[10_000:]))
    assert (vote.records, vote.bytes) == (25_000, sum(map(len, values)))
    committables = sink.pre_commit(1, [vote])
    assert topics.values(out) == []
    sink.system().commit(sink.author, committables)
    assert_values(topics, out, list(values))


def test_keys_tombstones_and_empty_values_arrive_as_they_were(sink: SinkJob, topics: Topics, out: str) -> None:
    sent: list[tuple[bytes | None, bytes | None]] = [
        (b"k", b"v"),
        (None, b"v"),
        (b"k", None),
        (b"", b""),
        (None, None),
        (b"\xff\x00", b"\x00"),
    ]
    settle(sink, 1, sink.write(1, batch(*sent)))
    arrived = [(key, value) for _, _, key, value in topics.read(out)]
    assert sorted(map(repr, arrived)) == sorted(map(repr, sent))


def test_headers_and_timestamps_arrive_as_they_were(sink: SinkJob, topics: Topics, out: str) -> None:
    topics.configure(out, {"retention.ms": "-1"})
    at = datetime(2024, 2, 29, 12, 30, 15, 123_456, tzinfo=UTC)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([b"a", b"b", b"c"], pa.binary()),
            pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], [], None], headers),
            pa.array([at, None, at], pa.timestamp("us", tz="UTC")),
        ],
        ["value", "headers", "timestamp"],
    )
    settle(sink, 1, sink.write(1, rows))
    found = {message.value(): message for message in topics.messages(out)}
    assert found[b"a"].headers() == [("h", b"1"), ("h", None)]
    assert not found[b"b"].headers()
    assert found[b"a"].timestamp()[1] == found[b"c"].timestamp()[1] == int(at.timestamp() * 1000)
    assert abs(found[b"b"].timestamp()[1] / 1000 - time.time()) < 600


def test_every_time_that_kafka_holds_is_written(sink: SinkJob, topics: Topics, out: str, each_writer: str) -> None:
    """librdkafka takes 0 for now, so it writes 1 instead."""
    topics.configure(out, {"retention.ms": "-1"})
    times = [-(10**15), -2, -1, 0, 1]
    values = pa.array([b"%d" % each for each in times])
    stamps = pa.array([each * 1000 for each in times], pa.timestamp("us", tz="UTC"))
    settle(sink, 1, sink.write(1, pa.RecordBatch.from_arrays([values, stamps], ["value", "timestamp"])))
    found = {message.value(): message.timestamp()[1] for message in topics.messages(out)}
    least = 1 if each_writer == "librdkafka" else 0
    assert found == {b"%d" % each: each or least for each in times}
    # librdkafka itself
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0})
    producer.produce(out, b"zero", partition=0, timestamp=0)
    assert producer.flush(30) == 0
    assert {m.value(): m.timestamp()[1] for m in topics.messages(out)}[b"zero"] > 10**12


def test_order_is_kept_in_every_partition_and_for_every_key(sink: SinkJob, topics: Topics, out: str) -> None:
    sent = [(b"key%d" % (number % 7), b"%06d" % number) for number in range(30_000)]
    settle(sink, 1, sink.write(1, *[batch(*sent[start : start + 3_000]) for start in range(0, 30_000, 3_000)]))
    last: dict[bytes | None, bytes] = {}
    for _, _, key, value in topics.read(out):
        assert value is not None
        assert last.get(key, b"") < value
        last[key] = value


def test_order_is_kept_whatever_the_keys_are(kafka: SharedKafka, job: str, topics: Topics) -> None:
    """In one partition, records without a key and with a very long one keep their place."""
    single = topics.create("single")
    keys = [b"a", None, b"b", bytes(LONGEST_KEY + 1), b"c"]
    sent = [(key, b"%d.%d" % (turn, index)) for turn in range(50) for index, key in enumerate(keys)]
    with SinkJob(kafka.bootstrap_servers, job, topic=single) as sink:
        settle(sink, 1, sink.write(1, batch(*sent)))
    assert [(key, value) for _, _, key, value in topics.read(single)] == sent


def test_order_is_kept_where_a_partition_column_sets_some_partitions(
    kafka: SharedKafka, job: str, topics: Topics
) -> None:
    single = topics.create("single")
    keys = [b"a", None, bytes(LONGEST_KEY + 1), None, b"b"]
    values = [b"%d" % number for number in range(len(keys))]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array([0, None, None, 0, None], pa.int32())],
        ["key", "value", "partition"],
    )
    with SinkJob(kafka.bootstrap_servers, job, topic=single) as sink:
        settle(sink, 1, sink.write(1, rows))
    assert topics.values(single) == values


def test_keys_go_where_java_sends_them(sink: SinkJob, topics: Topics, out: str) -> None:
    """The partition is murmur2 modulo 3, as Java's default partitioner computes it."""

    def murmur2(data: bytes) -> int:
        mask, m, length = 0xFFFFFFFF, 0x5BD1E995, len(data)
        h = (0x9747B28C ^ length) & mask
        for start in range(0, length - length % 4, 4):
            k = int.from_bytes(data[start : start + 4], "little") * m & mask
            k = (k ^ (k >> 24)) * m & mask
            h = (h * m & mask) ^ k
        tail = data[length - length % 4 :]
        for index in reversed(range(len(tail))):
            h ^= tail[index] << (8 * index)
        if tail:
            h = h * m & mask
        h = (h ^ (h >> 13)) * m & mask
        return h ^ (h >> 15)

    keys = [b"key-%d" % number for number in range(60)]
    settle(sink, 1, sink.write(1, batch(*[(key, b"v") for key in keys])))
    placed = {key: partition for partition, _, key, _ in topics.read(out)}
    assert placed == {key: (murmur2(key) & 0x7FFFFFFF) % 3 for key in keys}


def routed(names: list[str | None], values: list[bytes], **columns: pa.Array) -> pa.RecordBatch:
    arrays = {"topic": pa.array(names, pa.string()), "value": pa.array(values, pa.binary()), **columns}
    return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))


def test_keys_of_any_length_go_where_the_client_itself_sends_them(sink: SinkJob, topics: Topics, out: str) -> None:
    """Keys that the sink places, keys that it leaves to the client, and the limit between them."""
    keys = [bytes([length % 251]) * length for length in (*range(12), *range(LONGEST_KEY - 3, LONGEST_KEY + 4), 1000)]
    other = topics.create("other", partitions=3)
    client = Producer({"bootstrap.servers": topics.servers, "partitioner": "murmur2_random", "log_level": 0})
    for key in keys:
        client.produce(other, b"x", key)
    assert client.flush(30) == 0
    settle(sink, 1, sink.write(1, batch(*((key, b"x") for key in keys))))
    placed, expected = (
        {message.key(): message.partition() for message in topics.messages(topic)} for topic in (out, other)
    )
    assert placed == expected
    assert len(set(placed.values())) == 3


def test_a_partition_column_decides_and_null_leaves_it_to_the_partitioner(
    sink: SinkJob, topics: Topics, out: str
) -> None:
    def placed(numbers: list[int | None], values: list[bytes]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.array(values, pa.binary()), pa.array(numbers, pa.int32())], ["value", "partition"]
        )

    values = [b"%d" % number for number in range(6)]
    vote = sink.write(1, placed([2, 0, 1, 2, 0, 1], values), placed([2, None], [b"x", b"y"]))
    settle(sink, 1, vote)
    found = [(partition, value) for partition, _, _, value in topics.read(out) if value != b"y"]
    assert found == [(0, b"1"), (0, b"4"), (1, b"2"), (1, b"5"), (2, b"0"), (2, b"3"), (2, b"x")]


@pytest.mark.parametrize("partition", [-1, 99])
def test_an_impossible_partition_fails_the_slot(sink: SinkJob, partition: int) -> None:
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"a"], pa.binary()), pa.array([partition], pa.int32())], ["value", "partition"]
    )
    with pytest.raises((RouteError, DeliveryError)):
        sink.write(1, rows)
    assert sink.system().leftovers(sink.job) == []


def test_records_are_routed_by_the_topic_column_in_one_transaction(
    kafka: SharedKafka, job: str, topics: Topics
) -> None:
    good, bad = topics.create("good"), topics.create("bad")
    with SinkJob(kafka.bootstrap_servers, job, topics=[good, bad]) as sink:
        vote = sink.write(1, routed([good, bad, good], [b"1", b"2", b"3"]), routed([good], [b"4"]))
        assert vote.body["topics"] == {good: 3, bad: 1}
        (committable,) = sink.pre_commit(1, [vote])
        written = KafkaCommittable.of(committable).topics
        assert {name: (each.records, each.partitions) for name, each in written.items()} == {
            good: (3, (0,)),
            bad: (1, (0,)),
        }
        sink.system().commit(sink.author, [committable])
        assert topics.values(good) == [b"1", b"3", b"4"]
        assert topics.values(bad) == [b"2"]


@pytest.mark.parametrize("foreign", ["elsewhere", None])
def test_a_topic_that_was_not_declared_fails_the_slot_and_is_named(
    kafka: SharedKafka, job: str, topics: Topics, foreign: str | None
) -> None:
    declared = topics.create("declared")
    with SinkJob(kafka.bootstrap_servers, job, topics=[declared]) as sink:
        with pytest.raises(RouteError, match="elsewhere" if foreign else "null"):
            sink.write(1, routed([declared, foreign], [b"1", b"2"]))
        assert sink.system().leftovers(sink.job) == []
        assert topics.values(declared) == []


def test_topic_overrides_a_topic_column(sink: SinkJob, topics: Topics, out: str) -> None:
    settle(sink, 1, sink.write(1, routed(["elsewhere"], [b"1"])))
    assert_values(topics, out, [b"1"])


def test_a_slot_without_a_record_votes_without_a_transaction(sink: SinkJob) -> None:
    for batches in ([], [batch()], [batch(), batch()]):
        vote = sink.write(1, *batches)
        assert (vote.records, vote.body) == (0, {})
    assert sink.pre_commit(1, [vote]) == ()
    assert sink.system().leftovers(sink.job) == []


def test_a_record_that_the_topic_refuses_fails_the_slot_and_nothing_is_voted(
    topics: Topics, kafka: SharedKafka, job: str
) -> None:
    small = topics.create("small", config={"max.message.bytes": "1000"})
    with SinkJob(kafka.bootstrap_servers, job, topic=small) as sink:
        with pytest.raises(DeliveryError, match="not delivered"):
            sink.write(1, batch(b"ok"), batch(bytes(5_000)), batch(b"ok too"))
        assert sink.system().leftovers(sink.job) == []
        assert topics.values(small) == []
        settle(sink, 2, sink.write(2, batch(b"fine")))
        assert_values(topics, small, [b"fine"])


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_small_records_fit_a_topic_that_accepts_only_small_batches(
    topics: Topics, kafka: SharedKafka, job: str, delivery: str
) -> None:
    """The topic's limit is for a whole batch, and the client's default batches are larger."""
    small = topics.create("small", config={"max.message.bytes": "10000"})
    values = [b"%04d" % number + bytes(1_000) for number in range(500)]
    with SinkJob(kafka.bootstrap_servers, job, topic=small, delivery=delivery) as sink:
        vote = sink.write(1, batch(*values))
        if vote.body:
            settle(sink, 1, vote)
    assert_values(topics, small, list(values))


def test_a_record_that_the_client_refuses_fails_the_slot(sink: SinkJob) -> None:
    with pytest.raises(DeliveryError, match="refused"):
        sink.write(1, batch(bytes(3_000_000)))
    assert sink.system().leftovers(sink.job) == []


def test_a_fenced_producer_fails_the_slot_with_a_typed_error(sink: SinkJob) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(b"1")
        wait_until(lambda: bool(sink.system().leftovers(sink.job)), "the transaction is open")
        fence_ids(sink.control, sink.system().leftovers(sink.job), QUICK)
        yield batch(b"2")

    with pytest.raises(DeliveryError):
        sink.write_all(1, batches())
    assert sink.system().leftovers(sink.job) == []


def test_an_error_of_the_transform_keeps_its_message_and_leaves_nothing_open(
    sink: SinkJob, topics: Topics, out: str
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(b"1")
        wait_until(lambda: bool(sink.system().leftovers(sink.job)), "the transaction is open")
        raise ZeroDivisionError("in the transform")

    with pytest.raises(ZeroDivisionError, match="in the transform"):
        sink.write_all(1, batches())
    assert sink.system().leftovers(sink.job) == []
    assert topics.values(out) == []


def ids(*votes: Any) -> list[TransactionalId]:
    return [parsed for vote in votes if (parsed := TransactionalId.parse(vote.body["id"])) is not None]


def test_an_id_is_used_again_only_after_its_last_transaction_is_settled_as_committed(
    sink: SinkJob, each_writer: str
) -> None:
    votes = [sink.write(1, batch(b"1"))]
    committables = sink.pre_commit(1, votes)
    votes += [sink.write(2, batch(b"2")), sink.write(3, batch(b"3"))]
    assert len(set(ids(*votes))) == 3
    sink.system().commit(sink.author, committables)
    sink.sink.on_settled(CheckpointId(1), committables)
    later = [sink.write(4, batch(b"4")), sink.write(5, batch(b"5"))]
    # One producer of librdkafka was made ahead, before the settlement was known; the next one may use the id.
    again, new = ids(*(reversed(later) if each_writer == "librdkafka" else later))
    assert again == ids(votes[0])[0]
    assert new not in ids(*votes)
    # That id now has another unsettled transaction, whatever the outcome of its first one.
    more = [sink.write(number, batch(b"x")) for number in range(6, 10)]
    assert not set(ids(*more)) & set(ids(*votes, *later))
    open_now = {str(identifier) for identifier in ids(*votes[1:], *later, *more)}
    assert set(sink.system().leftovers(sink.job)) == open_now


def test_the_number_of_ids_stays_small_over_many_checkpoints(sink: SinkJob) -> None:
    used = set()
    for checkpoint in range(1, 41):
        votes = [sink.write(checkpoint, batch(b"x"), slot=slot) for slot in range(2)]
        used |= set(ids(*votes))
        settle(sink, checkpoint, *votes)
    assert len(used) <= 5


def test_a_failed_attempt_retires_its_id(sink: SinkJob) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(b"1")
        used.extend(map(str, sink.system().leftovers(sink.job)))
        raise ZeroDivisionError

    used: list[str] = []

    def failing_when_open() -> Iterator[pa.RecordBatch]:
        yield batch(b"1")
        wait_until(lambda: bool(sink.system().leftovers(sink.job)), "the transaction is open")
        yield from failing()

    with pytest.raises(ZeroDivisionError):
        sink.write_all(1, failing_when_open())
    assert len(used) == 1
    votes = []
    for checkpoint in range(2, 8):
        votes.append(sink.write(checkpoint, batch(b"x")))
        settle(sink, checkpoint, votes[-1])
    assert used[0] not in {vote.body["id"] for vote in votes}


def test_ids_of_another_generation_are_not_used_again(kafka: SharedKafka, job: str, out: str) -> None:
    seen = set()
    for generation in (1, 2):
        with SinkJob(kafka.bootstrap_servers, job, topic=out, generation=generation) as sink:
            for checkpoint in range(1, 4):
                vote = sink.write(checkpoint, batch(b"x"))
                settle(sink, checkpoint, vote)
                seen.add((generation, ids(vote)[0].generation, ids(vote)[0].worker))
    assert {(mine, theirs) for mine, theirs, _ in seen} == {(1, 1), (2, 2)}
    assert len({worker for _, _, worker in seen}) == 2


@pytest.mark.parametrize("each_writer", ["librdkafka"], indirect=True)  # which alone makes producers ahead
def test_a_producer_made_ahead_that_went_stale_is_replaced(sink: SinkJob, monkeypatch: pytest.MonkeyPatch) -> None:
    votes = [sink.write(1, batch(b"%d" % slot), slot=slot) for slot in range(2)]
    settle(sink, 1, *votes)
    ahead = made_ahead(sink, votes[1])
    old = sink.transactions.describe([ahead])[ahead]
    monkeypatch.setattr(producers, "_STALE_AFTER_S", 0.0)
    second = sink.write(2, batch(b"2"))
    settle(sink, 2, second)
    now = sink.transactions.describe([ahead])[ahead]
    assert second.body["id"] != ahead or now.epoch > old.epoch, "the old producer wrote"


def made_ahead(sink: SinkJob, vote: Any, *, after: int = 1) -> str:
    """The id of the producer that is prepared in advance, once it is initialised."""
    name = str(replace(ids(vote)[0], n=ids(vote)[0].n + after))
    wait_until(lambda: sink.transactions.describe([name])[name].code == 0, "it was made ahead")
    return name


@pytest.mark.parametrize("each_writer", ["librdkafka"], indirect=True)
def test_a_producer_made_ahead_that_was_fenced_fails_one_attempt_and_no_more(sink: SinkJob) -> None:
    votes = [sink.write(1, batch(b"%d" % slot), slot=slot) for slot in range(2)]
    fence_ids(sink.control, [made_ahead(sink, votes[1])], QUICK)

    def and_the_next_one_too() -> Iterator[pa.RecordBatch]:
        yield batch(b"2")
        fence_ids(sink.control, [made_ahead(sink, votes[1], after=2)], QUICK)

    with pytest.raises(DeliveryError):
        sink.write_all(1, and_the_next_one_too(), slot=2)
    settle(sink, 1, *votes, sink.write(1, batch(b"2"), slot=2))


def test_large_input_is_written_with_bounded_queues(
    sink: SinkJob, topics: Topics, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "QUEUED_BYTES", 1 << 20)
    monkeypatch.setattr(records, "CHUNK_BYTES", 100_000)
    values = [b"%05d" % number + bytes(1_000) for number in range(10_000)]
    settle(sink, 1, sink.write(1, batch(*values)))
    assert_values(topics, out, list(values))


def test_a_full_client_queue_loses_and_reorders_nothing(kafka: SharedKafka, job: str, topics: Topics) -> None:
    single = topics.create("single")
    cluster = KafkaCluster(kafka.bootstrap_servers, config={"queue.buffering.max.messages": 500, "linger.ms": 0})
    values = [b"%06d" % number for number in range(20_000)]
    with SinkJob(kafka.bootstrap_servers, job, topic=single, cluster=cluster) as sink:
        settle(sink, 1, sink.write(1, batch(*values)))
        assert topics.values(single) == values


def test_a_full_client_queue_keeps_each_records_fields_together(topics: Topics, job: str, out: str) -> None:
    cluster = KafkaCluster(topics.servers, config={"queue.buffering.max.messages": 100, "linger.ms": 0})
    first = datetime(2024, 2, 29, tzinfo=UTC)
    numbers = range(5_000)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([b"%d" % n for n in numbers], pa.binary()),
            pa.array([None if n % 3 == 0 else b"k%d" % n for n in numbers], pa.binary()),
            pa.array([n % 2 for n in numbers], pa.int32()),
            pa.array([None if n % 5 == 0 else [{"key": "n", "value": b"%d" % n}] for n in numbers], headers),
            pa.array([None if n % 7 == 0 else first + timedelta(milliseconds=n) for n in numbers]),
        ],
        ["value", "key", "partition", "headers", "timestamp"],
    )
    with SinkJob(topics.servers, job, topic=out, cluster=cluster) as sink:
        settle(sink, 1, sink.write(1, rows))
        found = topics.messages(out)
    assert [int(message.value() or b"") for message in found] == [*numbers[::2], *numbers[1::2]]
    now = int(time.time() * 1000)
    for message in found:
        n = int(message.value() or b"")
        assert message.key() == (None if n % 3 == 0 else b"k%d" % n)
        assert message.headers() == (None if n % 5 == 0 else [("n", b"%d" % n)])
        at = message.timestamp()[1]
        assert abs(at - now) < 600_000 if n % 7 == 0 else at == int(first.timestamp() * 1000) + n


def test_the_writer_travels_to_executors(sink: SinkJob, topics: Topics, out: str) -> None:
    writer = pickle.loads(pickle.dumps(sink.sink.write()))
    settle(sink, 1, sink.write(1, batch(b"1"), writer=writer))
    assert_values(topics, out, [b"1"])


def test_pre_commit_aborts_the_losing_attempts_and_keeps_the_rest(sink: SinkJob, out: str, topics: Topics) -> None:
    unsettled = sink.prepared(1, [b"earlier"])
    loser, producer = sink.open_transaction(out)
    votes = [sink.write(2, batch(b"winner"))]
    committables = sink.pre_commit(2, votes, unsettled)
    view = sink.transactions.describe([loser])[loser]
    assert view.state in (State.EMPTY, State.COMPLETE_ABORT)
    sink.system().commit(sink.author, unsettled)
    sink.system().commit(sink.author, committables)
    assert_values(topics, out, [b"earlier", b"winner"])
    del producer


def test_pre_commit_refuses_a_vote_for_an_ended_transaction(kafka: SharedKafka, job: str, out: str) -> None:
    with SinkJob(kafka.bootstrap_servers, job, topic=out, transaction_timeout="1s") as sink:
        vote = sink.write(1, batch(b"1"))
        name = vote.body["id"]
        wait_until(lambda: sink.transactions.describe([name])[name].state is State.COMPLETE_ABORT, "it timed out")
        with pytest.raises(PreCommitError, match="CompleteAbort instead of open"):
            sink.pre_commit(1, [vote])


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_pre_commit_halts_when_a_topic_was_recreated_and_names_both_ids(
    kafka: SharedKafka, job: str, out: str, topics: Topics, delivery: str
) -> None:
    with SinkJob(kafka.bootstrap_servers, job, topic=out, delivery=delivery) as sink:
        known = topic_facts(sink.control, [out])[out].id
        sink.system().commit(sink.author, sink.pre_commit(1, [sink.write(1, batch(b"a"))]))
        vote = sink.write(2, batch(b"b"))
        topics.delete(out)
        with pytest.raises(PreCommitError, match="is not on cluster"):
            sink.pre_commit(2, [vote])
        topics.create("out", partitions=3)
        now = topic_facts(sink.control, [out])[out].id
        with pytest.raises(HaltedError, match=f"its id was {known} and is {now}"):
            sink.pre_commit(2, [vote])
        sink.generation = 2
        sink.sink.begin_generation(Generation(2))
        if delivery == "exactly_once":  # a vote for a transaction counts only in the generation that wrote it
            vote = sink.write(3, batch(b"c"))
        with pytest.raises(HaltedError, match=f"its id was {known} and is {now}"):
            sink.pre_commit(3, [vote])


def test_pre_commit_refuses_a_hijacked_id(sink: SinkJob, out: str) -> None:
    vote = sink.write(1, batch(b"1"))
    hijacker = Producer(
        {
            "bootstrap.servers": sink.servers,
            "transactional.id": vote.body["id"],
            "log_level": 0,
            "transaction.timeout.ms": vote.body["timeout_ms"],
        }
    )
    hijacker.init_transactions(10)
    hijacker.begin_transaction()
    hijacker.produce(out, b"foreign")
    assert hijacker.flush(10) == 0
    with pytest.raises(PreCommitError, match="another program"):
        sink.pre_commit(1, [vote])


def test_pre_commit_refuses_two_votes_for_one_transaction(sink: SinkJob) -> None:
    vote = sink.write(1, batch(b"1"))
    with pytest.raises(PreCommitError, match="same transaction"):
        sink.pre_commit(1, [vote, replace(vote, slot=1)])


def test_a_committable_describes_its_content(sink: SinkJob, kafka: SharedKafka, out: str) -> None:
    (committable,) = sink.prepared(7, [b"abc", b"de"])
    handle = KafkaCommittable.of(committable)
    assert (handle.records, handle.bytes, handle.checkpoint) == (2, 5, 7)
    assert handle.cluster_id == kafka.cluster_id
    assert handle.inputs == [{"topic": "in", "partition": 0}]
    assert handle.topics[out].records == 2
    assert handle.timeout == timedelta(minutes=15)
    sink.system().abort(sink.author, [committable])


# -- preflight


def errors(findings: list[Finding]) -> list[str]:
    return [f"{finding.subject}: {finding.message}" for finding in findings if finding.severity is Severity.ERROR]


def examined(servers: str, job: str, *, timeout: timedelta = timedelta(minutes=2), **sink: Any) -> list[Finding]:
    cluster = sink.pop("cluster", servers)
    context = JobContext(job=JobName(job), checkpoint_timeout=timeout)
    with closing(KafkaSink(cluster, **sink).connect(context)) as session:
        return list(session.preflight())


def test_a_safe_sink_has_only_warnings_about_a_single_broker(kafka: SharedKafka, job: str, out: str) -> None:
    findings = examined(kafka.bootstrap_servers, job, topic=out)
    assert errors(findings) == []
    warned = " ".join(f"{finding.subject} {finding.message}" for finding in findings)
    for said in ("replication factor 1", "min.insync.replicas is 1", "transaction state log"):
        assert said in warned


def test_all_problems_are_found_together(kafka: SharedKafka, job: str, topics: Topics) -> None:
    unclean = topics.create("unclean", config={"unclean.leader.election.enable": "true"})
    cluster = KafkaCluster(
        kafka.bootstrap_servers, config={"acks": "1", "enable.idempotence": "false", "compression.type": "lz4"}
    )
    findings = examined(
        kafka.bootstrap_servers, job, cluster=cluster, topics=[unclean, "missing"], transaction_timeout="20min"
    )
    said = "\n".join(errors(findings))
    assert "acks is 1" in said
    assert "enable.idempotence is false" in said
    assert "compression" not in said
    assert "missing: does not exist" in said
    assert "0:20:00, the brokers allow 0:15:00" in said
    assert any("unclean leader election" in finding.message for finding in findings)
    assert all(finding.fix for finding in findings)


def test_a_topic_with_a_smaller_batch_limit_than_the_client_is_reported(
    kafka: SharedKafka, job: str, topics: Topics
) -> None:
    small = topics.create("small", config={"max.message.bytes": "10000"})
    enough = topics.create("enough", config={"max.message.bytes": "1000000"})
    findings = examined(kafka.bootstrap_servers, job, topics=[small, enough])
    assert errors(findings) == []
    (said,) = [finding for finding in findings if "batches" in finding.message]
    assert said.subject == f"sink topic {small}"
    assert "at most 10000 bytes" in said.message
    assert "1000000" in said.message
    tuned = KafkaCluster(kafka.bootstrap_servers, config={"batch.size": "5000"})
    assert not any(
        "batches" in each.message for each in examined(kafka.bootstrap_servers, job, cluster=tuned, topic=small)
    )


def test_a_transaction_timeout_below_checkpoint_plus_restart_is_refused_with_both_numbers(
    kafka: SharedKafka, job: str, out: str
) -> None:
    (said,) = errors(examined(kafka.bootstrap_servers, job, topic=out, transaction_timeout="5min"))
    assert "0:05:00" in said
    assert "0:12:00" in said
    (said,) = errors(examined(kafka.bootstrap_servers, job, topic=out, timeout=timedelta(minutes=6)))
    assert "0:15:00" in said
    assert "0:16:00" in said


def test_an_unreachable_cluster_is_one_clear_error_in_time(job: str) -> None:
    began = time.monotonic()
    with pytest.raises(PreflightError, match="cannot be reached"):
        examined("127.0.0.1:1", job, topic="out")
    assert time.monotonic() - began < 15


# -- columns


def chosen(df: Any, *, routed: bool) -> Any:
    """What the writer gets of a DataFrame."""
    return chosen_by(cast(SinkSession, SimpleNamespace(choose=partial(columns.choose, routed=routed))), df)


def test_only_the_columns_of_the_sink_are_chosen_and_nothing_is_shuffled(spark: Any) -> None:
    df = spark.sql(
        "select 'k' as Key, 'wörld' as value, 't' as topic, 1 as partition, timestamp'2024-01-01' as timestamp, 5 as x"
    )
    routed_sink = chosen(df, routed=True)
    assert routed_sink.columns == ["key", "value", "topic", "partition", "timestamp"]
    row = routed_sink.collect()[0]
    assert (row.key, row.value) == ("k", "wörld")  # the writer encodes it
    fixed = chosen(df, routed=False)
    assert fixed.columns == ["key", "value", "partition", "timestamp"]
    assert "Exchange" not in fixed._jdf.queryExecution().executedPlan().toString()


def test_every_column_that_is_wrong_is_named(spark: Any) -> None:
    df = spark.sql("select 1.5D as key, map('a', 1) as headers, 1L as partition, 'now' as timestamp")
    with pytest.raises(ConfigurationError) as caught:
        chosen(df, routed=True)
    for said in ("key: is double", "value: the column is missing", "headers: is map", "topic: the column is missing"):
        assert said in str(caught.value)
    for said in ("partition: is bigint", "timestamp: is string"):
        assert said in str(caught.value)


def test_headers_from_spark_have_the_declared_type(spark: Any) -> None:
    df = spark.sql("select 'v' as value, array(named_struct('key', 'h', 'value', cast('1' as binary))) as headers")
    assert chosen(df, routed=False).columns == ["value", "headers"]
