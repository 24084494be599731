"""Writes one slot without a transaction: records, flush, count, vote. Runs on executors.

Imports only the standard library, pyarrow, numpy, confluent_kafka and our pure modules.

Records are visible as soon as they are written, and remain if the checkpoint is aborted; a later checkpoint then reads
and writes them again. The vote rests on the same count as the transactional writer's (see ``delivery.py``):
every record that the client accepted was delivered, so a completed checkpoint misses none.

A producer serves the slots of its process in sequence: after a vote it has no request in flight. After a failure the
producer is not reused, and its undelivered records are dropped.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from confluent_kafka import KafkaException

from onceward.common.killpoints import KillPoint, kill_point
from onceward.connections.cluster import KafkaCluster
from onceward.connections.per_process import PerProcess
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor.batches import BatchColumns
from onceward.sinks.kafka.executor.delivery import Delivery
from onceward.sinks.kafka.executor.producers import IdleProducer, connected, producer_settings

__all__ = ["AtLeastOnceWriter"]


_idle: "PerProcess[AtLeastOnceWriter, IdleProducer]" = PerProcess()


@dataclass(frozen=True, kw_only=True)
class AtLeastOnceWriter:
    """A :data:`SlotWriter`; pickled to executors, where secrets are resolved."""

    cluster: KafkaCluster
    topic: str | None
    """The topic of all records; None to route by the ``topic`` column."""
    topics: tuple[str, ...]
    """Topics that the ``topic`` column may name."""
    limit_ms: int
    """Limit for a record to be delivered, and for the whole slot."""
    batch_limits: tuple[int, ...] = ()
    """Bytes of the largest batch that each topic accepts; empty if the brokers do not report it."""

    def __call__(
        self,
        task: CheckpointTask,
        slot: int,
        attempt: int,
        batches: Iterator[pa.RecordBatch],
        sent: Callable[[Vote], None] | None = None,
    ) -> Vote:
        """Write ``batches`` and vote once the brokers have confirmed every record. ``sent``: not called, because
        the driver has nothing to prove meanwhile.

        The vote has no body, because there is nothing to commit. Raises DeliveryError, RouteError, ConfigurationError
        for batches that cannot be written, and whatever ``batches`` raises.
        """
        filled = BatchColumns(routed=self.topic is None).filled(batches)
        first = next(filled, None)
        if first is None:
            return Vote(slot=slot, attempt=attempt, records=0, bytes=0)
        kill_point(KillPoint.TASK_BEFORE_BEGIN)
        idle = self._take()
        try:
            delivery = Delivery(
                idle.producer,
                idle.failures,
                topic=self.topic,
                topics=self.topics,
                limit_ms=self.limit_ms,
                failed=partial(_failed, slot),
            )
            delivery.produce(first)
            kill_point(KillPoint.TASK_MID_WRITE)
            for batch in filled:
                delivery.produce(batch)
            delivery.flush()
        except BaseException:
            with contextlib.suppress(KafkaException):
                idle.producer.purge()  # records not yet sent would only become duplicates
            raise
        kill_point(KillPoint.TASK_AFTER_FLUSH)
        _idle.mine()[self] = idle
        return Vote(slot=slot, attempt=attempt, records=delivery.records.total(), bytes=delivery.bytes)

    def mark(self, task: CheckpointTask) -> str:
        """Return nothing: there are no transactions."""
        return ""

    def _take(self) -> IdleProducer:
        """Return this process's producer for this sink; a new one if there is no usable one."""
        kept = _idle.mine()
        idle = kept.pop(self, None)
        kept.clear()  # producers of other jobs or settings, which no slot will use again
        return idle if idle is not None and idle.usable else self._make()

    def _make(self) -> IdleProducer:
        settings = producer_settings(self.cluster, self.batch_limits)
        config = self.cluster.client_config(**settings, **{"delivery.timeout.ms": self.limit_ms})
        try:
            producer, failures = connected(config, self.topics)
        except KafkaException as error:
            raise _failed(slot=None, why=str(error)) from error
        return IdleProducer(producer=producer, failures=failures)


def _failed(slot: int | None, why: str) -> DeliveryError:
    what = "A slot" if slot is None else f"Slot {slot}"
    return DeliveryError(
        f"{what} was not delivered: {why}. It does not vote; its records are written again, and those that "
        "the brokers took already are there twice then. Check the brokers, the topic's limits and the user's rights."
    )
