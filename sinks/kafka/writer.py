"""Writes one slot: transaction, records, receipt, flush, vote. Runs on executors.

Imports only the standard library, pyarrow, confluent_kafka and our pure modules.

Order. The receipt is enlisted while the last records are still on their way, then everything is flushed together: a
delivery failure found by the flush still prevents the vote, so the order costs nothing and saves a round trip.

Why no failure report means that everything was delivered: the client accepts a record (``produce`` returned) and then
owes exactly one report for it. With ``delivery.report.only.error`` the reports
of successes are dropped by the client, those of failures are not. ``flush() == 0`` says that no accepted record waits
and no report is unserved. Nobody purges the queue before the vote; a fatal error purges it with failure reports. So
accepted = delivered + failures seen, and a slot votes only when accepted = produced and failures = 0.

After the vote the producer is never closed or aborted (``close`` aborts the open transaction): its reference is
dropped, and whoever holds the committable ends the transaction.
"""

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import TopicPartition

from connections import KafkaCluster
from coordinator.killpoints import KillPoint, kill_point
from coordinator.pipeline.tasks import CheckpointTask, Vote
from sinks.kafka.batches import BatchColumns
from sinks.kafka.errors import CLIENT_ERRORS, DeliveryError
from sinks.kafka.producers import PoolKey, PreparedProducer, ProducerPool, pool_for
from sinks.kafka.records import BatchProducer

__all__ = ["COMMITTED_OPTION", "KafkaSlotWriter"]

COMMITTED_OPTION = "committed"
"""Sink option: id suffix -> last checkpoint whose transaction under that id is settled as committed."""

_RECEIPT_TOPIC = "onceward"  # as in receipts.py, which executors cannot import
_CALL_LIMIT_S = 30.0
_ABORT_LIMIT_S = 5.0
_FLUSH_SLICE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class KafkaSlotWriter:
    """A :data:`SlotWriter`; pickled to executors, where secrets are resolved."""

    cluster: KafkaCluster
    topic: str | None
    """Where everything goes; None to route by the ``topic`` column."""
    topics: tuple[str, ...]
    """What the ``topic`` column may say."""
    transaction_timeout_ms: int

    def __call__(self, task: CheckpointTask, slot: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> Vote:
        """Write ``batches`` in one transaction and vote.

        A slot without a record has no transaction: an empty one cannot be committed by others.

        Raises DeliveryError, RouteError, ConfigurationError for batches that cannot be written, and what ``batches``
        raises; the transaction is aborted as far as possible and its id retired.
        """
        columns = BatchColumns(routed=self.topic is None)
        filled = (taken for taken in map(columns.of, batches) if taken.num_rows)
        first = next(filled, None)
        if first is None:
            return Vote(slot=slot, attempt=attempt, records=0, bytes=0)
        pool = pool_for(
            PoolKey(
                job=task.job,
                sink=task.sink,
                generation=task.generation,
                cluster=self.cluster,
                transaction_timeout_ms=self.transaction_timeout_ms,
            )
        )
        committed: Mapping[str, int] = task.sink_options.get(COMMITTED_OPTION, {})
        kill_point(KillPoint.TASK_BEFORE_BEGIN)
        prepared = pool.take(committed)
        try:
            vote = self._write(prepared, task, slot, attempt, first, filled)
        except BaseException:
            _abort(prepared, pool)
            raise
        pool.voted(prepared.id, task.checkpoint)
        # The last reference: the client goes, the transaction stays.
        del prepared
        return vote

    def _write(
        self,
        prepared: PreparedProducer,
        task: CheckpointTask,
        slot: int,
        attempt: int,
        first: pa.RecordBatch,
        rest: Iterator[pa.RecordBatch],
    ) -> Vote:
        producer = prepared.producer
        with _kafka_says(prepared):
            producer.begin_transaction()
        kill_point(KillPoint.TASK_AFTER_BEGIN)
        deadline = time.monotonic() + self.transaction_timeout_ms / 1000

        def check() -> None:
            if prepared.failures:
                raise _failed(prepared, f"{len(prepared.failures)} records were refused, first {prepared.failures[0]}")
            if time.monotonic() > deadline:
                raise _failed(prepared, f"the brokers did not take them in {self.transaction_timeout_ms} ms")

        target = BatchProducer(producer, topic=self.topic, topics=self.topics, check=check)
        target.produce(first)
        kill_point(KillPoint.TASK_MID_WRITE)
        for batch in rest:
            target.produce(batch)
        token = secrets.token_hex(8)
        kill_point(KillPoint.TASK_BEFORE_RECEIPT)
        receipt = TopicPartition(_RECEIPT_TOPIC, 0, task.checkpoint, metadata=token)
        with _kafka_says(prepared):
            producer.send_offsets_to_transaction([receipt], prepared.group_metadata, _CALL_LIMIT_S)
        kill_point(KillPoint.TASK_AFTER_RECEIPT)
        with _kafka_says(prepared):
            while producer.flush(_FLUSH_SLICE_S):
                check()
        check()
        kill_point(KillPoint.TASK_AFTER_FLUSH)
        return Vote(
            slot=slot,
            attempt=attempt,
            records=target.records.total(),
            bytes=target.bytes,
            body={
                "id": str(prepared.id),
                "token": token,
                "topics": dict(target.records),
                "timeout_ms": self.transaction_timeout_ms,
            },
        )


def _abort(prepared: PreparedProducer, pool: ProducerPool) -> None:
    """Best effort: what stays open is fenced by the driver. The cause of the failure is what must be seen."""
    pool.failed()
    with contextlib.suppress(*CLIENT_ERRORS):
        prepared.producer.abort_transaction(_ABORT_LIMIT_S)


@contextlib.contextmanager
def _kafka_says(prepared: PreparedProducer) -> Iterator[None]:
    """Only around calls of ours: what the transform or the source raises must keep its own words."""
    try:
        yield
    except CLIENT_ERRORS as error:
        raise _failed(prepared, str(error.__cause__ or error)) from error


def _failed(prepared: PreparedProducer, why: str) -> DeliveryError:
    return DeliveryError(
        f"Transaction {prepared.id} was not delivered: {why}. The slot does not vote, nothing of it becomes visible "
        "and its records belong to the next checkpoint. Check the brokers, the topic's limits and the user's rights."
    )
