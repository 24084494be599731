"""Topics of a benchmark: creates, fills, watches and reads them."""

import contextlib
import itertools
import logging
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from benchmarks.errors import BenchmarkError
from benchmarks.workloads import RECORD_BYTES, Content, Workload, canonical
from onceward.sources.kafka.client import ArrowConsumer

__all__ = ["Ends", "Topics", "batches"]

_LOGGER = logging.getLogger("benchmarks")
_BATCH = 10_000
_BATCH_BYTES = 8_000_000
_QUEUED = 1_000_000
_QUEUED_BYTES = 256_000_000
_BY_KEY = -1
"""librdkafka's number for "no particular partition"."""
_LIMIT_S = 300.0
_PAUSE_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Sums over a topic's partitions, in offsets: they include transaction markers, one per written partition."""

    appended: int
    visible: int
    """To a read_committed reader."""


class Topics:
    """Topics on one cluster, all with the same number of partitions."""

    def __init__(self, servers: str, partitions: int) -> None:
        self._servers = servers
        self._partitions = range(partitions)
        self._admin = AdminClient({"bootstrap.servers": servers})

    def warm_up(self) -> None:
        """Make the broker create its topics for groups and transactions, so that the first system need not wait."""
        producer = Producer({"bootstrap.servers": self._servers, "transactional.id": "benchmark"})
        producer.init_transactions(_LIMIT_S)
        consumer = self.consumer()
        deadline = time.monotonic() + _LIMIT_S
        try:
            while True:
                try:
                    consumer.committed([TopicPartition("benchmark", 0)], _LIMIT_S)
                    return
                except KafkaException as error:
                    if time.monotonic() > deadline:
                        raise BenchmarkError(f"The broker coordinates no groups: {error}.") from error
                    time.sleep(_PAUSE_S)
        finally:
            consumer.close()

    def create(self, name: str) -> None:
        """Create a topic; return once its partitions can be queried. It keeps records whatever their times."""
        topic = NewTopic(name, len(self._partitions), 1, config={"retention.ms": "-1"})
        self._admin.create_topics([topic])[name].result(_LIMIT_S)
        self.ends(name)

    def delete(self, name: str) -> None:
        """Delete a topic. The broker frees the space a minute later."""
        with contextlib.suppress(KafkaException):
            self._admin.delete_topics([name])[name].result(_LIMIT_S)

    def fill(
        self,
        name: str,
        make: Callable[[int], tuple[bytes, bytes]],
        records: int,
        *,
        record_bytes: int = RECORD_BYTES,
        by_key: bool = False,
    ) -> None:
        """Write records 0 to `records` - 1, which `make` returns by their number: evenly over the partitions, or by
        key as Java's partitioner does. All are confirmed on return."""
        producer = self.producer(linger_ms=20)
        most = min(_QUEUED, _QUEUED_BYTES // record_bytes)
        for batch, numbers in enumerate(batches(records, len(self._partitions), record_bytes)):
            producer.produce_batch(
                name,
                [{"key": key, "value": value} for key, value in map(make, numbers)],
                _BY_KEY if by_key else batch % len(self._partitions),
            )
            producer.poll(0)
            while len(producer) > most:
                producer.poll(0.05)
        if producer.flush(_LIMIT_S) or self.ends(name).appended != records:
            raise BenchmarkError(f"Topic {name} did not take all of {records:,} records; nothing was measured on it.")

    def to_each(self, name: str, key: bytes, value: bytes) -> None:
        """Write one record into each partition; it is confirmed on return."""
        producer = self.producer(linger_ms=0)
        for partition in self._partitions:
            producer.produce(name, value, key, partition=partition)
        if producer.flush(_LIMIT_S):
            raise BenchmarkError(f"Topic {name} did not take a record in each partition; nothing was measured on it.")

    def producer(self, *, linger_ms: int) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "linger.ms": linger_ms,
                "partitioner": "murmur2_random",
                "batch.num.messages": _BATCH,
                "queue.buffering.max.messages": 2_000_000,
            }
        )

    def ends(self, name: str) -> Ends:
        """Return the present ends of all partitions; retries for a while if the broker does not answer."""
        deadline = time.monotonic() + _LIMIT_S
        while True:
            try:
                # In this order, because visible records are appended ones.
                visible = self._sum(name, IsolationLevel.READ_COMMITTED)
                return Ends(appended=self._sum(name, IsolationLevel.READ_UNCOMMITTED), visible=visible)
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise BenchmarkError(f"The broker does not report the ends of topic {name}: {error}.") from error
                time.sleep(_PAUSE_S)
                # A client that once saw a new topic without leaders can keep reporting that for minutes.
                self._admin = AdminClient({"bootstrap.servers": self._servers})

    def _sum(self, name: str, isolation: IsolationLevel) -> int:
        wanted = {TopicPartition(name, partition): OffsetSpec.latest() for partition in self._partitions}
        found = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_LIMIT_S)
        return sum(int(future.result(_LIMIT_S).offset) for future in found.values())

    def content(self, name: str, workload: Workload) -> Content:
        """Return the content that a read_committed reader finds."""
        what = canonical(workload)
        try:
            return Content.of(what(key, value) for key, value in self.read(name))
        except (KeyError, ValueError, AttributeError, struct.error) as error:
            raise BenchmarkError(f"Topic {name} holds a record that no {workload} makes: {error!r}.") from error

    def read(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of each committed record, in the order of its partition."""
        consumer = self.consumer()
        try:
            consumer.assign([TopicPartition(name, partition, 0) for partition in self._partitions])
            ended: set[int] = set()
            while len(ended) < len(self._partitions):
                messages = consumer.consume(_BATCH, 0.05)
                for message in messages:
                    if (error := message.error()) is None:
                        yield message.key() or b"", message.value() or b""
                    elif error.name() == "_PARTITION_EOF":
                        ended.add(message.partition() or 0)
                    else:
                        raise BenchmarkError(f"Topic {name} could not be read: {error}.")
        finally:
            consumer.close()

    def consumer(self) -> Consumer:
        """Return a consumer that reads committed records and reports the ends of partitions."""
        return Consumer(self._reading(wait_ms=20))

    def columns(self, *, wait_ms: int) -> ArrowConsumer:
        """Return one that reads columns."""
        return ArrowConsumer(self._reading(wait_ms=wait_ms), logger=_LOGGER)

    def _reading(self, *, wait_ms: int) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._servers,
            "group.id": "benchmark",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": wait_ms,
            "fetch.queue.backoff.ms": 2,
            "queued.min.messages": 100_000,
        }

    @property
    def all(self) -> Sequence[int]:
        return self._partitions


def batches(records: int, partitions: int, record_bytes: int) -> Iterator[range]:
    """Yield numbers of records, 0 to `records` - 1, in batches of almost equal size, equally many batches for each
    partition, so that the partitions are almost equal too."""
    most = max(1, min(_BATCH, _BATCH_BYTES // record_bytes)) * partitions
    count = -(-records // most) * partitions
    edges = [records * batch // count for batch in range(count + 1)] if count else []
    return (range(first, end) for first, end in itertools.pairwise(edges))
