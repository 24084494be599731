"""What the slots of both writers share: columns, small batches, and the count of the vote. Runs on executors.

Imports only the standard library, pyarrow, numpy, confluent_kafka and our pure modules.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from onceward.connectors.slots import SlotContext
from onceward.connectors.tasks import Vote
from onceward.sinks.kafka.executor.batches import BatchColumns, JoinedBatches
from onceward.sinks.kafka.executor.delivery import Delivery

__all__ = ["RecordsSlot"]


class RecordsSlot(ABC):
    """An :class:`OpenSlot` that begins with its first record: without records it asks nothing of the brokers."""

    def __init__(self, context: SlotContext, *, routed: bool) -> None:
        """``routed``: route by the ``topic`` column."""
        self._context = context
        self._columns = BatchColumns(routed=routed)
        self._delivery: Delivery | None = None
        self._joined: JoinedBatches | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand the records to the client, those of small batches together. Raises DeliveryError, RouteError, and
        ConfigurationError for a batch that cannot be written."""
        taken = self._columns.of(batch)
        if not taken.num_rows:
            return
        if self._joined is None:
            # at once: it begins a transaction, and an error in it should surface
            self._delivery = self._begin(taken)
            self._joined = JoinedBatches(self._delivery.produce)
        else:
            self._joined.add(taken)

    @abstractmethod
    def _begin(self, first: pa.RecordBatch) -> Delivery:
        """Begin the slot and produce ``first``."""

    def _all_produced(self) -> Delivery | None:
        """Hand over what still waits to be joined; return the delivery, None without records."""
        if self._joined is not None:
            self._joined.hand_over()
        return self._delivery

    def _vote(self, body: Mapping[str, Any]) -> Vote:
        """Return the vote for what the client has accepted."""
        delivery, context = self._delivery, self._context
        records, size = (0, 0) if delivery is None else (delivery.records.total(), delivery.bytes)
        return Vote(slot=context.slot, attempt=context.attempt, records=records, bytes=size, body=body)
