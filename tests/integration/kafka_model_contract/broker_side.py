"""The contract's broker side: a real single broker."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka.record.memory_records import MemoryRecordsBuilder

from onceward import KafkaCluster
from onceward.sinks.kafka.client import ArrowProducer
from onceward.sinks.kafka.control.control_plane import ControlPlane, CoordinatorKind, NoAnswer
from tests.integration.kafka_model_contract.sides import Ids, away, client_config
from tests.support.kafka_model import Partition

__all__ = ["BrokerSide"]

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
        self._admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(_LIMIT_S)
        deadline = time.monotonic() + _LIMIT_S
        while topic not in self._admin.list_topics(timeout=_LIMIT_S).topics:
            assert time.monotonic() < deadline, f"{topic} was not made in time"
            time.sleep(0.02)
        self._topics.append(topic)

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

    def add_partition(self, ids: Ids, partition: Partition) -> int:
        name, producer, epoch = ids
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=partition[0], partitions=[partition[1]])
            ],
            min_version=3,
            max_version=3,
        )
        answer = self.control.send_located(CoordinatorKind.TRANSACTION, {name: request})[name]
        if isinstance(answer, NoAnswer):
            return away(answer)
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def add_offsets(self, ids: Ids, group: str) -> int:
        name, producer, epoch = ids
        request = AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=producer, producer_epoch=epoch, group_id=group, max_version=3
        )
        answer = self.control.send_located(CoordinatorKind.TRANSACTION, {name: request})[name]
        return away(answer) if isinstance(answer, NoAnswer) else int(answer.error_code)

    def commit_offset(
        self, ids: Ids, group: str, partition: Partition, offset: int, metadata: str, *, implicit: bool
    ) -> int:
        name, producer, epoch = ids
        version = 5 if implicit else 3
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        request = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=producer,
            producer_epoch=epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                topic(
                    name=partition[0],
                    partitions=[
                        topic.TxnOffsetCommitRequestPartition(
                            partition_index=partition[1],
                            committed_offset=offset,
                            committed_leader_epoch=-1,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
            min_version=version,
            max_version=version,
        )
        answer = self.control.send_located(CoordinatorKind.GROUP, {group: request})[group]
        if isinstance(answer, NoAnswer):
            return away(answer)
        return int(answer.topics[0].partitions[0].error_code)

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
