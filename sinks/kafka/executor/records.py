"""From Arrow batches to produced records, in order, with bounded memory. Runs on executors."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException

from onceward.sinks.kafka.client import Producer, UnfitRecordError
from onceward.sinks.kafka.errors import DeliveryError, RouteError

__all__ = ["BatchProducer"]

CHUNK_RECORDS = 10_000
CHUNK_BYTES = 8 << 20
"""Bytes of keys and values handed to the client at a time."""
QUEUED_BYTES = 64 << 20
"""Bytes of keys and values that may be unconfirmed; beyond that, the writer waits for confirmations."""
QUEUED_RECORDS = 400_000
"""The client's own queue is smaller if the cluster's configuration says so."""

_POLL_S = 0.005


class BatchProducer:
    """Produces batches within one transaction and counts the records that the client accepted."""

    def __init__(
        self,
        producer: Producer,
        *,
        topic: str | None,
        topics: Sequence[str],
    ) -> None:
        """`topic`: the topic of all records, or None to route by the ``topic`` column among `topics`."""
        self.records: Counter[str] = Counter()
        """Accepted records by topic."""
        self.bytes = 0
        self._producer = producer
        self._topic = topic
        self._declared = frozenset(topics)
        self._before = producer.accepted
        self._queued: deque[tuple[int, int]] = deque()
        """(records accepted up to and including a chunk, its bytes), oldest first."""
        self._queued_bytes = 0
        self._confirmed, self._moved = 0, time.monotonic()
        """Records that the brokers have confirmed, and when that number last grew or no record was outstanding."""

    def stalled_for(self) -> float:
        """Return for how many seconds records have been outstanding without any confirmation."""
        self._outstanding()
        return time.monotonic() - self._moved

    def produce(self, batch: pa.RecordBatch, check: Callable[[], None]) -> None:
        """Hand all records of ``batch`` to the client. ``check`` is called while it waits for the brokers; it raises if
        a delivery failed or the slot took too long. Raises DeliveryError, RouteError."""
        for chunk, size in _chunks(batch):
            _check_partitions(chunk)
            self._wait_for_room(chunk.num_rows, size, check)
            for topic, routed in self._by_topic(chunk):
                self._produce_to(topic, routed, check)
                self.records[topic] += routed.num_rows
            self.bytes += size
            self._queued.append((self._accepted, size))
            self._queued_bytes += size
            self._poll(0)

    def _by_topic(self, chunk: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            yield self._topic, chunk
            return
        column = chunk.column("topic")
        names = pc.unique(column).to_pylist()
        foreign = [name for name in names if name not in self._declared]
        if foreign:
            named = ", ".join("null" if name is None else repr(name) for name in foreign[:5])
            raise RouteError(
                f"A record's topic column says {named}, but the sink declares only {sorted(self._declared)}. Nothing "
                "of this checkpoint becomes visible and its records stay unread. Add it to KafkaSink(topics=[...]) "
                "or correct the transform."
            )
        for name in names:
            yield name, chunk if len(names) == 1 else chunk.filter(pc.equal(column, name))

    def _produce_to(self, topic: str, records: pa.RecordBatch, check: Callable[[], None]) -> None:
        try:
            self._producer.produce(topic, records, partial(self._wait, check))
        except UnfitRecordError as error:
            raise _unfit(topic, error) from error
        except KafkaException as error:
            raise _refused(topic, error) from error

    def _wait(self, check: Callable[[], None]) -> None:
        check()
        self._poll(_POLL_S)

    @property
    def _accepted(self) -> int:
        return self._producer.accepted - self._before

    def _poll(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except KafkaException as error:
            raise _broken(error) from error

    def _outstanding(self) -> int:
        """Return the number of unconfirmed records."""
        outstanding = len(self._producer)
        confirmed = self._accepted - outstanding
        if not outstanding or confirmed > self._confirmed:
            self._confirmed, self._moved = confirmed, time.monotonic()
        return outstanding

    def _wait_for_room(self, records: int, size: int, check: Callable[[], None]) -> None:
        while True:
            outstanding = self._outstanding()
            while self._queued and self._queued[0][0] <= self._confirmed:
                self._queued_bytes -= self._queued.popleft()[1]
            if outstanding == 0:
                return
            if outstanding + records <= QUEUED_RECORDS and self._queued_bytes + size <= QUEUED_BYTES:
                return
            self._wait(check)


def _check_partitions(records: pa.RecordBatch) -> None:
    if "partition" not in records.schema.names:
        return
    lowest = pc.min(records.column("partition")).as_py()
    if lowest is not None and lowest < 0:  # the client would read it as "any partition"
        raise RouteError(
            f"A record's partition column says {lowest}. Nothing of this checkpoint becomes visible and its records "
            "stay unread. Use a partition number from 0, or null for the partitioner."
        )


def _refused(topic: str, error: KafkaException) -> DeliveryError:
    if error.args[0].fatal():
        return _broken(error)
    if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return DeliveryError(
            f"The executors' user may not write to topic {topic!r}: {error.args[0].name()}. Nothing of this slot "
            f"becomes visible and its records are written again. Grant WRITE on Topic {topic!r}."
        )
    return DeliveryError(
        f"The client refused a record for topic {topic!r}: {error}. Nothing of this slot becomes visible and its "
        "records are written again. Check the record's size and partition; one that is larger than "
        "message.max.bytes needs that setting raised here and at the topic."
    )


def _unfit(topic: str, error: UnfitRecordError) -> DeliveryError:
    return DeliveryError(
        f"A record for topic {topic!r} cannot be written: {error}. Nothing of this slot becomes visible and its "
        "records are written again."
    )


def _broken(error: Exception) -> DeliveryError:
    return DeliveryError(
        f"The client cannot continue this transaction: {error}. Nothing of this slot becomes visible and its records "
        "are written again. If the producer was fenced, look for another program that uses its id."
    )


def _chunks(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    size = _size(batch)
    rows = max(1, min(CHUNK_RECORDS, CHUNK_BYTES * batch.num_rows // max(1, size)))
    if rows >= batch.num_rows:
        yield batch, size
        return
    for start in range(0, batch.num_rows, rows):
        chunk = batch.slice(start, rows)
        yield chunk, _size(chunk)


def _size(batch: pa.RecordBatch) -> int:
    columns = [batch.column(name) for name in ("key", "value") if name in batch.schema.names]
    return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)
