"""What a partition's leader returns to raw requests for its log: batches with markers, and offsets."""

import struct
from dataclasses import dataclass
from typing import Any

from onceward.connections.codes import ErrorCode
from tests.support.kafka_model.log import Entry, PartitionLog
from tests.support.kafka_model.state import ClusterState

__all__ = ["Fetching"]

_TOGETHER = 100
"""Offsets per answer: few, so that no caller relies on getting all at once."""
_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEHIND_LENGTH = 12
"""Bytes of a batch that its length field does not count."""
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_EARLIEST = -2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Partition:
    partition_index: int
    error_code: int
    offset: int = -1
    records: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Topic:
    partitions: list[_Partition]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fetched:
    """Answer to FetchRequest up to version 12."""

    responses: list[_Topic]
    error_code: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listed:
    """Answer to ListOffsetsRequest."""

    topics: list[_Topic]


class Fetching:
    """Requests about logs, on all brokers. Read uncommitted only."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def fetch(self, node: int, request: Any, _now: float) -> _Fetched:
        """FetchRequest: returns at once, with the records that exist."""
        return _Fetched(
            responses=[
                _Topic(partitions=[self._fetched(node, str(topic.topic), asked) for asked in topic.partitions])
                for topic in request.topics
            ]
        )

    def list_offsets(self, node: int, request: Any, _now: float) -> _Listed:
        """ListOffsetsRequest for the first or the last offset."""
        return _Listed(
            topics=[
                _Topic(partitions=[self._listed(node, str(topic.name), asked) for asked in topic.partitions])
                for topic in request.topics
            ]
        )

    def _fetched(self, node: int, topic: str, asked: Any) -> _Partition:
        log = self._led(node, topic, asked.partition)
        if isinstance(log, ErrorCode):
            return _Partition(partition_index=asked.partition, error_code=log)
        if asked.fetch_offset < log.start:
            return _Partition(partition_index=asked.partition, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        entries = log.entries[asked.fetch_offset : asked.fetch_offset + _TOGETHER]
        return _Partition(
            partition_index=asked.partition,
            error_code=ErrorCode.NONE,
            records=b"".join(_batch(entry) for entry in entries),
        )

    def _listed(self, node: int, topic: str, asked: Any) -> _Partition:
        log = self._led(node, topic, asked.partition_index)
        if isinstance(log, ErrorCode):
            return _Partition(partition_index=asked.partition_index, error_code=log)
        offset = log.start if asked.timestamp == _EARLIEST else log.high_watermark
        return _Partition(partition_index=asked.partition_index, error_code=ErrorCode.NONE, offset=offset)

    def _led(self, node: int, topic: str, number: int) -> PartitionLog | ErrorCode:
        log = self._state.log((topic, number))
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return log if log.leader == node else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _batch(entry: Entry) -> bytes:
    """One offset as a batch: its header and, for a marker, the record that says which kind it is."""
    body, attributes = b"", 0
    if entry.record is None:
        key = struct.pack(">hh", 0, int(entry.commit))
        record = b"\x00\x00\x00\x08" + key + b"\x01\x00"
        body, attributes = bytes([2 * len(record)]) + record, _CONTROL | _TRANSACTIONAL
    elif entry.span is not None:
        attributes = _TRANSACTIONAL
    length = _HEADER.size - _BEHIND_LENGTH + len(body)
    header = _HEADER.pack(
        entry.offset, length, 0, 2, 0, attributes, 0, 0, 0, entry.producer_id, entry.epoch, entry.sequence, 1
    )
    return header + body
