"""From Arrow batches to produced records, in order, with bounded memory. Runs on executors.

One ``produce`` for each record costs the calling thread less than ``produce_batch``, which wants a dict for each
(confluent-kafka 2.16, measured), and can say everything: partitions, headers, timestamps, all of them by position. The
loop over a chunk is C's, and what it takes are tuples that are made as they are needed. Records of one topic are never
reordered.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, starmap
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, Producer

from sinks.kafka.errors import CLIENT_ERRORS, DeliveryError, RouteError

__all__ = ["BatchProducer"]

CHUNK_RECORDS = 10_000
CHUNK_BYTES = 8 << 20
"""Of keys and values turned into Python objects at a time."""
QUEUED_BYTES = 64 << 20
"""Of keys and values that wait in the client for the brokers; more is not produced until some are confirmed."""
QUEUED_RECORDS = 400_000

_POLL_S = 0.02
_ANY = -1
"""The partition that leaves the choice to the partitioner."""
_NOW = 0
"""The timestamp that leaves it to the client."""
_Arguments: TypeAlias = tuple[Any, ...]
_REFUSALS: tuple[type[Exception], ...] = (*CLIENT_ERRORS, TypeError, ValueError)


class BatchProducer:
    """Produces batches within one transaction and counts what the client accepted."""

    def __init__(
        self,
        producer: Producer,
        *,
        topic: str | None,
        topics: Sequence[str],
        check: Callable[[], None],
    ) -> None:
        """`topic`: where everything goes, or None to route by the ``topic`` column among `topics`. `check` raises when
        a delivery failed or the slot took too long; it is called while waiting for the brokers."""
        self.records: Counter[str] = Counter()
        """Accepted records by topic."""
        self.bytes = 0
        self._producer = producer
        self._topic = topic
        self._declared = frozenset(topics)
        self._check = check
        self._accepted = 0
        self._queued: deque[tuple[int, int]] = deque()
        """(records accepted up to and with a chunk, its bytes), oldest first."""
        self._queued_bytes = 0
        self._confirmed, self._moved = 0, time.monotonic()
        """Records that the brokers have confirmed, and when that was last seen to grow, or nothing to wait."""

    def stalled_for(self) -> float:
        """Seconds for which records wait and none of them was confirmed."""
        self._outstanding()
        return time.monotonic() - self._moved

    def produce(self, batch: pa.RecordBatch) -> None:
        """Hand all records of ``batch`` to the client. Raises DeliveryError, RouteError."""
        for chunk, size in _chunks(batch):
            self._wait_for_room(chunk.num_rows, size)
            for topic, routed in self._by_topic(chunk):
                self._produce_to(topic, routed)
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

    def _produce_to(self, topic: str, records: pa.RecordBatch) -> None:
        rows, before = self._arguments(topic, records), self._accepted
        while not self._all_taken(topic, rows):
            # No later record may overtake the one that was refused.
            [refused] = self._arguments(topic, records.slice(self._accepted - before, 1))
            self._produce_patiently(refused)
            self._accepted += 1

    def _all_taken(self, topic: str, rows: Iterator[_Arguments]) -> bool:
        """Hand ``rows`` to the client; False when its queue was too full for the last one that was drawn."""
        accepted: list[None] = []  # what `produce` returns, so as long as there are records that the client took
        try:
            accepted.extend(starmap(self._producer.produce, rows))
        except BufferError:
            return False
        except _REFUSALS as error:
            raise _refused(topic, error) from error
        finally:
            self._accepted += len(accepted)
        return True

    def _arguments(self, topic: str, records: pa.RecordBatch) -> Iterator[_Arguments]:
        """Of one ``produce`` each, by position; those at the end that nobody gave are left out."""
        count = records.num_rows
        keys, partitions = _column(records, "key"), _column(records, "partition")
        columns: list[Iterable[Any]] = [
            [topic] * count,
            _binary(records.column("value")).to_pylist(),
            [None] * count if keys is None else _binary(keys).to_pylist(),
            [_ANY] * count if partitions is None else self._numbers(partitions),
        ]
        headers, timestamps = _column(records, "headers"), _column(records, "timestamp")
        if headers is not None or timestamps is not None:
            columns += [[None] * count, [None] * count]  # a callback, under its two names
            columns.append([_NOW] * count if timestamps is None else _milliseconds(timestamps))
        if headers is not None:
            columns.append(_headers(headers))
        return zip(*columns, strict=True)

    def _produce_patiently(self, arguments: _Arguments) -> None:
        """Waits while the client's queue is full."""
        while True:
            try:
                self._producer.produce(*arguments)
                return
            except BufferError:
                self._check()
                self._poll(_POLL_S)
            except _REFUSALS as error:
                raise _refused(arguments[0], error) from error

    def _numbers(self, partitions: pa.Array) -> list[int]:
        numbers = partitions.to_pylist()
        # A negative number would mean "any partition" to the client.
        wrong = next((number for number in numbers if number is not None and number < 0), None)
        if wrong is not None:
            raise RouteError(
                f"A record's partition column says {wrong}. Nothing of this checkpoint becomes visible and its records "
                "stay unread. Use a partition number from 0, or null for the partitioner."
            )
        return [_ANY if number is None else number for number in numbers]

    def _poll(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except CLIENT_ERRORS as error:
            raise _broken(error) from error

    def _outstanding(self) -> int:
        """Records that wait for the brokers."""
        outstanding = len(self._producer)
        confirmed = self._accepted - outstanding
        if not outstanding or confirmed > self._confirmed:
            self._confirmed, self._moved = confirmed, time.monotonic()
        return outstanding

    def _wait_for_room(self, records: int, size: int) -> None:
        while True:
            outstanding = self._outstanding()
            while self._queued and self._queued[0][0] <= self._confirmed:
                self._queued_bytes -= self._queued.popleft()[1]
            if outstanding == 0:
                return
            if outstanding + records <= QUEUED_RECORDS and self._queued_bytes + size <= QUEUED_BYTES:
                return
            self._check()
            self._poll(_POLL_S)


def _refused(topic: str, error: Exception) -> DeliveryError:
    said = error.args[0] if error.args else None
    if isinstance(error, SystemError) or (isinstance(said, KafkaError) and said.fatal()):
        return _broken(error)
    return DeliveryError(
        f"The client refused a record for topic {topic!r}: {error}. Nothing of this slot becomes visible and its "
        "records belong to the next checkpoint. Check the record's size, headers and partition; one that is larger "
        "than message.max.bytes needs that setting raised here and at the topic."
    )


def _broken(error: Exception) -> DeliveryError:
    said = error.__cause__ or error
    return DeliveryError(
        f"The client cannot go on with this transaction: {said}. Nothing of this slot becomes visible and its records "
        "belong to the next checkpoint. If the producer was fenced, look for another program that uses its id."
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


def _column(records: pa.RecordBatch, name: str) -> pa.Array | None:
    """The column, or None when it is absent or says nothing."""
    if name not in records.schema.names:
        return None
    column = records.column(name)
    return None if column.null_count == len(column) else column


def _binary(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def _headers(column: pa.Array) -> Iterator[list[tuple[Any, Any]] | None]:
    """(name, value) pairs of each record, made when they are asked for: half the time of a dict for each header, and
    nothing for the garbage collector to look at."""
    names, values = column.flatten().flatten()
    pairs = zip(names.to_pylist(), values.to_pylist(), strict=True)
    for length in pc.list_value_length(column).to_pylist():
        yield None if length is None else list(islice(pairs, length))


def _milliseconds(column: pa.Array) -> list[int]:
    """Whole milliseconds since 1970, rounded down; `_NOW` for null."""
    per_ms = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}[column.type.unit]
    raw = column.cast(pa.int64()).to_pylist()
    result = [None if at is None else at * 1_000 if per_ms == 0 else at // per_ms for at in raw]
    wrong = next((at for at in result if at is not None and at <= 0), None)
    if wrong is not None:
        # The client takes 0 for now, and Kafka takes no time before 1970.
        raise DeliveryError(
            f"A record's timestamp column says {wrong} ms since 1970, which Kafka cannot hold. Nothing of this slot "
            "becomes visible and its records belong to the next checkpoint. Use a later time, or null for now."
        )
    return [_NOW if at is None else at for at in result]
