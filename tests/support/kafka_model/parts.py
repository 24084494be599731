"""What a partition's leader reports about producers, and what it writes for the brokers' own tools."""

from dataclasses import dataclass
from typing import Any

from onceward.connections.codes import ErrorCode
from tests.support.kafka_model.state import ClusterState

__all__ = ["Parts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Producer:
    producer_id: int
    producer_epoch: int
    last_sequence: int
    current_txn_start_offset: int
    last_timestamp: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Partition:
    partition_index: int
    error_code: int
    active_producers: list[_Producer]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Topic:
    name: str
    partitions: list[_Partition]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Described:
    """Answer to DescribeProducersRequest."""

    topics: list[_Topic]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Marker:
    topics: list[_Topic]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Marked:
    """Answer to WriteTxnMarkersRequest."""

    markers: list[_Marker]


class Parts:
    """Requests about parts of transactions, on all brokers."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def describe(self, node: int, request: Any, _now: float) -> _Described:
        """DescribeProducersRequest."""
        return _Described(
            topics=[
                _Topic(
                    name=str(topic.name),
                    partitions=[self._partition(node, str(topic.name), number) for number in topic.partition_indexes],
                )
                for topic in request.topics
            ]
        )

    def mark(self, node: int, request: Any, now: float) -> _Marked:
        """WriteTxnMarkersRequest, as ``kafka-transactions abort`` sends it: bypasses the coordinator."""
        return _Marked(
            markers=[
                _Marker(
                    topics=[
                        _Topic(
                            name=str(topic.name),
                            partitions=[
                                self._marked(node, str(topic.name), number, marker, now)
                                for number in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ]
                )
                for marker in request.markers
            ]
        )

    def _partition(self, node: int, topic: str, number: int) -> _Partition:
        log = self._state.log((topic, number))
        code = ErrorCode.NONE if log is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if log is not None and log.leader != node:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if log is None or code is not ErrorCode.NONE:
            return _Partition(partition_index=number, error_code=code, active_producers=[])
        producers = [
            _Producer(
                producer_id=producer, producer_epoch=epoch, last_sequence=sequence, current_txn_start_offset=first
            )
            for producer, epoch, sequence, first in log.producers()
        ]
        return _Partition(partition_index=number, error_code=code, active_producers=producers)

    def _marked(self, node: int, topic: str, number: int, marker: Any, now: float) -> _Partition:
        log = self._state.log((topic, number))
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if log is not None:
            code = ErrorCode.NONE if log.leader == node else ErrorCode.NOT_LEADER_OR_FOLLOWER
            if code is ErrorCode.NONE:
                commit = bool(marker.transaction_result)
                log.mark(int(marker.producer_id), int(marker.producer_epoch), commit=commit, now=now)
        return _Partition(partition_index=number, error_code=code, active_producers=[])
