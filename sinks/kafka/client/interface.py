"""What writes records: one interface, whichever client does it. Errors are confluent-kafka's."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import pyarrow as pa

__all__ = ["GroupOffset", "Pending", "Producer", "UnfitRecordError"]


class UnfitRecordError(ValueError):
    """A record that Kafka cannot store, or whose fields are invalid."""


class GroupOffset(NamedTuple):
    """An offset of a consumer group without members."""

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str


class Pending(Protocol):
    """A request that was begun."""

    def join(self) -> None:
        """Wait until it is answered, or given up. While it waits, the transaction cannot be aborted."""

    def result(self) -> None:
        """Wait until it is answered. Raises KafkaException if it failed."""


class Producer(Protocol):
    """One transaction, or records without one. Not thread-safe.

    Dropping the last reference leaves an open transaction open: nothing is aborted.
    """

    slow_to_make: bool
    """Making one takes so long that it pays to make the next ahead."""
    accepted: int
    """Records that the client accepted since it was created."""
    partitions: dict[str, set[int]]
    """By topic, the partitions of those records, and of records that the client refused."""

    def __len__(self) -> int:
        """Return the number of records that are neither confirmed nor reported as failed."""

    def rebootstrap(self) -> None:
        """Call this while nothing is confirmed, as often as needed: the client may know no broker any more."""

    def load_metadata(self, timeout: float) -> None:
        """Load the topics' partitions from the brokers, before any other request. Raises KafkaException."""

    def partitions_of(self, topic: str) -> int | None:
        """Return how many partitions ``topic`` has, as last heard; None if that is not known."""

    def init_transactions(self, timeout: float) -> None:
        """Take over the transactional id and abort its open transaction. Raises KafkaException."""

    def begin_transaction(self) -> None:
        """Begin locally: the brokers learn of it with the first record. Raises KafkaException; in a transaction that is
        broken, its cause."""

    def abort_transaction(self, timeout: float) -> None:
        """Drop unconfirmed records and abort the transaction at the brokers. Raises KafkaException."""

    def produce(self, topic: str, records: pa.RecordBatch, full: Callable[[], None]) -> None:
        """Hand all ``records`` to the client, in order within each partition.

        ``records`` has the sink's columns: ``value`` and optionally ``key``, ``partition``, ``timestamp`` and
        ``headers``; partitions are not negative. ``full`` is called while the client's queue is full: it waits, or
        raises to give up. Raises KafkaException if a record is refused, UnfitRecordError if one cannot be written at
        all; some of the others may have been taken by then.
        """

    def poll(self, timeout: float) -> None:
        """Send, and report failures, for up to ``timeout`` s. Raises KafkaException after a fatal error."""

    def flush(self, timeout: float) -> int:
        """Wait for delivery; return the number of unconfirmed records. Raises KafkaException after a fatal error."""

    def purge(self) -> None:
        """Drop unconfirmed records; each is reported as failed."""

    def send_offset(self, offset: GroupOffset, timeout: float) -> Pending:
        """Begin to commit an offset in the transaction, beside its records."""
