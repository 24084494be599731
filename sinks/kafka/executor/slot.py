"""What the slots of both writers share: columns, small batches, and the count of the vote. Runs on executors.

Imports only the standard library, pyarrow, numpy, confluent_kafka and our pure modules.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from onceward.connectors.slots import SlotContext, Unfit
from onceward.connectors.tasks import Vote
from onceward.sinks.kafka.executor.batches import BatchColumns, JoinedBatches
from onceward.sinks.kafka.executor.delivery import Delivery
from onceward.sinks.kafka.executor.fitting import Fitting

__all__ = ["RecordsSlot"]


class RecordsSlot(ABC):
    """A :class:`CheckingSlot` that begins with its first record: without records it asks nothing of the brokers."""

    def __init__(self, context: SlotContext, fitting: Fitting, *, limit_ms: int) -> None:
        """``limit_ms``: see :class:`Delivery`."""
        self._context, self._fitting = context, fitting
        self._columns = BatchColumns(routed=fitting.topic is None)
        self._joined: JoinedBatches | None = None
        self._new_delivery = partial(Delivery, topic=fitting.topic, topics=fitting.topics, limit_ms=limit_ms)

    def unfit(self, batch: pa.RecordBatch) -> Iterator[Unfit]:
        """See :meth:`CheckingSlot.unfit`. Raises ConfigurationError for a batch that cannot be written."""
        return self._fitting.unfit(self._columns.of(batch))

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand the records to the client, those of small batches together. Raises DeliveryError, RouteError, and
        ConfigurationError for a batch that cannot be written."""
        taken = self._columns.of(batch)
        if not taken.num_rows:
            return
        if self._joined is None:
            # at once: it begins a transaction, and an error in it should surface
            self._joined = JoinedBatches(self._begin(taken).produce)
        else:
            self._joined.add(taken)

    @abstractmethod
    def _begin(self, first: pa.RecordBatch) -> Delivery:
        """Begin the slot and produce ``first``."""

    def _hand_over(self) -> None:
        """Produce what still waits to be joined."""
        if self._joined is not None:
            self._joined.hand_over()

    def _vote(self, delivery: Delivery | None = None, **body: Any) -> Vote:
        """Return the vote for what the client has accepted; without a delivery, for no records."""
        records, size = (0, 0) if delivery is None else (delivery.records.total(), delivery.bytes)
        return Vote(slot=self._context.slot, attempt=self._context.attempt, records=records, bytes=size, body=body)
