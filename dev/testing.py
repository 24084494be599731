"""Fixtures of pytest for tests of jobs: a local broker, topics, a Spark session. Users import ``onceward.testing``."""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from onceward.dev.errors import LocalKafkaError
from onceward.dev.jars import fetch_progress
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.topics import make_topics
from onceward.driver.spark.session import make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LocalTopics", "Record", "local_kafka", "local_topics", "spark_session"]

_LIMIT_S = 60.0
_HEAP = "256m"


class Record(NamedTuple):
    """A record as the broker keeps it."""

    key: bytes | None
    value: bytes | None


class LocalTopics:
    """Creates, fills and reads topics as any client would. Each test has its own, so no two tests share a topic."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        """Bootstrap servers, ``HOST:PORT``."""
        self._suffix = secrets.token_hex(4)

    def create(self, name: str, partitions: int = 1) -> str:
        """Create a topic and return its name, which is unique to the test. Raises LocalKafkaError."""
        topic = f"{name}-{self._suffix}"
        make_topics(self.servers, [topic], partitions=partitions, replicas=1)
        return topic

    def produce(self, topic: str, values: Sequence[bytes | str | None], *, key: bytes | str | None = None) -> None:
        """Write records in this order and return when the broker has confirmed all; None is a tombstone. Raises
        LocalKafkaError."""
        refused: list[KafkaError] = []
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "log_level": 0})
        for value in values:
            while True:
                try:
                    producer.produce(
                        topic, value, key, on_delivery=lambda error, _: refused.append(error) if error else None
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        if (left := producer.flush(_LIMIT_S)) or refused:
            raise LocalKafkaError(f"Topic {topic}: {left} records are unconfirmed, {refused[:1]} refused.")

    def committed(self, topic: str) -> list[Record]:
        """Return what a ``read_committed`` reader of the whole topic sees, partition by partition.

        Waits for open transactions, at most 60 s; then raises LocalKafkaError.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"onceward-testing-{self._suffix}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        try:
            return _read(consumer, topic)
        except KafkaException as error:
            raise LocalKafkaError(f"Topic {topic} cannot be read: {error.args[0].str()}") from error
        finally:
            consumer.close()


def _read(consumer: Consumer, topic: str) -> list[Record]:
    known = consumer.list_topics(topic, _LIMIT_S).topics[topic]
    if known.error is not None:
        raise KafkaException(known.error)
    partitions = [TopicPartition(topic, number, 0) for number in sorted(known.partitions)]
    # The end of the log, with open transactions: a reader that gets there has waited for each of them.
    ends = {one.partition: consumer.get_watermark_offsets(one, _LIMIT_S)[1] for one in partitions}
    found: dict[int, list[Record]] = {number: [] for number in ends}
    waiting = {number for number, end in ends.items() if end}
    consumer.assign(partitions)
    limit = time.monotonic() + _LIMIT_S
    while waiting:
        if time.monotonic() > limit:
            raise LocalKafkaError(f"Topic {topic} still has open transactions in partitions {sorted(waiting)}.")
        for message in consumer.consume(1000, 0.1):
            number, offset, error = message.partition(), message.offset(), message.error()
            assert number is not None
            if error is None:
                found[number].append(Record(message.key(), message.value()))
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif offset is not None and offset >= ends[number]:
                waiting.discard(number)
    return [record for records in found.values() for record in records]


@pytest.fixture(scope="session")
def local_kafka() -> Iterator[LocalKafka]:
    """One broker on loopback for all tests of the process. It ends with the process, also when that is killed."""
    with LocalKafka(heap=_HEAP, progress=fetch_progress("the broker's")) as local:
        yield local


@pytest.fixture
def local_topics(local_kafka: LocalKafka) -> LocalTopics:
    """Topics of this test on the local broker."""
    return LocalTopics(local_kafka.bootstrap_servers)


@pytest.fixture(scope="session")
def spark_session() -> Iterator["SparkSession"]:
    """One session for all tests of the process, with the settings that a pipeline gives its own."""
    session, created = make_session("tests")
    yield session
    if created:
        session.stop()
