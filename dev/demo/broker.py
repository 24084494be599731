"""The broker's state, read with plain clients: offsets during the demo, the whole output after it.

Shares no code with the sources, the sinks or the pipeline.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import wait
from typing import TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka import KafkaAdminClient
from kafka.admin import TransactionState

from onceward.dev.demo.expected import Record
from onceward.dev.demo.judge import Seen
from onceward.dev.demo.markers import End, MarkerReader

__all__ = ["Broker", "read_committed"]

_T = TypeVar("_T")
_LATEST = OffsetSpec.latest()
_TIMEOUT_S = 15.0
_AGAIN = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
    }
)
_STUCK_S = 30.0
_COMMITTED = frozenset({"PrepareCommit", "CompleteCommit"})
_AT_REST = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


class Broker:
    """Requests to a cluster; only `create_topics` changes anything. Every call raises KafkaException if unanswered."""

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers
        self._admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
        self._members: dict[str, Consumer] = {}

    def create_topics(self, names: Sequence[str], *, partitions: int) -> None:
        """Create topics with as many replicas as the cluster has brokers, and wait until they are usable."""
        replicas = len(self._admin.list_topics(timeout=_TIMEOUT_S).brokers)
        wanted = [NewTopic(name, partitions, replicas) for name in names]
        for created in self._admin.create_topics(wanted, operation_timeout=_TIMEOUT_S).values():
            created.result(_TIMEOUT_S)
        self.ends(names)

    def ends(self, topics: Sequence[str], *, committed: bool = False) -> dict[TopicPartition, int]:
        """Return the end offset of every partition: the high watermark, or the limit of a read_committed reader."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask() -> dict[TopicPartition, int]:
            wanted = dict.fromkeys(self._leaders(topics), _LATEST)
            answers = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=_TIMEOUT_S)
            wait(answers.values(), _TIMEOUT_S)
            ends = {partition: answer.result(0).offset for partition, answer in answers.items()}
            if OFFSET_INVALID in ends.values():  # the connection broke before the answer, without an error
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return ends

        return _asked_again(ask)

    def group_progress(self, group: str, topic: str) -> int:
        """Return how many records of ``topic`` a consumer group has processed; the topic must begin at offset 0."""
        if group not in self._members:
            # Not AdminClient.list_consumer_group_offsets: with librdkafka 2.16.0 the process dies by SIGSEGV if the
            # group coordinator is not available yet. This consumer never joins its group.
            self._members[group] = Consumer({"bootstrap.servers": self._brokers, "group.id": group, "log_level": 0})
        partitions = list(self._leaders([topic]))
        found = _asked_again(lambda: self._members[group].committed(partitions, _TIMEOUT_S))
        return sum(max(0, one.offset) for one in found)

    def stalled(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Return the partitions whose high watermark is ahead of the last stable offset, with the difference."""
        reachable = self.ends(topics, committed=True)
        return {
            f"{partition.topic}-{partition.partition}": end - reachable[partition]
            for partition, end in self.ends(topics).items()
            if end != reachable[partition]
        }

    def transactions(self, prefix: str) -> Mapping[str, str]:
        """Return transactional id -> state of its last transaction, for all ids with ``prefix``."""
        admin = KafkaAdminClient(bootstrap_servers=self._brokers)
        try:
            listed = admin.list_transactions()
        finally:
            admin.close()
        return {
            one.transactional_id: TransactionState(one.state).value
            for per_broker in listed.values()
            for one in per_broker
            if one.transactional_id.startswith(prefix)
        }

    def committed_since(self, prefix: str, open_before: Collection[str]) -> int:
        """Return how many of the transactions that were open before are committed now.

        If their writer was dead at that time, another process committed them.
        """
        states = self.transactions(prefix)
        return sum(states.get(name) in _COMMITTED for name in open_before)

    def open_transactions(self, prefix: str) -> list[str]:
        """Return the ids with ``prefix`` whose transaction is neither committed nor aborted."""
        return sorted(name for name, state in self.transactions(prefix).items() if state not in _AT_REST)

    def ended_transactions(self, topics: Sequence[str]) -> Mapping[End, int]:
        """Count the committed and aborted transactions with records in ``topics``, by the broker's own markers."""
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
        if not known.keys() >= set(topics):  # a broker learns of a new topic a moment after its creation
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return {
            TopicPartition(topic, number): partition.leader
            for topic in topics
            for number, partition in sorted(known[topic].partitions.items())
        }


def _asked_again(ask: Callable[[], _T]) -> _T:
    """Retry until there is an answer: leaders and group coordinators need a moment after a creation or a move."""
    limit = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _AGAIN or time.monotonic() > limit:
                raise
            time.sleep(0.05)


def read_committed(brokers: str, topic: str, ends: Mapping[TopicPartition, int]) -> Iterator[Seen]:
    """Yield the records that a read_committed reader sees in ``topic`` below ``ends``, each partition in order.

    Raises KafkaException if the broker reports an error, or if nothing arrives for 30 s.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "log_level": 0,
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
    """Return whether the message marks the end of its partition; control records never arrive as messages."""
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
