"""The contract's model side."""

from collections.abc import Sequence

from onceward.sinks.kafka.control.control_plane import ControlPlane
from tests.integration.kafka_model_contract.sides import Ids, client_config
from tests.support.kafka_model import (
    AddOffsets,
    AddPartitions,
    Cluster,
    CommitOffsets,
    DirectTransport,
    Offset,
    Partition,
    Produce,
    Record,
    Settings,
    SimControl,
    SimProducer,
)

__all__ = ["ModelSide"]


class ModelSide:
    """The model; waiting moves its clock."""

    def __init__(self, transaction_version: int) -> None:
        self.prefix = ""
        self._cluster = Cluster(Settings(transaction_version=transaction_version, timeout_scan_s=0.2))
        self._cluster.create_topic("onceward")
        self._transport = DirectTransport()
        self.control: ControlPlane = SimControl(self._cluster, self._transport)

    def create_topic(self, topic: str, partitions: int) -> None:
        self._cluster.create_topic(topic, partitions)

    def producer(self, transactional_id: str, timeout_ms: int, failures: list[object]) -> SimProducer:
        config = client_config(transactional_id, timeout_ms)
        return SimProducer(config, cluster=self._cluster, transport=self._transport, failed=failures.append)

    def wait(self, seconds: float) -> None:
        self._transport.sleep(seconds)

    def now(self) -> float:
        return self._transport.now()

    def read(self, topic: str, *, committed: bool) -> list[tuple[int, bytes | None]]:
        self._cluster.advance(self.now())
        return [
            (number, entry.record.value)
            for number in range(self._cluster.partitions(topic))
            for entry in self._cluster.log((topic, number)).read(0, committed=committed)[0]
            if entry.record is not None
        ]

    def ends(self, topic: str) -> list[tuple[int, int]]:
        self._cluster.advance(self.now())
        logs = [self._cluster.log((topic, number)) for number in range(self._cluster.partitions(topic))]
        return [(log.last_stable_offset, log.high_watermark) for log in logs]

    def add_partition(self, ids: Ids, partition: Partition) -> int:
        name, producer, epoch = ids
        request = AddPartitions(
            transactional_id=name, producer_id=producer, producer_epoch=epoch, partitions=[partition]
        )
        return self._code(request)

    def add_offsets(self, ids: Ids, group: str) -> int:
        name, producer, epoch = ids
        return self._code(AddOffsets(transactional_id=name, producer_id=producer, producer_epoch=epoch, group_id=group))

    def commit_offset(
        self, ids: Ids, group: str, partition: Partition, offset: int, metadata: str, *, implicit: bool
    ) -> int:
        name, producer, epoch = ids
        return self._code(
            CommitOffsets(
                transactional_id=name,
                group_id=group,
                producer_id=producer,
                producer_epoch=epoch,
                offsets={partition: Offset(offset=offset, metadata=metadata)},
                implicit=implicit,
            )
        )

    def produce(
        self, ids: Ids, partition: Partition, values: Sequence[bytes], sequence: int, *, implicit: bool
    ) -> tuple[int, int]:
        name, producer, epoch = ids
        request = Produce(
            partition=partition,
            records=tuple(Record(value=value) for value in values),
            transactional_id=name,
            producer_id=producer,
            producer_epoch=epoch,
            sequence=sequence,
            implicit=implicit,
        )
        answer = self._cluster.handle(1, request, self.now())
        return int(answer.error_code), int(answer.base_offset)

    def _code(self, request: object) -> int:
        return int(self._cluster.handle(1, request, self.now()).error_code)
