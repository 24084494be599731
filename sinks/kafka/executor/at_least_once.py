"""Writes one slot without a transaction: records, flush, count, vote. Runs on executors.

Imports only the standard library, pyarrow, numpy, confluent_kafka and our pure modules.

Records are visible as soon as they are written, and remain if the checkpoint is aborted; a later checkpoint then reads
and writes them again. The vote rests on the same count as the transactional writer's (see ``delivery.py``):
every record that the client accepted was delivered, so a completed checkpoint misses none.

A producer serves the slots of its process in sequence: after a vote it has no request in flight. After a failure the
producer is not reused, and its undelivered records are dropped.
"""

import contextlib
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from confluent_kafka import KafkaException

from onceward.common.killpoints import KillPoint, kill_point
from onceward.connections.cluster import KafkaCluster
from onceward.connections.per_process import PerProcess
from onceward.connectors.slots import OpenSlot, SlotContext
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor.delivery import Delivery
from onceward.sinks.kafka.executor.fitting import Fitting
from onceward.sinks.kafka.executor.producers import IdleProducer, batch_limits, connected, producer_settings
from onceward.sinks.kafka.executor.slot import RecordsSlot
from onceward.sinks.kafka.topic_limits import TopicLimits

__all__ = ["AtLeastOnceWriter"]


_idle: "PerProcess[AtLeastOnceWriter, IdleProducer]" = PerProcess()


@dataclass(frozen=True, kw_only=True)
class AtLeastOnceWriter:
    """A :class:`StayingWriter`; pickled to executors, where secrets are resolved."""

    cluster: KafkaCluster
    topic: str | None
    """The topic of all records; None to route by the ``topic`` column."""
    topics: tuple[str, ...]
    """Topics that the ``topic`` column may name."""
    limit_ms: int
    """Limit for a record to be delivered, and for the whole slot."""
    topic_limits: tuple[TopicLimits, ...] = ()
    """Of ``topics``."""

    def open(self, context: SlotContext) -> OpenSlot:
        """Return a slot that takes a producer with the first record."""
        return _Slot(self, context)

    def mark(self, task: CheckpointTask, sink: str) -> str:
        """Return nothing: there are no transactions."""
        return ""

    def take(self) -> IdleProducer:
        """Return this process's producer for this sink; a new one if there is no usable one. Raises DeliveryError."""
        kept = _idle.mine()
        idle = kept.pop(self, None)
        kept.clear()  # producers of other jobs or settings, which no slot will use again
        return idle if idle is not None and idle.usable else self._make()

    def _make(self) -> IdleProducer:
        settings = producer_settings(self.cluster, batch_limits(self.topic_limits))
        config = self.cluster.client_config(**settings, **{"delivery.timeout.ms": self.limit_ms})
        try:
            producer, failures = connected(config, self.topics)
        except KafkaException as error:
            raise _failed(slot=None, why=str(error)) from error
        return IdleProducer(producer=producer, failures=failures)


class _Slot(RecordsSlot):
    """A slot without a transaction. The driver has nothing to prove before :meth:`finish`, so it announces no vote."""

    def __init__(self, writer: AtLeastOnceWriter, context: SlotContext) -> None:
        fitting = Fitting(cluster=writer.cluster, topic=writer.topic, topics=writer.topics, limits=writer.topic_limits)
        super().__init__(context, fitting, limit_ms=writer.limit_ms)
        self._writer = writer
        self._begun: tuple[IdleProducer, Delivery] | None = None

    def _begin(self, first: pa.RecordBatch) -> Delivery:
        kill_point(KillPoint.TASK_BEFORE_BEGIN)
        idle = self._writer.take()
        delivery = self._new_delivery(idle.producer, idle.failures, failed=partial(_failed, self._context.slot))
        self._begun = idle, delivery
        delivery.produce(first)
        kill_point(KillPoint.TASK_MID_WRITE)
        return delivery

    def finish(self) -> Vote:
        """Wait until the brokers have confirmed every record. The vote has no body, because there is nothing to commit.
        Raises DeliveryError and RouteError."""
        if self._begun is None:
            return self._vote()
        idle, delivery = self._begun
        self._hand_over()
        delivery.flush()
        kill_point(KillPoint.TASK_AFTER_FLUSH)
        _idle.mine()[self._writer] = idle
        return self._vote(delivery)

    def abandon(self) -> None:
        """Drop the records that were not yet sent: they would only become duplicates."""
        if self._begun is not None:
            idle, _ = self._begun
            with contextlib.suppress(KafkaException):
                idle.producer.purge()


def _failed(slot: int | None, why: str) -> DeliveryError:
    what = "A slot" if slot is None else f"Slot {slot}"
    return DeliveryError(
        f"{what} was not delivered: {why}. It does not vote; its records are written again, and those that "
        "the brokers took already are there twice then. Check the brokers, the topic's limits and the user's rights."
    )
