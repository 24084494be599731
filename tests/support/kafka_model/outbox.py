"""Records that a producer has accepted and the brokers have not confirmed."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from tests.support.kafka_model.settings import Partition, Produce, Record

__all__ = ["Outbox"]

_BATCH = 10_000


class Outbox:
    """Records by partition, with at most one batch in flight for each. That batch does not change until it is answered,
    so that the broker recognises a repeated one."""

    def __init__(self) -> None:
        self.oldest = 0.0
        """Since when something has waited without a confirmation."""
        self.doubtful = False
        """Whether a dropped batch may have arrived: its sequence must not be used again."""
        self._queued: dict[Partition, deque[Record]] = {}
        self._in_flight: dict[Partition, Produce] = {}
        self._sequences: dict[Partition, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, partition: Partition, record: Record, now: float) -> None:
        if not self._length:
            self.oldest = now
        self._queued.setdefault(partition, deque()).append(record)
        self._length += 1

    def waiting(self) -> list[Partition]:
        return [partition for partition, records in self._queued.items() if records]

    def in_flight(self, make: Callable[[Partition, Sequence[Record], int], Produce]) -> Mapping[Partition, Produce]:
        """The batch to send or resend for each partition. `make` receives its records and first sequence."""
        for partition in self.waiting():
            if partition not in self._in_flight:
                records = tuple(islice(self._queued[partition], _BATCH))
                self._in_flight[partition] = make(partition, records, self._sequences.get(partition, 0))
        return dict(self._in_flight)

    def delivered(self, partition: Partition, now: float) -> None:
        """Confirm the partition's batch."""
        batch = self._in_flight.pop(partition)
        self._sequences[partition] = batch.sequence + len(batch.records)
        queued = self._queued[partition]
        for _ in batch.records:
            queued.popleft()
        self._length -= len(batch.records)
        self.oldest = now

    def drop(self) -> list[Record]:
        """Forget everything unconfirmed, and return it."""
        dropped = [record for records in self._queued.values() for record in records]
        self.doubtful = self.doubtful or bool(self._in_flight)
        self._queued.clear()
        self._in_flight.clear()
        self._length = 0
        return dropped
