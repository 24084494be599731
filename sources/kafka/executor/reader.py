"""The executor's part: reads one offset range of one partition, or several of them, as Arrow batches.

Imports only the standard library, pyarrow, numpy and confluent_kafka (and our own modules that do the same).

How the end of a range is found. Offsets below the end may belong to control records or to aborted transactions, which
never arrive as messages. A range is therefore finished by a message at or past its end, or by the client's report that
it reached the end of the partition, at or past the range's end. ``plan`` never sets an end above the last stable
offset, so one of the two always arrives.

Memory. The client prefetches 32 MiB plus one fetch (at most 16 MiB, or one larger record). One call takes at most
10,000 of the records that are there or arrive within 20 ms, and makes batches of at most 16 MiB of them (or of one
larger record). A reader holds the fetched bytes about three times, 100 to 150 MB in the worst case, whatever the size
of its ranges and records.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from onceward.connections.cluster import KafkaCluster
from onceward.connections.limits import LOST_S
from onceward.coordinator.errors import CheckpointFailedError
from onceward.coordinator.pipeline.tasks import ranges_of
from onceward.coordinator.printable import logger
from onceward.sources.kafka.client import ArrowConsumer, Event, Records
from onceward.sources.kafka.executor.clients import (
    LARGE,
    Client,
    Fetch,
    close_idle_clients,
    fetch_for,
    keep,
    noticed,
    take,
)
from onceward.sources.kafka.executor.columns import COLUMNS, BatchBuilder, batch_builder, bounded, schema_of
from onceward.sources.kafka.executor.offset_gone import offset_gone

__all__ = ["OWNED_SETTINGS", "KafkaSplitReader", "close_idle_clients"]

OWNED_SETTINGS: Final[Mapping[str, str]] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
}
"""Exactly-once depends on these values; the preflight refuses others."""

_KAFKA_LOG = logger("onceward.kafka")

_MAX_ROWS = 10_000
_FIRST_ROWS = 1_000
_BATCH_BYTES = 16 * 1024 * 1024
_WAIT_SECONDS = 0.02
_WATERMARK_SECONDS = 5.0
_TOPIC_SECONDS = 1.0

# Errors that the client reports about its own connections and retries; a group is only named, never used.
_PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_CACHE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)


@dataclass(frozen=True, kw_only=True)
class KafkaSplitReader:
    """Reads splits (see splitting.py). Pickled; a client cached per process does the work."""

    cluster: KafkaCluster
    group_id: str
    """Named to the broker, which requires one; never joined and never committed to."""
    names: tuple[str, ...] = COLUMNS
    """The columns of a batch, in order."""
    give_up_after: float = 60.0
    """Seconds without progress before a task fails. Until then the client retries by itself."""
    max_rows: int = _MAX_ROWS
    """Limit per batch."""
    batch_bytes: int = _BATCH_BYTES
    """Limit per batch, unless a single record is larger."""

    def settings(self, fetch: Fetch = LARGE) -> dict[str, Any]:
        """Return the consumer's configuration, with secrets resolved here; user settings override mere tuning."""
        return {
            **fetch.settings(),
            **self.cluster.client_config(),
            **OWNED_SETTINGS,
            "group.id": self.group_id,
        }

    def __call__(self, split: Mapping[str, Any], columns: frozenset[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches of ``split``, each of one range, in offset order within a range. Raises CheckpointFailedError;
        the records then stay unread."""
        schema = schema_of(self.names)
        ranges = [_Range.of(each, schema, columns) for each in ranges_of(split)]
        alike = defaultdict[Fetch, list[_Range]](list)
        for each in ranges:
            if each.position < each.end:
                alike[fetch_for(each.topic, each.end - each.position)].append(each)
        for fetch, ranges in alike.items():
            for first in range(0, len(ranges), fetch.ranges):
                yield from self._together(ranges[first : first + fetch.ranges], fetch)

    def readable(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition and the end of what a ``read_committed`` reader may see now. Raises
        KafkaException if its leader does not answer."""
        client = Client(self.cluster, self.group_id, LARGE)
        consumer = take(client) or ArrowConsumer(self.settings(), logger=_KAFKA_LOG)
        found = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_WATERMARK_SECONDS)
        keep(client, consumer)
        return found

    def _together(self, ranges: Sequence["_Range"], fetch: Fetch) -> Iterator[pa.RecordBatch]:
        client = Client(self.cluster, self.group_id, fetch)
        consumer = take(client) or ArrowConsumer(self.settings(fetch), logger=_KAFKA_LOG)
        healthy = False
        try:
            consumer.assign([TopicPartition(each.topic, each.partition, each.position) for each in ranges])
            yield from self._batches(consumer, ranges)
            healthy = True
        except GeneratorExit:
            healthy = True  # the plan needs no more records, for example because of a limit
            raise
        finally:
            if healthy:
                consumer.unassign()  # otherwise it would keep fetching
                keep(client, consumer)
            else:
                consumer.close()

    def _batches(self, consumer: ArrowConsumer, ranges: Sequence["_Range"]) -> Iterator[pa.RecordBatch]:
        unread = _Unread(ranges)
        rows = min(_FIRST_ROWS, self.max_rows)
        progress = time.monotonic()
        last_said = "nothing"
        looked = 0.0
        while unread:
            # Requesting no more than can arrive lets small ranges return before the timeout.
            with consumer.fetched(min(rows, unread.offsets()), _WAIT_SECONDS) as got:
                made = [batch for of, part in unread.parted(got.records) if (batch := of.taken(part)) is not None]
                events = got.events
            for batch in made:
                # Adapts to the records' size without inspecting each.
                rows = max(1, min(self.max_rows, self.batch_bytes * batch.num_rows // max(1, batch.nbytes)))
                yield from bounded(batch, self.batch_bytes)
                progress, looked = time.monotonic(), 0.0  # the consumer of the batches may be slow
            if not made:
                waited = time.monotonic() - progress
                if waited > self.give_up_after and not events:
                    raise self._stalled(unread.first(), last_said)
                if waited > LOST_S:
                    consumer.rebootstrap()
                if waited > looked + LOST_S:
                    looked = waited
                    _refuse_forbidden(consumer, unread.first())
            for event in events:
                error, of = event.error, unread.of(event)
                if error.code() == KafkaError._PARTITION_EOF:
                    progress = time.monotonic()
                    if of is not None:
                        of.position = max(of.position, event.offset)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    if of is not None:
                        raise self._gone(consumer, of)
                elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise _forbidden(unread.first() if of is None else of, error)
                elif error.fatal() or error.code() not in _PASSING:
                    raise KafkaException(error)
                else:
                    last_said = error.str()
            read = unread.without_those_that_were_read()
            if read and unread:
                # otherwise their fetching would continue; the client drops what it fetched of them
                consumer.incremental_unassign([TopicPartition(each.topic, each.partition) for each in read])

    def _stalled(self, of: "_Range", said: str) -> CheckpointFailedError:
        return CheckpointFailedError(
            f"Reading {of.topic}-{of.partition} stopped at offset {of.position} of {of.end}: nothing came for "
            f"{self.give_up_after:.0f} s; the client last said: {said}. No record was skipped, the next attempt reads "
            "them again. Check that the partition's leader can be reached from the executors."
        )

    def _gone(self, consumer: ArrowConsumer, of: "_Range") -> CheckpointFailedError:
        try:
            low, high = consumer.get_watermark_offsets(
                TopicPartition(of.topic, of.partition), timeout=_WATERMARK_SECONDS
            )
        except KafkaException:
            low, high = -1, -1
        return offset_gone(of.topic, of.partition, position=of.position, end=of.end, log_start=low, log_end=high)


@dataclass(kw_only=True)
class _Range:
    """One range while it is read."""

    topic: str
    partition: int
    position: int
    """Next offset."""
    end: int
    epoch: int | None
    """Highest leader epoch of its records when it was planned; None = unknown."""
    build: BatchBuilder

    @classmethod
    def of(cls, split: Mapping[str, Any], schema: pa.Schema, columns: frozenset[str]) -> Self:
        topic, partition = str(split["topic"]), int(split["partition"])
        return cls(
            topic=topic,
            partition=partition,
            position=int(split["start"]),
            end=int(split["end"]),
            epoch=split.get("epoch"),
            build=batch_builder(schema, columns, topic, partition),
        )

    def taken(self, records: Records) -> pa.RecordBatch | None:
        """Build a batch of those of the partition's ``records`` that are in the range."""
        self.position = _reached(records, self)
        noticed(records)
        if self.position > self.end:
            records = records.below(self.end)
        if not len(records):
            return None
        if self.epoch is not None and (epoch := records.last_epoch()) > self.epoch:
            raise _replaced(self, int(records.offsets[-1]), epoch)
        return self.build(records)


_Place: TypeAlias = tuple[str | None, int]
"""Topic and partition."""


class _Unread:
    """The ranges of a split that are not completely read."""

    def __init__(self, ranges: Sequence[_Range]) -> None:
        self._ranges: dict[_Place, _Range] = {(each.topic, each.partition): each for each in ranges}
        self._read: set[_Place] = set()

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def offsets(self) -> int:
        return sum(each.end - each.position for each in self._ranges.values())

    def first(self) -> _Range:
        return next(iter(self._ranges.values()))

    def of(self, event: Event) -> _Range | None:
        return self._ranges.get((event.topic, event.partition))

    def parted(self, got: Sequence[Records]) -> Iterator[tuple[_Range, Records]]:
        """Yield the fetched records with their ranges; skips those of partitions that are completely read."""
        for records in got:
            place = (records.topic, records.partition)
            of = self._ranges.get(place)
            if of is not None:
                yield of, records
            elif place not in self._read:
                raise _confused(self.first(), records)

    def without_those_that_were_read(self) -> list[_Range]:
        """Remove and return the ranges that were completely read since the last call."""
        read = {place: each for place, each in self._ranges.items() if each.position >= each.end}
        for place in read:
            del self._ranges[place]
        self._read.update(read)
        return list(read.values())


def _reached(records: Records, of: _Range) -> int:
    """Return the offset after ``records``, which must begin at or after the range's position and be ascending."""
    offsets = records.offsets
    if offsets[0] < of.position or (offsets[1:] <= offsets[:-1]).any():
        raise _confused(of, records)
    return int(offsets[-1]) + 1


def _forbidden(of: _Range, error: KafkaError) -> CheckpointFailedError:
    return CheckpointFailedError(
        f"The executors' user may not read topic {of.topic!r}: {error.name()}. Nothing of the checkpoint becomes "
        f"visible; its records are read again. Grant READ on Topic {of.topic!r}."
    )


def _refuse_forbidden(consumer: ArrowConsumer, of: _Range) -> None:
    """Raise CheckpointFailedError if a broker reports that reading the topic is not allowed."""
    with contextlib.suppress(KafkaException):  # without an answer, reading continues to wait
        error = consumer.topic_error(of.topic, _TOPIC_SECONDS)
        if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise _forbidden(of, error)


def _replaced(of: _Range, offset: int, epoch: int) -> CheckpointFailedError:
    return CheckpointFailedError(
        f"{of.topic}-{of.partition} holds at offset {offset} a record of leader epoch {epoch}. When the range was "
        f"planned up to offset {of.end}, its records had epochs up to {of.epoch}: the log has lost its end since and "
        "was refilled. No record was taken. Planning the range again checks whether records read before are gone."
    )


def _confused(of: _Range, got: Records) -> RuntimeError:
    return RuntimeError(
        f"Reading {of.topic}-{of.partition} from offset {of.position}, the Kafka client delivered {len(got)} records "
        f"from {got.topic}-{got.partition} offset {got.offsets[0]} to {got.offsets[-1]}. That is a bug of "
        "the client or of ours; no record was taken. Please report it with the client's version."
    )
