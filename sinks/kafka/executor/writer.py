"""Writes one slot: transaction, records, receipt, flush, vote. Runs on executors.

Imports only the standard library, pyarrow, numpy, confluent_kafka and our pure modules.

The receipt is begun once the first records are on their way, which hides its two round trips behind the other records.
This is safe: a receipt is committed or aborted with its transaction, and the vote waits for the receipt and
for the flush, which reports delivery failures (see ``delivery.py``).

After the vote the producer is dropped, which leaves the transaction open: any process with the committable ends it.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from onceward.common.killpoints import KillPoint, kill_point
from onceward.connections.cluster import KafkaCluster
from onceward.connectors.slots import AnnouncingSlot, SlotContext
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.sinks.kafka.client import GroupOffset, Pending, Producer
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor.delivery import Delivery
from onceward.sinks.kafka.executor.fitting import Fitting
from onceward.sinks.kafka.executor.producers import PoolKey, PreparedProducer, ProducerPool, batch_limits, pool_for
from onceward.sinks.kafka.executor.slot import RecordsSlot
from onceward.sinks.kafka.identifiers import TransactionalId
from onceward.sinks.kafka.topic_limits import TopicLimits

__all__ = ["COMMITTED_OPTION", "KafkaSlotWriter"]

COMMITTED_OPTION = "committed"
"""Sink option: id suffix -> last checkpoint whose transaction under that id is settled as committed."""

_RECEIPT_TOPIC = "onceward"  # as in receipts.py, which executors cannot import
_CALL_LIMIT_S = 30.0
_ABORT_LIMIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class KafkaSlotWriter:
    """A :class:`StayingWriter`; pickled to executors, where secrets are resolved."""

    cluster: KafkaCluster
    topic: str | None
    """The topic of all records; None to route by the ``topic`` column."""
    topics: tuple[str, ...]
    """Topics that the ``topic`` column may name."""
    transaction_timeout_ms: int
    limit_ms: int
    """Limit for a slot."""
    topic_limits: tuple[TopicLimits, ...] = ()
    """Of ``topics``."""
    stays: bool = False
    """For tasks that stay."""

    def open(self, context: SlotContext) -> AnnouncingSlot:
        """Return a slot that begins its transaction with the first record."""
        return _Slot(self, context)

    def mark(self, task: CheckpointTask, sink: str) -> str:
        """Return the worker part of this process's transactional ids."""
        return self.pool(task, sink).worker

    def pool(self, task: CheckpointTask, sink: str) -> ProducerPool:
        """Return this process's producers."""
        return pool_for(
            PoolKey(
                job=task.job,
                sink=sink,
                generation=task.generation,
                cluster=self.cluster,
                transaction_timeout_ms=self.transaction_timeout_ms,
                topics=self.topics,
                batch_limits=batch_limits(self.topic_limits),
                stays=self.stays,
            )
        )


class _Slot(RecordsSlot):
    """A slot in one transaction. Without records there is none: other processes could not commit an empty one."""

    def __init__(self, writer: KafkaSlotWriter, context: SlotContext) -> None:
        fitting = Fitting(cluster=writer.cluster, topic=writer.topic, topics=writer.topics, limits=writer.topic_limits)
        super().__init__(context, fitting, limit_ms=writer.limit_ms)
        self._writer = writer
        self._begun: _Transaction | None = None
        self._announced: Vote | None = None

    def _begin(self, first: pa.RecordBatch) -> Delivery:
        task = self._context.task
        pool = self._writer.pool(task, self._context.sink)
        committed: Mapping[str, int] = self._context.options.get(COMMITTED_OPTION, {})
        kill_point(KillPoint.TASK_BEFORE_BEGIN)
        prepared = pool.take(committed)
        delivery = self._new_delivery(prepared.producer, prepared.failures, failed=partial(_failed, prepared))
        receipt = _Receipt(prepared.producer, prepared.id, task.checkpoint)
        self._begun = _Transaction(pool=pool, prepared=prepared, delivery=delivery, receipt=receipt)
        with delivery.client_says():
            prepared.producer.begin_transaction()
        kill_point(KillPoint.TASK_AFTER_BEGIN)
        delivery.produce(first)
        kill_point(KillPoint.TASK_MID_WRITE)
        receipt.start()
        return delivery

    def announce(self) -> Vote | None:
        """Return the vote when the client has all records and the receipt is written, before the brokers have confirmed
        the records. The vote names the partitions that they are in. Raises DeliveryError and RouteError."""
        if self._begun is not None:
            self._hand_over()
            self._announced = self._vote_of(self._begun, partitions=True)
        return self._announced

    def finish(self) -> Vote:
        """Wait until the brokers have confirmed every record. Raises DeliveryError and RouteError."""
        begun = self._begun
        if begun is None:
            return self._vote()
        self._hand_over()
        vote = self._announced or self._vote_of(begun)
        begun.delivery.flush()
        kill_point(KillPoint.TASK_AFTER_FLUSH)
        begun.pool.voted(begun.prepared.id, self._context.task.checkpoint)
        begun.pool.retire(begun.prepared)
        return vote

    def abandon(self) -> None:
        """Abort the transaction as far as possible, and retire its id: the driver fences what stays open. Errors are
        suppressed, so that the original cause is reported."""
        begun = self._begun
        if begun is None:
            return
        begun.receipt.join()
        begun.pool.failed()
        with contextlib.suppress(KafkaException):
            begun.prepared.producer.abort_transaction(_ABORT_LIMIT_S)

    def _vote_of(self, begun: "_Transaction", *, partitions: bool = False) -> Vote:
        """Return the vote once the receipt is written."""
        with begun.delivery.client_says(), _right_named(self._context.task.job):
            begun.receipt.require_written()
        kill_point(KillPoint.TASK_AFTER_RECEIPT)
        body: dict[str, Any] = {
            "id": str(begun.prepared.id),
            "token": begun.receipt.token,
            "topics": dict(begun.delivery.records),
            "timeout_ms": self._writer.transaction_timeout_ms,
        }
        if partitions:
            used = begun.prepared.producer.partitions
            body["partitions"] = {topic: sorted(numbers) for topic, numbers in used.items()}
        return self._vote(begun.delivery, **body)


@dataclass(frozen=True, kw_only=True)
class _Transaction:
    """What a slot uses from its first record on."""

    pool: ProducerPool
    prepared: PreparedProducer
    delivery: Delivery
    receipt: "_Receipt"


class _Receipt:
    """A receipt in the open transaction, written while the records are."""

    def __init__(self, producer: Producer, identifier: TransactionalId, checkpoint: int) -> None:
        self._producer = producer
        self.token = secrets.token_hex(8)
        self._offset = GroupOffset(str(identifier), _RECEIPT_TOPIC, 0, checkpoint, self.token)
        self._pending: Pending | None = None

    def start(self) -> None:
        kill_point(KillPoint.TASK_BEFORE_RECEIPT)
        self._pending = self._producer.send_offset(self._offset, _CALL_LIMIT_S)

    def join(self) -> None:
        """Wait for the request, if it was begun: a transaction can be aborted only while no other one is open in it."""
        if self._pending is not None:
            self._pending.join()

    def require_written(self) -> None:
        """Wait until it is written. Raises KafkaException."""
        assert self._pending is not None, "the receipt was begun"
        self._pending.result()


@contextlib.contextmanager
def _right_named(job: str) -> Iterator[None]:
    """Convert the refusal of a receipt. The client may report it as an error of its own, so others pass unchanged."""
    try:
        yield
    except KafkaException as error:
        code = error.args[0].code()
        missing = {
            KafkaError.GROUP_AUTHORIZATION_FAILED: f"READ on Group prefix '{job}.'",
            KafkaError.TOPIC_AUTHORIZATION_FAILED: f"READ on Topic '{_RECEIPT_TOPIC}'",
        }.get(code)
        if missing is None:
            raise
        raise DeliveryError(
            f"The executors' user may not write a receipt: {error.args[0].name()}. The slot does not vote, nothing of "
            f"it becomes visible and its records are written again. Grant {missing}."
        ) from error


def _failed(prepared: PreparedProducer, why: str) -> DeliveryError:
    return DeliveryError(
        f"Transaction {prepared.id} was not delivered: {why}. The slot does not vote, nothing of it becomes visible "
        "and its records are written again. Check the brokers, the topic's limits and the user's rights."
    )
