"""The contract's model side."""

from collections.abc import Sequence

from onceward.sinks.kafka.control.control_plane import ControlPlane
from tests.integration.kafka_model_contract.sides import Ids, client_config
from tests.support.kafka_model import (
    OFFSETS_TOPIC,
    Cluster,
    DirectTransport,
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
        self._away: set[str] = set()
        """Topics that no coordinator knows a leader of."""
        settings = Settings(
            transaction_version=transaction_version,
            timeout_scan_s=0.2,
            skips_marker=lambda _id, partition: partition[0] in self._away,
        )
        self._cluster = Cluster(settings)
        self._cluster.create_topic("onceward")
        self._transport = DirectTransport()
        self.control: ControlPlane = SimControl(self._cluster, self._transport)

    def create_topic(self, topic: str, partitions: int) -> None:
        self._cluster.create_topic(topic, partitions)

    def lose_leaders(self, topic: str) -> None:
        self._away = {topic, OFFSETS_TOPIC}

    def regain_leaders(self, topic: str) -> None:
        self._away = set()

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
