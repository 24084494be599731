"""How transactions ended, by the broker's own control records in the output partitions.

Consumers do not return control records, so this reads raw record batches (format: Kafka documentation, "Record Batch"
and "Control Batches"; v2, the only one that current brokers write). A marker carries the producer id and epoch. Two
transactions never share an id at one epoch, so distinct (producer id, epoch) count transactions.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import FetchRequest

__all__ = ["End", "Marker", "MarkerReader", "markers_in"]

# base offset i64, length i32, leader epoch i32, magic i8, crc u32, attributes i16, last offset delta i32,
# base timestamp i64, max timestamp i64, producer id i64, producer epoch i16, base sequence i32, records i32
_BATCH = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH = 12
_CONTROL = 0x20
_FETCH_VERSION = 12
"""The last version with topic names instead of topic ids; brokers 2.7 and later support it."""
_BYTES = 8 * 1024 * 1024
_ANSWER_BYTES = 2 * _BYTES
"""Largest answer that the client accepts; its default of 1 MB is less than a broker may send."""
_TIMEOUT_MS = 10_000


class End(Enum):
    """The type of a marker."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, kw_only=True)
class Marker:
    """One transaction's end in one partition."""

    end: End
    producer_id: int
    producer_epoch: int


def markers_in(batches: bytes) -> tuple[list[Marker], int]:
    """Return the markers in a fetched piece of log, and the offset after its last whole batch (-1 if it has none)."""
    found: list[Marker] = []
    after = -1
    at = 0
    while at + _BATCH.size <= len(batches):
        base, length, _, _, _, attributes, delta, _, _, producer, epoch, _, _ = _BATCH.unpack_from(batches, at)
        end = at + _BEFORE_LENGTH + length
        if end > len(batches):
            break
        if attributes & _CONTROL and (kind := _control_type(batches[at + _BATCH.size : end])) is not None:
            found.append(Marker(end=kind, producer_id=producer, producer_epoch=epoch))
        after = base + delta + 1
        at = end
    return found, after


def _control_type(record: bytes) -> End | None:
    """Return the type of a control record; None if it does not end a transaction."""
    at = 0
    for _ in range(4):  # length, attributes (0: one byte as a varint too), timestamp delta, offset delta
        at = _after_varint(record, at)
    at = _after_varint(record, at)  # length of the key
    _version, kind = struct.unpack_from(">hh", record, at)
    return End(kind) if kind in (0, 1) else None


def _after_varint(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1


@dataclass(kw_only=True)
class MarkerReader:
    """Reads the markers of whole partitions. A context manager."""

    brokers: str
    _network: Any = field(default=None, init=False)
    _manager: Any = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._network = NetworkSelector()
        self._network.start()
        self._manager = KafkaConnectionManager(
            self._network, bootstrap_servers=self.brokers, receive_message_max_bytes=_ANSWER_BYTES
        )
        self._manager.bootstrap(_TIMEOUT_MS)
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()
        self._network.stop()

    def markers(self, topic: str, partition: int, *, end: int, leader: int) -> Iterator[Marker]:
        """Yield all markers of a partition below offset ``end``, read from broker ``leader``.

        Raises RuntimeError if the broker refuses.
        """
        offset = 0
        while offset < end:
            answer = self._manager.run(self._fetch, topic, partition, offset, leader)
            if answer.error_code:
                raise RuntimeError(f"fetch from {topic}-{partition} at {offset}: error {answer.error_code}")
            found, after = markers_in(bytes(answer.records or b""))
            if after <= offset:
                return
            yield from found
            offset = after

    async def _fetch(self, topic: str, partition: int, offset: int, leader: int) -> Any:
        wanted = FetchRequest.FetchTopic.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=_BYTES
        )
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=_BYTES,
            isolation_level=0,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
            min_version=_FETCH_VERSION,
            max_version=_FETCH_VERSION,
        )
        answer = await self._manager.send(request, node_id=leader, request_timeout_ms=_TIMEOUT_MS)
        return answer.responses[0].partitions[0]
