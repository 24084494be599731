"""The codec and librdkafka on a real broker: each reads what the other wrote."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from onceward import KafkaCluster
from onceward.connections.requests import BrokerRequests
from tests.support.shared_kafka import SharedKafka
from tests.support.topics import Topics

pytest.importorskip("onceward_native", reason="onceward-native is not built", exc_type=ImportError)

from onceward_native import Column, Compression, Decoder, Encoder, columns_schema, compressions

COLUMNS: tuple[Column, ...] = ("offset", "key", "value", "timestamp", "timestamp_type", "headers")
PARTITIONS = 3
EACH = 700
KEPT = {"retention.ms": "-1"}
"""The records are from 2023."""
Row = tuple[Any, ...]


@pytest.fixture
def broker(kafka: SharedKafka) -> Iterator[BrokerRequests]:
    requests = BrokerRequests(KafkaCluster(kafka.bootstrap_servers))
    yield requests
    requests.close()


def records(seed: int) -> Iterator[dict[str, Any]]:
    """Arguments of librdkafka's producer."""
    chance = random.Random(seed)
    for n in range(EACH):
        yield {
            "key": None if n % 7 == 0 else b"k%d" % chance.randrange(100),
            "value": None if n % 11 == 0 else b"%d" % n * chance.randrange(40),
            "timestamp": 1_700_000_000_000 + n * 3 - n % 5,
            "headers": [(f"h{at}", None if at == 2 else b"%d" % n) for at in range(n % 4)],
        }


def write_by_librdkafka(servers: str, topic: str, outcome: str, compression: str, seed: int) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": servers,
        "compression.type": compression,
        "linger.ms": 20,
        "partitioner": "murmur2_random",
        "log_level": 0,
    }
    if outcome != "plain":
        config["transactional.id"] = f"{topic}.{seed}"
    producer = Producer(config)
    if outcome != "plain":
        producer.init_transactions(30)
        producer.begin_transaction()
    for record in records(seed):
        producer.produce(topic, **record)
    assert producer.flush(30) == 0
    if outcome == "commit":
        producer.commit_transaction(30)
    elif outcome == "abort":
        producer.abort_transaction(30)


def row_of(message: Message) -> Row:
    kind, time = message.timestamp()
    return message.offset(), message.key(), message.value(), time, kind - 1, message.headers() or None


def read_by_librdkafka(topics: Topics, topic: str, partition: int) -> list[Row]:
    """Read what is committed, with librdkafka's own check of checksums."""
    consumer = Consumer(
        {
            "bootstrap.servers": topics.servers,
            "group.id": "none",
            "check.crcs": True,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Row] = []
    while True:
        for message in consumer.consume(1000, 1):
            if message.error():
                consumer.close()
                return found
            found.append(row_of(message))


def fetch(broker: BrokerRequests, topic: str, partition: int, offset: int, limit: int) -> Any:
    asked = FetchRequest.FetchTopic.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=limit, current_leader_epoch=-1
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=limit,
        isolation_level=1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[asked])],
        min_version=7,
        max_version=12,
    )
    found = broker.ask(request).responses[0].partitions[0]
    assert found.error_code == 0
    return found


def read(
    broker: BrokerRequests, topic: str, partition: int, start: int = 0, end: int = 2**62, limit: int = 40_000
) -> list[Row]:
    """Read up to the last stable offset, by many fetches; most end inside a batch."""
    decoder = Decoder(COLUMNS, check_crc=True)
    found: list[Row] = []
    while start < end:
        answer = fetch(broker, topic, partition, start, limit)
        data = bytes(answer.records or b"")
        aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
        decoder.open(data, start=start, end=end, aborted=aborted)
        while (chunk := decoder.read(10_000)) is not None:
            *columns, headers = (column.to_pylist() for column in chunk.records.columns)
            found += zip(*columns, [each and [(h["key"], h["value"]) for h in each] for each in headers], strict=True)
        if not data:
            assert start >= answer.last_stable_offset
            break
        assert decoder.next_offset > start
        start = decoder.next_offset
    return found


@pytest.mark.parametrize("compression", compressions())
def test_what_librdkafka_writes_is_read_as_it_reads_it(
    broker: BrokerRequests, topics: Topics, compression: Compression
) -> None:
    kind = "LogAppendTime" if compression == "lz4" else "CreateTime"
    topic = topics.create(partitions=PARTITIONS, config={**KEPT, "message.timestamp.type": kind})
    for seed, outcome in enumerate(("plain", "commit", "abort", "commit", "abort", "plain")):
        write_by_librdkafka(topics.servers, topic, outcome, compression, seed)
    topics.messages(topic)  # until all markers are written
    total = 0
    for partition in range(PARTITIONS):
        expected = read_by_librdkafka(topics, topic, partition)
        assert read(broker, topic, partition) == expected
        assert read(broker, topic, partition, limit=10_000_000) == expected
        start, end = expected[len(expected) // 3][0] + 1, expected[len(expected) // 2][0]
        assert read(broker, topic, partition, start, end) == [row for row in expected if start <= row[0] < end]
        total += len(expected)
    assert total == 4 * EACH


def produce(broker: BrokerRequests, topic: str, batches: Sequence[tuple[int, bytes]]) -> list[int]:
    """Send a batch to each partition; return the codes of the broker's answers."""
    topic_data = ProduceRequest.TopicProduceData
    sent = [topic_data.PartitionProduceData(index=partition, records=data) for partition, data in batches]
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[topic_data(name=topic, partition_data=sent)],
        min_version=7,
        max_version=11,
    )
    return [int(each.error_code) for each in broker.ask(request).responses[0].partition_responses]


@pytest.mark.parametrize("compression", compressions())
def test_what_is_written_librdkafka_reads(broker: BrokerRequests, topics: Topics, compression: Compression) -> None:
    topic = topics.create(partitions=PARTITIONS, config=KEPT)
    producer = broker.ask(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0, min_version=4, max_version=4)
    )
    encoder = Encoder(PARTITIONS, most_bytes=30_000, compression=compression, transactional=False)
    encoder.begin(producer.producer_id, producer.producer_epoch)
    some = [*records(1), *records(2)]
    types = {"timestamp": pa.int64(), "headers": columns_schema(["headers"])[0].type}
    columns = {name: pa.array([r[name] for r in some], types.get(name, pa.binary())) for name in some[0]}
    batches = encoder.add(pa.record_batch(columns), keyless=2) + encoder.take()
    assert len(batches) > PARTITIONS
    for batch in batches:  # the broker checks each batch's checksum, count, offsets and sequence
        assert produce(broker, topic, [(batch.partition, bytes(batch.data))]) == [0]
    found = [row for partition in range(PARTITIONS) for row in read_by_librdkafka(topics, topic, partition)]
    given = [(r["key"], r["value"], r["timestamp"], 0, r["headers"] or None) for r in some]
    assert sorted(map(repr, (row[1:] for row in found))) == sorted(map(repr, given))
    repeated, again = batches[-1], bytes(batches[-1].data)
    before = len(read_by_librdkafka(topics, topic, repeated.partition))
    assert produce(broker, topic, [(repeated.partition, again)]) == [0]
    assert len(read_by_librdkafka(topics, topic, repeated.partition)) == before, "the sequence says that it is a repeat"


def test_keys_are_where_librdkafka_puts_them(broker: BrokerRequests, topics: Topics) -> None:
    theirs, ours = (topics.create(name, partitions=PARTITIONS, config=KEPT) for name in ("theirs", "ours"))
    write_by_librdkafka(topics.servers, theirs, "plain", "none", 5)
    encoder = Encoder(PARTITIONS, most_bytes=100_000, transactional=False)
    keys = [record["key"] for record in records(5) if record["key"]]
    encoder.add(pa.record_batch({"key": pa.array(keys, pa.binary())}), keyless=0)
    for batch in encoder.take():
        assert produce(broker, ours, [(batch.partition, bytes(batch.data))]) == [0]
    for partition in range(PARTITIONS):
        expected = [row[1] for row in read_by_librdkafka(topics, theirs, partition) if row[1]]
        assert [row[1] for row in read(broker, ours, partition)] == expected
