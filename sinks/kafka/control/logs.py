"""The log of a partition as its leader keeps it, including control markers, which clients never see.

Read with raw requests, because a consumer hides markers. Only headers are parsed.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.record import MemoryRecords

from onceward.connections.codes import TEMPORARY, ErrorCode
from onceward.connections.topics import cluster_facts, metadata_request
from onceward.sinks.kafka.control.control_plane import ControlPlane, NoAnswer, Request

__all__ = ["Batch", "Log", "PartitionId", "UnreadableError", "parse"]

PartitionId = tuple[str, int]
"""Topic and partition."""

FETCH_BYTES = 8 * 1024 * 1024

_EARLIEST, _LATEST = -2, -1
_ABORT, _COMMIT = 0, 1
_LATER = TEMPORARY | {
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.OFFSET_NOT_AVAILABLE,
}
"""Codes of a fetch that clear when brokers return or leaders are elected."""


class UnreadableError(Exception):
    """The log cannot be read: temporarily (`again`), or until something is changed."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Header of a batch; for a control batch also its type."""

    last_offset: int
    producer_id: int
    epoch: int
    commit: bool | None = None
    """True or False for a marker that ends a transaction, None for records."""
    records: int = 0
    """Number of records of (producer id, epoch) in this partition up to the end of this batch; 0 if unknown."""


class Log:
    """One partition, read at its leader. Every method raises UnreadableError."""

    def __init__(self, control: ControlPlane, place: PartitionId, *, limit: int) -> None:
        """`limit`: total bytes to read."""
        self._control = control
        self._place = place
        self._limit = self._left = limit
        self._leader = self._find_leader()
        self.first = self._offset(_EARLIEST)
        """Offset of the first record that the log still has."""
        self.end = self._offset(_LATEST)
        """The high watermark."""

    def read(self, offset: int, end: int) -> Iterator[Batch]:
        """Yield the batches whose last offset is in [`offset`, `end`)."""
        while offset < end:
            if self._left <= 0:
                raise UnreadableError(f"nothing of it is in the {self._limit >> 20} MiB that were read", again=False)
            fetched = self._fetch(offset)
            self._left -= len(fetched)
            reached = offset
            for batch in parse(fetched):
                reached = batch.last_offset + 1
                if offset <= batch.last_offset < end:
                    yield batch
            if reached <= offset:
                return  # nothing more up to the high watermark
            offset = reached

    def _find_leader(self) -> int:
        name, number = self._place
        topic = cluster_facts(self._ask(None, metadata_request([name]))).topics[name]
        _require(topic.code, "its topic")
        if number not in topic.leaders:
            raise UnreadableError("there is no such partition", again=False)
        if topic.leaders[number] < 0:
            raise UnreadableError("it has no leader", again=True)
        return topic.leaders[number]

    def _offset(self, which: int) -> int:
        topic = ListOffsetsRequest.ListOffsetsTopic
        asked = topic.ListOffsetsPartition(partition_index=self._place[1], current_leader_epoch=-1, timestamp=which)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[topic(name=self._place[0], partitions=[asked])],
            min_version=2,
            max_version=6,
        )
        answer: ListOffsetsResponse = self._ask(self._leader, request)
        partition = answer.topics[0].partitions[0]
        _require(int(partition.error_code), "its offsets")
        return int(partition.offset)

    def _fetch(self, offset: int) -> bytes:
        topic = FetchRequest.FetchTopic
        partition = topic.FetchPartition(
            partition=self._place[1],
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=FETCH_BYTES,
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES,
            isolation_level=0,  # up to the high watermark, without waiting for open transactions
            session_id=0,
            session_epoch=-1,
            topics=[topic(topic=self._place[0], partitions=[partition])],
            forgotten_topics_data=[],
            rack_id="",
            min_version=7,
            max_version=12,
        )
        answer: FetchResponse = self._ask(self._leader, request)
        _require(int(answer.error_code), "its records")
        found = answer.responses[0].partitions[0]
        _require(int(found.error_code), "its records")
        return bytes(found.records or b"")

    def _ask(self, node: int | None, request: Request) -> Any:
        answer = self._control.send_all([(node, request)])[0]
        if isinstance(answer, NoAnswer):
            raise UnreadableError(f"it did not answer: {answer.why}", again=True)
        return answer


def parse(fetched: bytes) -> Iterator[Batch]:
    """Yield the headers of the batches in a fetch response. Skips the last batch if it is truncated."""
    records = MemoryRecords(fetched)
    while (batch := records.next_batch()) is not None:
        commit: bool | None = None
        transactional = batch.magic >= 2  # older formats have no producer ids
        if transactional and batch.is_control_batch:
            _, kind = struct.unpack_from(">hh", next(iter(batch)).key)
            commit = {_ABORT: False, _COMMIT: True}.get(kind)
            transactional = commit is not None  # other control records do not concern transactions
        yield Batch(
            last_offset=int(batch.next_offset) - 1,
            producer_id=int(batch.producer_id) if transactional else -1,
            epoch=int(batch.producer_epoch) if transactional else -1,
            commit=commit,
            # a pair begins at sequence 0, so its last sequence gives its number of records
            records=int(batch.last_sequence) + 1 if transactional and commit is None else 0,
        )


def _require(code: int, what: str) -> None:
    if code:
        hint = ": grant READ on the topic" if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED else ""
        raise UnreadableError(f"the brokers refuse {what} with error {code}{hint}", again=code in _LATER)
