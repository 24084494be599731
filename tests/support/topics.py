"""Helpers that change and read topics through clients that share nothing with the code under test."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import cast

from confluent_kafka import Consumer, IsolationLevel, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.admin import AbortTransactionSpec, TransactionState
from kafka.errors import RetriableError

from tests.support.waiting import wait_until

_LIMIT_S = 30.0


class Topics:
    """Makes and reads topics as any client would. `prefix` makes the names unique."""

    def __init__(self, servers: str, prefix: str) -> None:
        self.servers = servers
        self.prefix = prefix
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def create(
        self,
        name: str = "topic",
        partitions: int = 1,
        replicas: int = -1,
        config: Mapping[str, str] | None = None,
        led_by: Sequence[int] = (),
    ) -> str:
        """Make a topic and return its full name once every partition has a leader. `replicas` -1: cluster default.

        `led_by`: the brokers of every partition, the leader first.
        """
        topic = f"{self.prefix}.{name}"
        placed = {"replica_assignment": [list(led_by)] * partitions} if led_by else {"replication_factor": replicas}
        new = NewTopic(topic, num_partitions=partitions, config=dict(config or {}), **placed)
        wait_for(self.admin.create_topics([new])[topic])

        def led() -> bool:
            found = self.admin.list_topics(timeout=_LIMIT_S).topics.get(topic)
            return found is not None and sum(p.leader >= 0 for p in found.partitions.values()) == partitions

        wait_until(led, f"{topic} has leaders")
        return topic

    def configure(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        wait_for(self.admin.incremental_alter_configs([resource])[resource])

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until the cluster has forgotten it."""
        wait_for(self.admin.delete_topics([topic])[topic])
        wait_until(lambda: topic not in self.admin.list_topics(timeout=_LIMIT_S).topics, f"{topic} is deleted")

    def fill(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        partition: int = -1,
        key: bytes | None = None,
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        """Produce values in order and wait until all are delivered.

        A None is a tombstone; partition -1 leaves the choice to the partitioner.
        """
        errors: list[object] = []
        producer = Producer(
            {"bootstrap.servers": self.servers, "log_level": 0, "linger.ms": 5, "enable.idempotence": True}
        )
        producer.list_topics(timeout=_LIMIT_S)  # else the first record waits half a second for a connection
        for value in values:
            while True:
                try:
                    producer.produce(
                        topic,
                        value,
                        key,
                        on_delivery=lambda error, _: errors.append(error) if error else None,
                        partition=partition,
                        headers=headers,
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
        assert producer.flush(_LIMIT_S) == 0, f"{topic} was not filled in time"
        assert not errors, errors[:3]

    def messages(self, topic: str, *, committed: bool = True) -> list[Message]:
        """All records, partition by partition in log order.

        `committed`: what a ``read_committed`` reader sees, including every transaction that is decided already, without
        waiting for open transactions.
        """
        if committed:
            wait_for_decided_ends(self.servers)
        isolation = "read_committed" if committed else "read_uncommitted"
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "log_level": 0,
                "group.id": f"{self.prefix}.reader",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        found: list[tuple[int, int, Message]] = []
        try:
            partitions = sorted(consumer.list_topics(topic, _LIMIT_S).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            at_end: set[int] = set()
            limit = time.monotonic() + _LIMIT_S
            while len(at_end) < len(partitions):
                assert time.monotonic() < limit, f"{topic} was not read to its end in time"
                for message in consumer.consume(1000, 0.05):
                    error, partition = message.error(), message.partition()
                    assert partition is not None
                    if error is None:
                        offset = message.offset()
                        assert offset is not None
                        found.append((partition, offset, message))
                    elif error.name() == "_PARTITION_EOF":
                        at_end.add(partition)
                    else:
                        raise AssertionError(error)
        finally:
            consumer.close()
        return [message for _, _, message in sorted(found, key=lambda one: one[:2])]

    def read(self, topic: str, *, committed: bool = True) -> list[tuple[int, int, bytes | None, bytes | None]]:
        """The records of `messages`, as (partition, offset, key, value)."""
        found = self.messages(topic, committed=committed)
        # a message from the log has a partition and an offset
        return [(cast(int, m.partition()), cast(int, m.offset()), m.key(), m.value()) for m in found]

    def values(self, topic: str, *, committed: bool = True) -> list[bytes | None]:
        """The values of `read`, in the same order."""
        return [value for _, _, _, value in self.read(topic, committed=committed)]


def values(n: int, prefix: str = "v") -> list[bytes | None]:
    """Values that show their order."""
    return [f"{prefix}{i}".encode() for i in range(n)]


def transaction(topics: Topics, topic: str, n: int, *, commit: bool, partition: int = 0, prefix: str = "t") -> None:
    """Add ``n`` records in one transaction."""
    producer = Producer(
        {
            "bootstrap.servers": topics.servers,
            "log_level": 0,
            "transactional.id": f"{topics.prefix}.{time.monotonic_ns()}",
        }
    )
    producer.list_topics(timeout=_LIMIT_S)
    producer.init_transactions(_LIMIT_S)
    producer.begin_transaction()
    for value in values(n, prefix):
        producer.produce(topic, value, partition=partition)
    assert producer.flush(_LIMIT_S) == 0
    if commit:
        producer.commit_transaction(_LIMIT_S)
    else:
        producer.abort_transaction(_LIMIT_S)


def fill(topics: Topics, source: str, records: int) -> None:
    """Add ``records`` to each partition; the value shows the order, the key its partition."""
    for partition in range(3):
        values: list[bytes | None] = [b"%d-%d" % (partition, number) for number in range(records)]
        topics.fill(source, values, partition=partition, key=b"key-%d" % partition)


def wait_for(future: "Future[object]") -> object:
    """The result of an admin call, with a limit."""
    return future.result(_LIMIT_S)


def wait_for_decided_ends(servers: str) -> None:
    """Wait until the transactions that are ending now have ended.

    Brokers confirm an end when it is decided (KIP-98: PrepareCommit, PrepareAbort); readers see it a moment later, when
    its markers are written. Without this wait a reader that follows a commit may see none of its records.
    """
    admin = KafkaAdminClient(bootstrap_servers=servers)
    # the values: of a member, kafka-python 3.0.12 sends the Python name, which matches nothing
    ending = [TransactionState.PREPARE_COMMIT.value, TransactionState.PREPARE_ABORT.value]
    left: set[str] | None = None

    def have_ended() -> bool:
        nonlocal left
        try:
            listed = admin.list_transactions(state_filters=ending)
        except RetriableError:  # a broker loads its transactions, as after an election
            return False
        found = {one.transactional_id for of_broker in listed.values() for one in of_broker}
        left = found if left is None else left & found
        return not left

    try:
        wait_until(have_ended, "the transactions that are ending have ended")
    finally:
        admin.close()


def abort_with_the_brokers_tool(servers: str, topic: str, partition: int) -> None:
    """Abort every open transaction in one partition, as ``kafka-transactions abort --start-offset`` does: ask the
    leader which producers have a transaction open there, and have an ABORT marker written for each."""
    place = KafkaPartition(topic, partition)
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        found = [
            producer
            for producer in admin.describe_producers([place])[place].active_producers
            if producer.current_transaction_start_offset >= 0
        ]
        assert found, f"nothing is open in {topic}-{partition}"
        for producer in found:
            spec = AbortTransactionSpec(place, producer.producer_id, producer.producer_epoch, 0)
            admin.abort_transaction(spec)
    finally:
        admin.close()


def open_transactions_hold_back(servers: str, topic: str) -> dict[int, int]:
    """Per partition, the offsets withheld from a ``read_committed`` reader: high watermark - last stable offset.

    Transactions that are decided already do not count.
    """
    wait_for_decided_ends(servers)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    partitions = [TopicPartition(topic, p) for p in admin.list_topics(topic, _LIMIT_S).topics[topic].partitions]
    ends = []
    for isolation in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
        latest = OffsetSpec.latest()
        found = admin.list_offsets(dict.fromkeys(partitions, latest), isolation_level=isolation)
        ends.append({p.partition: future.result(_LIMIT_S).offset for p, future in found.items()})
    return {partition: high - ends[1][partition] for partition, high in ends[0].items()}


def assert_exactly_once(topics: Topics, source: str, sink: str, *, ordered: bool = True) -> None:
    """Check at rest that the output holds each input record once, in order per key if `ordered`; nothing is open."""
    held_back = open_transactions_hold_back(topics.servers, sink)
    assert not any(held_back.values()), f"transactions are open: {held_back}"
    given = [(key, value) for _, _, key, value in topics.read(source)]
    seen = [(key, value) for _, _, key, value in topics.read(sink)]
    missing, extra = Counter(given) - Counter(seen), Counter(seen) - Counter(given)
    assert not missing, f"{missing.total()} records lost, first: {list(missing)[:3]}"
    assert not extra, f"{extra.total()} records doubled or invented, first: {list(extra)[:3]}"
    assert not ordered or _by_key(given) == _by_key(seen), "records of one key changed their order"


def _by_key(records: list[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, list[bytes | None]]:
    ordered: dict[bytes | None, list[bytes | None]] = {}
    for key, value in records:
        ordered.setdefault(key, []).append(value)
    return ordered
