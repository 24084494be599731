"""One range of a partition while it is read, and what the client's events mean for it. Runs on executors."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from onceward.common.errors import CheckpointFailedError
from onceward.sources.kafka.client import Consumer, Event, Records
from onceward.sources.kafka.executor.clients import noticed
from onceward.sources.kafka.executor.columns import BatchBuilder, batch_builder
from onceward.sources.kafka.executor.offset_gone import offset_gone

__all__ = ["WATERMARK_SECONDS", "Range", "confused", "forbidden", "noted", "refuse_forbidden", "stalled"]

WATERMARK_SECONDS = 5.0
_TOPIC_SECONDS = 1.0
_NO_END = 2**63 - 1

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


@dataclass(kw_only=True)
class Range:
    """One range while it is read."""

    topic: str
    partition: int
    position: int
    """Next offset."""
    end: int
    """Exclusive; far away if the range has none."""
    epoch: int | None
    """Highest leader epoch of its records when it was planned; None = unknown."""
    columns: frozenset[str]
    """Those that are read."""
    build: BatchBuilder

    @property
    def bounded(self) -> bool:
        return self.end != _NO_END

    @classmethod
    def of(cls, split: Mapping[str, Any], schema: pa.Schema, columns: frozenset[str]) -> Self:
        topic, partition = str(split["topic"]), int(split["partition"])
        return cls(
            topic=topic,
            partition=partition,
            position=int(split["start"]),
            end=int(split.get("end", _NO_END)),
            epoch=split.get("epoch"),
            columns=columns,
            build=batch_builder(schema, columns),
        )

    def taken(self, records: Records) -> pa.RecordBatch | None:
        """Build a batch of those of the partition's ``records`` that are in the range."""
        kept = self.kept(records)
        return None if kept is None else self.build(kept)

    def kept(self, records: Records) -> Records | None:
        """Return those of the partition's ``records`` that are in the range, and pass them."""
        self.position = _reached(records, self)
        noticed(records)
        if self.position > self.end:
            records = records.below(self.end)
        if not len(records):
            return None
        if self.epoch is not None and (epoch := records.last_epoch()) > self.epoch:
            raise _replaced(self, int(records.offsets[-1]), epoch)
        return records


def noted(event: Event, of: Range | None, consumer: Consumer, among: Range) -> str | None:
    """Note an event: advance ``of``, its range, to the partition's end, or raise the fault that it reports. Return what
    the client said of a fault that passes by itself. ``among``: any range that is read, for events of none."""
    error = event.error
    if error.code() == KafkaError._PARTITION_EOF:
        if of is not None:
            of.position = max(of.position, event.offset)
        return None
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        if of is not None:
            raise _gone(consumer, of)
        return None
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise forbidden(of or among, error)
    if error.fatal() or error.code() not in _PASSING:
        raise KafkaException(error)
    return error.str()


def stalled(of: Range, seconds: float, said: str) -> CheckpointFailedError:
    """Return the error of a reader that received nothing. ``said``: what the client said last."""
    place = f"{of.position} of {of.end}" if of.bounded else str(of.position)
    return CheckpointFailedError(
        f"Reading {of.topic}-{of.partition} stopped at offset {place}: nothing came for {seconds:.0f} s; the client "
        f"last said: {said}. No record was skipped, the next attempt reads them again. Check that the partition's "
        "leader can be reached from the executors."
    )


def _gone(consumer: Consumer, of: Range) -> CheckpointFailedError:
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(of.topic, of.partition), timeout=WATERMARK_SECONDS)
    except KafkaException:
        low, high = -1, -1
    return offset_gone(of.topic, of.partition, position=of.position, end=of.end, log_start=low, log_end=high)


def _reached(records: Records, of: Range) -> int:
    """Return the offset after ``records``, which must begin at or after the range's position and be ascending."""
    offsets = records.offsets
    if offsets[0] < of.position or (offsets[1:] <= offsets[:-1]).any():
        raise confused(of, records)
    return int(offsets[-1]) + 1


def forbidden(of: Range, error: KafkaError) -> CheckpointFailedError:
    return CheckpointFailedError(
        f"The executors' user may not read topic {of.topic!r}: {error.name()}. Nothing of the checkpoint becomes "
        f"visible; its records are read again. Grant READ on Topic {of.topic!r}."
    )


def refuse_forbidden(consumer: Consumer, of: Range) -> None:
    """Raise CheckpointFailedError if a broker reports that reading the topic is not allowed."""
    with contextlib.suppress(KafkaException):  # without an answer, reading continues to wait
        error = consumer.topic_error(of.topic, _TOPIC_SECONDS)
        if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise forbidden(of, error)


def _replaced(of: Range, offset: int, epoch: int) -> CheckpointFailedError:
    return CheckpointFailedError(
        f"{of.topic}-{of.partition} holds at offset {offset} a record of leader epoch {epoch}. When the range was "
        f"planned up to offset {of.end}, its records had epochs up to {of.epoch}: the log has lost its end since and "
        "was refilled. No record was taken. Planning the range again checks whether records read before are gone."
    )


def confused(of: Range, got: Records) -> RuntimeError:
    return RuntimeError(
        f"Reading {of.topic}-{of.partition} from offset {of.position}, the Kafka client delivered {len(got)} records "
        f"from {got.topic}-{got.partition} offset {got.offsets[0]} to {got.offsets[-1]}. That is a bug of "
        "the client or of ours; no record was taken. Please report it with the client's version."
    )
