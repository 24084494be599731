"""What the broker says, asked with plain clients: offsets while the demo runs, the whole output when it is over.

Shares no code with the sources, the sinks or the pipeline.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka import KafkaAdminClient

from coordinator.dev.demo.expected import Record
from coordinator.dev.demo.judge import Seen
from coordinator.dev.demo.markers import End, MarkerReader

__all__ = ["Broker", "read_committed"]

_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_TIMEOUT_S = 15.0
_STUCK_S = 30.0
_AT_REST = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


class Broker:
    """Questions to a cluster; changes nothing but `create_topics`. Every call raises KafkaException when unanswered."""

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers
        self._admin = AdminClient({"bootstrap.servers": brokers})

    def create_topics(self, names: Sequence[str], *, partitions: int) -> None:
        """Create topics with as many replicas as the cluster has brokers."""
        replicas = len(self._admin.list_topics(timeout=_TIMEOUT_S).brokers)
        wanted = [NewTopic(name, partitions, replicas) for name in names]
        for created in self._admin.create_topics(wanted, operation_timeout=_TIMEOUT_S).values():
            created.result(_TIMEOUT_S)

    def ends(self, topics: Sequence[str], *, committed: bool = False) -> dict[TopicPartition, int]:
        """End offset of every partition: the high watermark, or what a read_committed reader can reach."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        answers = self._admin.list_offsets(
            dict.fromkeys(self._leaders(topics), _LATEST),
            isolation_level=level,
            request_timeout=_TIMEOUT_S,
        )
        return {partition: answer.result(_TIMEOUT_S).offset for partition, answer in answers.items()}

    def group_progress(self, group: str, topic: str) -> int:
        """How many records of ``topic`` a consumer group has behind it, for a topic that begins at offset 0."""
        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        found = asked[group].result(_TIMEOUT_S).topic_partitions or []
        return sum(max(0, one.offset) for one in found if one.topic == topic)

    def stalled(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Partitions whose high watermark is ahead of the last stable offset, and by how much."""
        reachable = self.ends(topics, committed=True)
        return {
            f"{partition.topic}-{partition.partition}": end - reachable[partition]
            for partition, end in self.ends(topics).items()
            if end != reachable[partition]
        }

    def open_transactions(self, prefix: str) -> list[str]:
        """Transactional ids under ``prefix`` that are not at rest, with their state."""
        admin = KafkaAdminClient(bootstrap_servers=self._brokers)
        try:
            listed = admin.list_transactions()
        finally:
            admin.close()
        return sorted(
            f"{one.transactional_id} ({state})"
            for per_broker in listed.values()
            for one in per_broker
            if one.transactional_id.startswith(prefix) and (state := _state(one.state)) not in _AT_REST
        )

    def ended_transactions(self, topics: Sequence[str]) -> Mapping[End, int]:
        """How many transactions with records in ``topics`` were committed and aborted, by the broker's own markers."""
        found: dict[End, set[tuple[int, int]]] = {end: set() for end in End}
        leaders = self._leaders(topics)
        with MarkerReader(brokers=self._brokers) as reader:
            for partition, end in self.ends(topics).items():
                leader = leaders[partition]
                for marker in reader.markers(partition.topic, partition.partition, end=end, leader=leader):
                    found[marker.end].add((marker.producer_id, marker.producer_epoch))
        return {end: len(transactions) for end, transactions in found.items()}

    def _leaders(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        known = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        return {
            TopicPartition(topic, number): partition.leader
            for topic in topics
            for number, partition in sorted(known[topic].partitions.items())
        }


def read_committed(brokers: str, topic: str, ends: Mapping[TopicPartition, int]) -> Iterator[Seen]:
    """Everything that a read_committed reader sees in ``topic`` below ``ends``, each partition in order.

    Raises KafkaException when the broker reports an error, or when nothing arrives for 30 s.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "onceward-demo-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
    )
    limits = {one.partition: end for one, end in ends.items() if one.topic == topic and end > 0}
    waiting = set(limits)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in limits])
    deadline = time.monotonic() + _STUCK_S
    try:
        while waiting:
            for message in consumer.consume(5_000, 0.1):
                deadline = time.monotonic() + _STUCK_S
                if _at_end(message, limits):
                    waiting.discard(message.partition() or 0)
                elif message.error() is None:
                    yield _seen(message)
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic}: partitions {waiting} do not end"))
    finally:
        consumer.close()


def _at_end(message: KafkaMessage, limits: Mapping[int, int]) -> bool:
    """Whether the message says that its partition is read to the end; control records never arrive as messages."""
    error = message.error()
    if error is None:
        return False
    if error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return (message.offset() or 0) >= limits[message.partition() or 0]


def _seen(message: KafkaMessage) -> Seen:
    key, value = message.key(), message.value()
    return Seen(message.partition() or 0, message.offset() or 0, Record(_bytes(key), _bytes(value)))


def _bytes(part: bytes | str | None) -> bytes | None:
    return part.encode() if isinstance(part, str) else part


def _state(state: object) -> str:
    return str(getattr(state, "value", state))
