"""The contract's broker side: real brokers."""

import itertools
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from onceward import KafkaCluster
from onceward.dev.kafka import LocalKafka
from onceward.sinks.kafka.client import ArrowProducer
from onceward.sinks.kafka.control.brokers import topic_facts
from onceward.sinks.kafka.control.control_plane import ControlPlane, CoordinatorKind
from tests.integration.kafka_model_contract.sides import Ids, client_config
from tests.support.kafka_model import Partition
from tests.support.waiting import wait_until

__all__ = ["AWAY", "BrokerSide", "ThreeBrokersSide"]

AWAY = 1
"""The broker that alone has the output topics of `ThreeBrokersSide`."""

_LIMIT_S = 30.0
_SILENT = logging.getLogger("tests.silent")
_SILENT.disabled = True
_IMPLICIT, _EXPLICIT = 12, 10
"""Versions of ProduceRequest: one enlists the partition, one needs it enlisted before (librdkafka's)."""


class BrokerSide:
    """A real single broker. `prefix` makes names unique."""

    def __init__(self, servers: str, prefix: str) -> None:
        self.prefix = prefix
        self._servers: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0}
        self._admin = AdminClient(dict(self._servers))
        self.control = ControlPlane(KafkaCluster(servers))
        self._kept: list[ArrowProducer] = []
        self._topics: list[str] = []
        if "onceward" not in self._admin.list_topics(timeout=_LIMIT_S).topics:
            self.create_topic("onceward", 1)

    def create_topic(self, topic: str, partitions: int) -> None:
        self._admin.create_topics([self._new(topic, partitions)])[topic].result(_LIMIT_S)
        deadline = time.monotonic() + _LIMIT_S
        while topic not in self._admin.list_topics(timeout=_LIMIT_S).topics:
            assert time.monotonic() < deadline, f"{topic} was not made in time"
            time.sleep(0.02)
        self._topics.append(topic)

    def _new(self, topic: str, partitions: int) -> NewTopic:
        return NewTopic(topic, partitions, 1)

    def lose_leaders(self, topic: str) -> None:
        raise NotImplementedError("a single broker is its own leader and coordinator")

    def regain_leaders(self, topic: str) -> None:
        raise NotImplementedError

    def producer(self, transactional_id: str, timeout_ms: int, failures: list[object]) -> ArrowProducer:
        config = client_config(transactional_id, timeout_ms)
        producer = ArrowProducer(
            {**self._servers, **config, "linger.ms": 2}, topics=self._topics, failed=failures.append, logger=_SILENT
        )
        producer.load_metadata(_LIMIT_S)
        self._kept.append(producer)
        return producer

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    def read(self, topic: str, *, committed: bool) -> list[tuple[int, bytes | None]]:
        consumer = Consumer(
            {
                **self._servers,
                "group.id": f"{self.prefix}.reader",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 5,
                "enable.partition.eof": True,
            }
        )
        numbers = sorted(consumer.list_topics(topic, _LIMIT_S).topics[topic].partitions)
        found: dict[int, list[bytes | None]] = {number: [] for number in numbers}
        at_end: set[int] = set()
        deadline = time.monotonic() + _LIMIT_S
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
            while len(at_end) < len(numbers):
                assert time.monotonic() < deadline, f"{topic} was not read in time"
                for message in consumer.consume(1000, 0.02):
                    number = message.partition()
                    assert number is not None
                    error = message.error()
                    if error is None:
                        found[number].append(message.value())
                    elif error.name() == "_PARTITION_EOF":
                        at_end.add(number)
                    else:
                        raise AssertionError(error)
        finally:
            consumer.close()
        return [(number, value) for number in numbers for value in found[number]]

    def ends(self, topic: str) -> list[tuple[int, int]]:
        numbers = sorted(self._admin.list_topics(topic, timeout=_LIMIT_S).topics[topic].partitions)
        ends: list[Mapping[int, int]] = []
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in numbers}
            answers = self._admin.list_offsets(asked, isolation_level=isolation)
            ends.append({where.partition: future.result(_LIMIT_S).offset for where, future in answers.items()})
        return [(ends[0][number], ends[1][number]) for number in numbers]

    def produce(
        self, ids: Ids, partition: Partition, values: Sequence[bytes], sequence: int, *, implicit: bool
    ) -> tuple[int, int]:
        name, producer, epoch = ids
        builder = MemoryRecordsBuilder(
            magic=2,
            compression_type=0,
            batch_size=1 << 20,
            transactional=True,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        for value in values:
            builder.append(timestamp=None, key=None, value=value)
        builder.close()
        version = _IMPLICIT if implicit else _EXPLICIT
        topic = ProduceRequest.TopicProduceData
        request = ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[
                topic(
                    name=partition[0],
                    partition_data=[topic.PartitionProduceData(index=partition[1], records=bytes(builder.buffer()))],
                )
            ],
            min_version=version,
            max_version=version,
        )
        answer = self.control.ask(request, node=1).responses[0].partition_responses[0]
        return int(answer.error_code), int(answer.base_offset)

    def close(self) -> None:
        """Drop the producers without closing them: closing would abort."""
        self._kept.clear()
        self.control.close()


class ThreeBrokersSide(BrokerSide):
    """Three real brokers. One of them has all output, and the offsets of some groups."""

    def __init__(self, kafka: LocalKafka, job: str, groups: Collection[str]) -> None:
        """`groups`: short names of those whose offsets go away with the output."""
        self._kafka = kafka
        super().__init__(kafka.bootstrap_servers, "")
        tries = itertools.count()
        while not self.prefix or any(self._coordinator(f"{self.prefix}{group}") != AWAY for group in groups):
            self.prefix = f"{job}.{next(tries)}."

    def _coordinator(self, group: str) -> int:
        nodes: list[int] = []

        def known() -> bool:
            nodes.append(self.control.locate(CoordinatorKind.GROUP, [group])[group].node)
            return nodes[-1] >= 0

        wait_until(known, f"{group} has a coordinator")
        return nodes[-1]

    def _new(self, topic: str, partitions: int) -> NewTopic:
        return NewTopic(topic, num_partitions=partitions, replica_assignment=[[AWAY]] * partitions)

    def lose_leaders(self, topic: str) -> None:
        self._kafka.kill(AWAY)
        wait_until(lambda: self._leaders(topic) == {-1}, f"{topic} has no leader")

    def regain_leaders(self, topic: str) -> None:
        self._kafka.restart(AWAY)
        wait_until(lambda: self._leaders(topic) == {AWAY}, f"{topic} has a leader")
        wait_until(lambda: self._answers(topic), f"the leader of {topic} knows that it leads")

    def _answers(self, topic: str) -> bool:
        """The other brokers may know the new leader, and its epoch, before it does: UNKNOWN_LEADER_EPOCH."""
        try:
            self.ends(topic)
        except KafkaException:
            return False
        return True

    def _leaders(self, topic: str) -> set[int]:
        return set(topic_facts(self.control, [topic])[topic].leaders.values())
