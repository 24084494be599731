"""Requests of an executor's client to coordinators and leaders, retried until answered or out of time."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.control_plane import CoordinatorKind, NoAnswer
from tests.support.kafka_model.cluster import Cluster
from tests.support.kafka_model.errors import failure
from tests.support.kafka_model.settings import Partition, Produce
from tests.support.kafka_model.transport import Call, Transport

__all__ = ["Requests"]

_BACKOFF_S = 0.02
_ELSEWHERE = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
_AGAIN = (*_ELSEWHERE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS)


class Requests:
    """Caches coordinators and leaders until an answer, or a missing one, shows that they moved."""

    def __init__(self, cluster: Cluster, transport: Transport) -> None:
        self.transport = transport
        self._cluster = cluster
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        self._leaders: dict[str, list[int]] = {}

    def once(self, node: int | None, request: Any) -> Any:
        return self.transport.send([Call(cluster=self._cluster, node=node, request=request)])[0]

    def coordinator(self, kind: CoordinatorKind, key: str, request: Any, deadline: float) -> Any:
        """The coordinator's first answer that is not to be retried. Raises KafkaException at the deadline."""
        why = "no coordinator was found"
        while True:
            node = self._coordinators.get((kind, key))
            if node is None:
                node = self._locate(kind, key)
            if node is not None:
                answer = self.once(node, request)
                code = None if isinstance(answer, NoAnswer) else answer.error_code
                if code is not None and code not in _AGAIN:
                    return answer
                why = "no answer" if code is None else f"error {code}"
                if code is None or code in _ELSEWHERE:
                    self._coordinators.pop((kind, key), None)
            self.wait(deadline, why)

    def wait(self, deadline: float, why: str) -> None:
        """Wait before the next attempt. Raises KafkaException when no time is left."""
        left = deadline - self.transport.now()
        if left <= 0:
            raise failure(KafkaError._TIMED_OUT, f"timed out: {why}")
        self.transport.sleep(min(_BACKOFF_S, left))

    def partitions(self, topic: str) -> int | None:
        """The number of the topic's partitions; None while unknown."""
        leaders = self._leaders.get(topic) or self._refresh(topic)
        return len(leaders) if leaders else None

    def produce(self, requests: Mapping[Partition, Produce]) -> dict[Partition, Any]:
        """Send each batch once, to the partition's leader if known."""
        calls = {
            partition: Call(cluster=self._cluster, node=node, request=request)
            for partition, request in requests.items()
            if (node := self._leader(partition)) is not None
        }
        answers = dict(zip(calls, self.transport.send(list(calls.values())), strict=True)) if calls else {}
        return {partition: answers.get(partition, NoAnswer(why="no leader")) for partition in requests}

    def forget_leaders(self, topic: str) -> None:
        self._leaders.pop(topic, None)

    def _leader(self, partition: Partition) -> int | None:
        topic, number = partition
        leaders = self._leaders.get(topic) or self._refresh(topic)
        node = leaders[number] if 0 <= number < len(leaders) else -1
        return node if node >= 0 else None

    def _refresh(self, topic: str) -> list[int]:
        named = MetadataRequest.MetadataRequestTopic(name=topic)
        answer = self.once(None, MetadataRequest(topics=[named], allow_auto_topic_creation=False, min_version=4))
        if isinstance(answer, NoAnswer) or answer.topics[0].error_code:
            return []
        leaders = [partition.leader_id for partition in answer.topics[0].partitions]
        self._leaders[topic] = leaders
        return leaders

    def _locate(self, kind: CoordinatorKind, key: str) -> int | None:
        request = FindCoordinatorRequest(key_type=int(kind), coordinator_keys=[key], min_version=4)
        answer = self.once(None, request)
        if isinstance(answer, NoAnswer) or answer.coordinators[0].error_code:
            return None
        node = self._coordinators[kind, key] = int(answer.coordinators[0].node_id)
        return node
