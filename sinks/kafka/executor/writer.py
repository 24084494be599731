"""Writes one slot: transaction, records, receipt, flush, vote. Runs on executors.

Imports only the standard library, pyarrow, numpy, confluent_kafka and our pure modules.

A thread adds the receipt once the first records are on their way, which hides its two round trips behind the other
records. This is safe: a receipt is committed or aborted with its transaction, and the vote waits for the receipt and
for the flush, which reports delivery failures (see ``delivery.py``).

After the vote the producer is dropped, which leaves the transaction open: any process with the committable ends it.
"""

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from onceward.common.killpoints import KillPoint, kill_point
from onceward.connections.cluster import KafkaCluster
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.sinks.kafka.client import ArrowProducer
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor.batches import BatchColumns
from onceward.sinks.kafka.executor.delivery import Delivery
from onceward.sinks.kafka.executor.producers import PoolKey, PreparedProducer, ProducerPool, pool_for
from onceward.sinks.kafka.identifiers import TransactionalId

__all__ = ["COMMITTED_OPTION", "KafkaSlotWriter"]

COMMITTED_OPTION = "committed"
"""Sink option: id suffix -> last checkpoint whose transaction under that id is settled as committed."""

_RECEIPT_TOPIC = "onceward"  # as in receipts.py, which executors cannot import
_CALL_LIMIT_S = 30.0
_ABORT_LIMIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class KafkaSlotWriter:
    """A :data:`SlotWriter`; pickled to executors, where secrets are resolved."""

    cluster: KafkaCluster
    topic: str | None
    """The topic of all records; None to route by the ``topic`` column."""
    topics: tuple[str, ...]
    """Topics that the ``topic`` column may name."""
    transaction_timeout_ms: int
    batch_limits: tuple[int, ...] = ()
    """Bytes of the largest batch that each topic accepts; empty if the brokers do not report it."""
    stays: bool = False
    """For tasks that stay."""

    def __call__(
        self,
        task: CheckpointTask,
        slot: int,
        attempt: int,
        batches: Iterator[pa.RecordBatch],
        sent: Callable[[Vote], None] | None = None,
    ) -> Vote:
        """Write ``batches`` in one transaction and vote.

        A slot without records has no transaction: other processes could not commit an empty one. ``sent``: called with
        the vote to come when the client has all records and the receipt is written, before the brokers have confirmed
        the records.

        Raises DeliveryError, RouteError, ConfigurationError for batches that cannot be written, and whatever
        ``batches`` raises; the transaction is aborted as far as possible and its id retired.
        """
        filled = BatchColumns(routed=self.topic is None).filled(batches)
        first = next(filled, None)
        if first is None:
            return Vote(slot=slot, attempt=attempt, records=0, bytes=0)
        pool = self._pool(task)
        committed: Mapping[str, int] = task.sink_options.get(COMMITTED_OPTION, {})
        kill_point(KillPoint.TASK_BEFORE_BEGIN)
        prepared = pool.take(committed)
        try:
            vote = self._write(prepared, task, slot, attempt, first, filled, sent)
        except BaseException:
            _abort(prepared, pool)
            raise
        pool.voted(prepared.id, task.checkpoint)
        pool.retire(prepared)
        return vote

    def mark(self, task: CheckpointTask) -> str:
        """Return the worker part of this process's transactional ids."""
        return self._pool(task).worker

    def _pool(self, task: CheckpointTask) -> ProducerPool:
        return pool_for(
            PoolKey(
                job=task.job,
                sink=task.sink,
                generation=task.generation,
                cluster=self.cluster,
                transaction_timeout_ms=self.transaction_timeout_ms,
                topics=self.topics,
                batch_limits=self.batch_limits,
                stays=self.stays,
            )
        )

    def _write(
        self,
        prepared: PreparedProducer,
        task: CheckpointTask,
        slot: int,
        attempt: int,
        first: pa.RecordBatch,
        rest: Iterator[pa.RecordBatch],
        sent: Callable[[Vote], None] | None,
    ) -> Vote:
        producer = prepared.producer
        delivery = Delivery(
            producer,
            prepared.failures,
            topic=self.topic,
            topics=self.topics,
            limit_ms=self.transaction_timeout_ms,
            failed=partial(_failed, prepared),
        )
        with delivery.client_says():
            producer.begin_transaction()
        kill_point(KillPoint.TASK_AFTER_BEGIN)
        delivery.produce(first)
        kill_point(KillPoint.TASK_MID_WRITE)
        token = secrets.token_hex(8)
        with _Receipt(producer, prepared.id, task.checkpoint, token) as receipt:
            for batch in rest:
                delivery.produce(batch)
        with delivery.client_says(), _right_named(task.job):
            receipt.require_written()
        kill_point(KillPoint.TASK_AFTER_RECEIPT)
        body = {
            "id": str(prepared.id),
            "token": token,
            "topics": dict(delivery.records),
            "timeout_ms": self.transaction_timeout_ms,
        }
        if sent is not None:
            body["partitions"] = {topic: sorted(used) for topic, used in producer.partitions.items()}
        vote = Vote(slot=slot, attempt=attempt, records=delivery.records.total(), bytes=delivery.bytes, body=body)
        if sent is not None:
            sent(vote)
        delivery.flush()
        kill_point(KillPoint.TASK_AFTER_FLUSH)
        return vote


class _Receipt:
    """Adds the receipt to the open transaction, in a thread of its own. Leaving it waits for the thread: a transaction
    can be aborted only while no other call runs in it."""

    def __init__(self, producer: ArrowProducer, identifier: TransactionalId, checkpoint: int, token: str) -> None:
        self._producer, self._id = producer, identifier
        self._receipt = TopicPartition(_RECEIPT_TOPIC, 0, checkpoint, metadata=token)
        self._written = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="onceward-receipt", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def require_written(self) -> None:
        """Raises what the thread raised, KafkaException for one."""
        if self._error is not None:
            raise self._error
        assert self._written, "the thread has ended"

    def _write(self) -> None:
        kill_point(KillPoint.TASK_BEFORE_RECEIPT)
        try:
            self._producer.send_offsets_to_transaction(str(self._id), [self._receipt], _CALL_LIMIT_S)
            self._written = True
        except Exception as error:  # noqa: BLE001 - raised by the slot's own thread
            self._error = error


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


def _abort(prepared: PreparedProducer, pool: ProducerPool) -> None:
    """Best effort: the driver fences what stays open. Errors are suppressed, so that the original cause is reported."""
    pool.failed()
    with contextlib.suppress(KafkaException):
        prepared.producer.abort_transaction(_ABORT_LIMIT_S)


def _failed(prepared: PreparedProducer, why: str) -> DeliveryError:
    return DeliveryError(
        f"Transaction {prepared.id} was not delivered: {why}. The slot does not vote, nothing of it becomes visible "
        "and its records are written again. Check the brokers, the topic's limits and the user's rights."
    )
