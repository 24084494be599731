"""The executor's part: one offset range of one partition as Arrow batches.

Imports only the standard library, pyarrow and confluent_kafka (and our own modules that do the same).

How the end of a range is found. Offsets below the end may belong to control records or to aborted transactions, which
never arrive as messages. So a range is finished by a message at or behind its end, or by the client saying that it
reached the end of the partition at or behind it. ``plan`` never sets an end above what was stable, so that one of both
comes.

Memory. The client fetches ahead 32 MiB and one fetch (2 MiB, or one record that is larger). One call takes what of it
is there, or arrives within 20 ms, at most 10,000 records, and makes of it batches of at most 16 MiB each (or one record
that is larger). So a reader holds the fetched bytes about three times, 100 to 150 MB at its worst, however long its
range and however large its records.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from connections.cluster import KafkaCluster
from coordinator.errors import CheckpointFailedError
from coordinator.pipeline.tasks import ranges_of
from sources.kafka.clients import (
    FAST_SETTINGS,
    SHORT_SETTINGS,
    Client,
    close_idle_clients,
    is_short,
    keep,
    noticed,
    take,
)
from sources.kafka.collector import collector_paused
from sources.kafka.columns import BatchBuilder, batch_builder, bounded, schema_of
from sources.kafka.faults import offset_gone

__all__ = ["OWNED_SETTINGS", "KafkaSplitReader", "close_idle_clients"]

OWNED_SETTINGS: Final[Mapping[str, str]] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
}
"""Exactly-once rests on these; another value is refused by the preflight."""

_KAFKA_LOG = logging.getLogger("onceward.kafka")

_MAX_ROWS = 10_000
_FIRST_ROWS = 1_000
_BATCH_BYTES = 16 * 1024 * 1024
_WAIT_SECONDS = 0.02
_WATERMARK_SECONDS = 5.0

# Said by the client about its own connections and retried by it; a group is never used, only named.
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
    """Reads splits (see splitting.py). Pickled; a cached client per process does the work."""

    cluster: KafkaCluster
    group_id: str
    """Named to the broker, which wants one; never joined and never committed to."""
    include_headers: bool = False
    give_up_after: float = 60.0
    """Seconds without any progress before a task fails. The client retries by itself until then."""
    max_rows: int = _MAX_ROWS
    """In one batch."""
    batch_bytes: int = _BATCH_BYTES
    """In one batch, unless a single record is larger."""

    def settings(self, *, short: bool = False) -> dict[str, Any]:
        """The consumer's configuration with secrets resolved here; what the user tuned wins over what is only fast.

        ``short``: for ranges that hold little.
        """
        return {
            **(SHORT_SETTINGS if short else FAST_SETTINGS),
            **self.cluster.client_config(),
            **OWNED_SETTINGS,
            "group.id": self.group_id,
        }

    def __call__(self, split: Mapping[str, Any], columns: frozenset[str]) -> Iterator[pa.RecordBatch]:
        """Batches of ``split``, range by range in offset order. Raises CheckpointFailedError; they stay unread."""
        for each in ranges_of(split):
            yield from self._range(each, columns)

    def _range(self, split: Mapping[str, Any], columns: frozenset[str]) -> Iterator[pa.RecordBatch]:
        topic, partition = str(split["topic"]), int(split["partition"])
        start, end = int(split["start"]), int(split["end"])
        if start >= end:
            return
        build = batch_builder(schema_of(self.include_headers), columns, topic, partition)
        client = Client(os.getpid(), self.cluster, self.group_id, is_short(topic, end - start))
        consumer = take(client) or Consumer(self.settings(short=client.short), logger=_KAFKA_LOG)
        healthy = False
        try:
            consumer.assign([TopicPartition(topic, partition, start)])
            yield from self._batches(consumer, build, topic, partition, start, end)
            healthy = True
        except GeneratorExit:
            healthy = True  # the plan had enough, for example a limit
            raise
        finally:
            if healthy:
                consumer.unassign()  # else it would go on fetching
                keep(client, consumer)
            else:
                consumer.close()

    def _batches(
        self, consumer: Consumer, build: BatchBuilder, topic: str, partition: int, start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        position, rows = start, min(_FIRST_ROWS, self.max_rows)
        progress = time.monotonic()
        last_said = "nothing"
        while position < end:
            batch = None
            with collector_paused():
                # Never asking for more than can come lets a small range return without waiting for the time-out.
                records, events = _parted(consumer.consume(min(rows, end - position), _WAIT_SECONDS))
                if records:
                    position = _reached(records, topic, partition, position)
                    noticed(topic, records)
                    if position > end:
                        records = [m for m in records if _offset(m) < end]
                    batch = build(records) if records else None
                del records
            if batch is not None:
                # Adapts to the size of the records without looking at each.
                rows = max(1, min(self.max_rows, self.batch_bytes * batch.num_rows // max(1, batch.nbytes)))
                yield from bounded(batch, self.batch_bytes)
                progress = time.monotonic()  # whoever takes the batches may be slow
            elif not events and time.monotonic() - progress > self.give_up_after:
                raise self._stalled(topic, partition, position, end, last_said)
            for event in events:
                error = event.error()
                assert error is not None
                if error.code() == KafkaError._PARTITION_EOF:
                    progress = time.monotonic()
                    position = max(position, _offset(event))
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise self._gone(consumer, topic, partition, position, end)
                elif error.fatal() or error.code() not in _PASSING:
                    raise KafkaException(error)
                else:
                    last_said = error.str()

    def _stalled(self, topic: str, partition: int, position: int, end: int, said: str) -> CheckpointFailedError:
        return CheckpointFailedError(
            f"Reading {topic}-{partition} stopped at offset {position} of {end}: nothing came for "
            f"{self.give_up_after:.0f} s; the client last said: {said}. No record was skipped, the next checkpoint "
            "reads them again. Check that the partition's leader can be reached from the executors."
        )

    def _gone(self, consumer: Consumer, topic: str, partition: int, position: int, end: int) -> CheckpointFailedError:
        try:
            found = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_WATERMARK_SECONDS)
            low, high = found if found is not None else (-1, -1)
        except KafkaException:
            low, high = -1, -1
        return offset_gone(topic, partition, position=position, end=end, log_start=low, log_end=high)


def _parted(got: list[Message]) -> tuple[list[Message], list[Message]]:
    """Records and events. Events are rare and come as messages with an error."""
    if not any(map(Message.error, got)):
        return got, []
    return [m for m in got if m.error() is None], [m for m in got if m.error() is not None]


def _reached(records: Sequence[Message], topic: str, partition: int, position: int) -> int:
    """The offset behind ``records``, which begin at ``position`` or later."""
    first, last = _offset(records[0]), _offset(records[-1])
    if first < position or last - first + 1 < len(records) or records[0].topic() != topic:
        raise _confused(topic, partition, position, records)
    return last + 1


def _confused(topic: str, partition: int, position: int, got: Sequence[Message]) -> RuntimeError:
    return RuntimeError(
        f"Reading {topic}-{partition} from offset {position}, the Kafka client delivered {len(got)} records from "
        f"{got[0].topic()}-{got[0].partition()} offset {got[0].offset()} to {got[-1].offset()}. That is a bug of the "
        "client or of ours; no record was taken. Please report it with the client's version."
    )


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
