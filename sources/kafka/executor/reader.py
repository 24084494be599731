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

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import pyarrow as pa
from confluent_kafka import KafkaError, TopicPartition

from onceward.common.printable import logger
from onceward.connections.cluster import KafkaCluster
from onceward.connections.limits import LOST_S
from onceward.connectors.tasks import ranges_of
from onceward.sources.kafka.client import Consumer, Event, Records, new_consumer
from onceward.sources.kafka.executor.clients import (
    LARGE,
    Client,
    Fetch,
    close_idle_clients,
    fetch_for,
    held_back,
    keep,
    take,
    take_held_back,
)
from onceward.sources.kafka.executor.columns import COLUMNS, bounded, schema_of
from onceward.sources.kafka.executor.ranges import WATERMARK_SECONDS, Range, confused, noted, refuse_forbidden, stalled

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

    def settings(self, fetch: Fetch = LARGE, tuning: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
        """Return the consumer's configuration, with secrets resolved here; user settings override mere tuning."""
        patience = {"socket.timeout.ms": str(fetch.patience_ms)} if fetch.patience_ms is not None else {}
        return {
            **fetch.settings(),
            **tuning,
            **self.cluster.client_config(),
            **{key: value for key, value in patience.items() if key not in self.cluster.config},
            **OWNED_SETTINGS,
            "group.id": self.group_id,
        }

    def __call__(self, split: Mapping[str, Any], columns: frozenset[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches of ``split``, each of one range, in offset order within a range. Raises CheckpointFailedError;
        the records then stay unread."""
        schema = schema_of(self.names)
        ranges = [Range.of(each, schema, columns) for each in ranges_of(split)]
        alike = defaultdict[Fetch, list[Range]](list)
        for each in ranges:
            if each.position < each.end:
                alike[fetch_for(each.topic, each.end - each.position, self.cluster)].append(each)
        for fetch, ranges in alike.items():
            for first in range(0, len(ranges), fetch.ranges):
                yield from self._together(ranges[first : first + fetch.ranges], fetch)

    def rows_like(self, batch: pa.RecordBatch) -> int:
        """Return how many records to take at a time, if all are as large as those of ``batch``."""
        fitting: int = self.batch_bytes * batch.num_rows // max(1, batch.nbytes)
        return max(1, min(self.max_rows, fitting))

    def held_back(self) -> float:
        """Return the seconds for which brokers have held the reading of this process back since the last call."""
        return take_held_back(self.cluster)

    def readable(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition and the end of what a ``read_committed`` reader may see now. Raises
        KafkaException if its leader does not answer."""
        client = Client(self.cluster, self.group_id, LARGE)
        consumer = take(client) or new_consumer(self.settings(), logger=_KAFKA_LOG)
        found = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WATERMARK_SECONDS)
        keep(client, consumer)
        return found

    def _together(self, ranges: Sequence[Range], fetch: Fetch) -> Iterator[pa.RecordBatch]:
        client = Client(self.cluster, self.group_id, fetch)
        consumer = take(client) or new_consumer(self.settings(fetch), logger=_KAFKA_LOG)
        healthy = False
        try:
            consumer.assign(
                [TopicPartition(each.topic, each.partition, each.position) for each in ranges],
                ends=[each.end for each in ranges],
                columns=ranges[0].columns,
            )
            yield from self._batches(consumer, ranges)
            healthy = True
        except GeneratorExit:
            healthy = True  # the plan needs no more records, for example because of a limit
            raise
        finally:
            if healthy and not consumer.closed:
                consumer.unassign()  # otherwise it would keep fetching
                keep(client, consumer)
            else:
                consumer.close()

    def _batches(self, consumer: Consumer, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
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
            if throttled := consumer.throttling.taken():
                held_back(self.cluster, throttled)
                progress = time.monotonic() + throttled  # the broker answers, and says how long it will not
            for batch in made:
                # Adapts to the records' size without inspecting each.
                rows = self.rows_like(batch)
                yield from bounded(batch, self.batch_bytes)
                progress, looked = time.monotonic(), 0.0  # the consumer of the batches may be slow
            if not made:
                waited = time.monotonic() - progress
                if waited > self.give_up_after and not events:
                    raise stalled(unread.first(), self.give_up_after, last_said)
                if waited > LOST_S:
                    consumer.rebootstrap()
                if waited > looked + LOST_S:
                    looked = waited
                    refuse_forbidden(consumer, unread.first())
            for event in events:
                if event.error.code() == KafkaError._PARTITION_EOF:
                    progress = time.monotonic()
                last_said = noted(event, unread.of(event), consumer, unread.first()) or last_said
            read = unread.without_those_that_were_read()
            if read and unread:
                # otherwise their fetching would continue; the client drops what it fetched of them
                consumer.incremental_unassign([TopicPartition(each.topic, each.partition) for each in read])


_Place: TypeAlias = tuple[str | None, int]
"""Topic and partition."""


class _Unread:
    """The ranges of a split that are not completely read."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._ranges: dict[_Place, Range] = {(each.topic, each.partition): each for each in ranges}
        self._read: set[_Place] = set()

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def offsets(self) -> int:
        return sum(each.end - each.position for each in self._ranges.values())

    def first(self) -> Range:
        return next(iter(self._ranges.values()))

    def of(self, event: Event) -> Range | None:
        return self._ranges.get((event.topic, event.partition))

    def parted(self, got: Sequence[Records]) -> Iterator[tuple[Range, Records]]:
        """Yield the fetched records with their ranges; skips those of partitions that are completely read."""
        for records in got:
            place = (records.topic, records.partition)
            of = self._ranges.get(place)
            if of is not None:
                yield of, records
            elif place not in self._read:
                raise confused(self.first(), records)

    def without_those_that_were_read(self) -> list[Range]:
        """Remove and return the ranges that were completely read since the last call."""
        read = {place: each for place, each in self._ranges.items() if each.position >= each.end}
        for place in read:
            del self._ranges[place]
        self._read.update(read)
        return list(read.values())
