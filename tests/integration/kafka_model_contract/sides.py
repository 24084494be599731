"""The interface of the two sides on which a script is played: the broker and the model."""

from collections.abc import Sequence
from typing import Any, Protocol

from onceward.sinks.kafka.control.control_plane import ControlPlane, NoAnswer
from tests.support.kafka_model import Partition

__all__ = ["Ids", "Side", "away", "client_config"]

Ids = tuple[str, int, int]
"""Transactional id, producer id, epoch."""


class Side(Protocol):
    """What a script needs besides the product's control plane. Codes are the protocol's."""

    prefix: str
    """Makes names unique."""
    control: ControlPlane

    def create_topic(self, topic: str, partitions: int) -> None: ...

    def lose_leaders(self, topic: str) -> None:
        """Take away all replicas of the topic, and of the groups' offsets if there is a broker for that."""

    def regain_leaders(self, topic: str) -> None: ...

    def producer(self, transactional_id: str, timeout_ms: int, failures: list[object]) -> Any:
        """A producer, neither initialised nor begun. `failures` receives the reports of undelivered records."""

    def wait(self, seconds: float) -> None: ...

    def now(self) -> float: ...

    def read(self, topic: str, *, committed: bool) -> list[tuple[int, bytes | None]]:
        """(partition, value) of each record that a reader gets now, partition by partition."""

    def ends(self, topic: str) -> list[tuple[int, int]]:
        """Per partition: the last stable offset and the high watermark."""

    def produce(
        self, ids: Ids, partition: Partition, values: Sequence[bytes], sequence: int, *, implicit: bool
    ) -> tuple[int, int]:
        """(code, offset of the first record)."""


def client_config(transactional_id: str, timeout_ms: int) -> dict[str, Any]:
    """The shared settings of a producer; each side adds its own."""
    return {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "enable.idempotence": True,
        "acks": "all",
    }


def away(answer: NoAnswer) -> int:
    """The code of an answer without a coordinator: a new broker creates coordinators when first asked for them."""
    assert answer.code is not None, answer
    return answer.code
