"""Writes one slot without a transaction: records, flush, count, vote. Runs on executors.

Imports only the standard library, pyarrow, confluent_kafka and our pure modules.

What is written is visible at once, and stays if the checkpoint comes to nothing: its records are then read and written
again. The vote rests on the same count as that of the transactional writer (see ``sinks.kafka.writer``): everything
that the client accepted was delivered, so nothing of a completed checkpoint can be missing.

A producer serves the slots of its process one after the other: when one has voted nothing is under way. After a failure
it is never used again, and what it still holds is dropped.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from confluent_kafka import KafkaError, Producer

from connections import KafkaCluster
from coordinator.killpoints import KillPoint, kill_point
from coordinator.pipeline.tasks import CheckpointTask, Vote
from sinks.kafka.errors import CLIENT_ERRORS, DeliveryError
from sinks.kafka.producers import producer_settings
from sinks.kafka.records import BatchProducer

__all__ = ["AtLeastOnceWriter"]

_LOGGER = logging.getLogger("onceward.kafka")
_FLUSH_SLICE_S = 1.0


@dataclass(kw_only=True)
class _Idle:
    """A producer with nothing under way."""

    producer: Producer
    failures: list[KafkaError] = field(default_factory=list)
    """Delivery reports of records that failed, and fatal errors; filled while the producer polls or flushes."""


_idle: dict["AtLeastOnceWriter", _Idle] = {}
_owner = os.getpid()
_inherited: list[object] = []


@dataclass(frozen=True, kw_only=True)
class AtLeastOnceWriter:
    """A :data:`SlotWriter`; pickled to executors, where secrets are resolved."""

    cluster: KafkaCluster
    topic: str | None
    """Where everything goes; None to route by the ``topic`` column."""
    topics: tuple[str, ...]
    """What the ``topic`` column may say."""
    limit_ms: int
    """For which a record may wait for the brokers, and a slot in all."""

    def __call__(self, task: CheckpointTask, slot: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> Vote:
        """Write ``batches`` and vote when the brokers have confirmed all of it.

        The vote has no body: nothing has to be committed. Raises DeliveryError, RouteError, what ``batches`` raises.
        """
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return Vote(slot=slot, attempt=attempt, records=0, bytes=0)
        kill_point(KillPoint.TASK_BEFORE_BEGIN)
        idle = self._take()
        try:
            target = self._write(idle, slot, first, filled)
        except BaseException:
            with contextlib.suppress(*CLIENT_ERRORS):
                idle.producer.purge()  # what has not left yet would only be there twice
            raise
        kill_point(KillPoint.TASK_AFTER_FLUSH)
        _idle[self] = idle
        return Vote(slot=slot, attempt=attempt, records=target.records.total(), bytes=target.bytes)

    def _write(self, idle: _Idle, slot: int, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> BatchProducer:
        deadline = time.monotonic() + self.limit_ms / 1000

        def check() -> None:
            if idle.failures:
                raise _failed(slot, f"{len(idle.failures)} records were refused, first {idle.failures[0]}")
            if time.monotonic() > deadline:
                raise _failed(slot, f"the brokers did not take them in {self.limit_ms} ms")

        target = BatchProducer(idle.producer, topic=self.topic, topics=self.topics, check=check)
        target.produce(first)
        kill_point(KillPoint.TASK_MID_WRITE)
        for batch in rest:
            target.produce(batch)
        try:
            while idle.producer.flush(_FLUSH_SLICE_S):
                check()
        except CLIENT_ERRORS as error:
            raise _failed(slot, str(error.__cause__ or error)) from error
        check()
        return target

    def _take(self) -> _Idle:
        """The producer of this process for this sink; a new one where there is none that is in order."""
        global _idle, _owner
        if _owner != os.getpid():
            # Forked: the parent's producers have no threads here. Releasing them would wait for those for ever.
            _inherited.append(_idle)
            _idle, _owner = {}, os.getpid()
        idle = _idle.pop(self, None)
        _idle.clear()  # of other jobs and other settings: nobody comes back to them
        if idle is not None:
            idle.producer.poll(0)  # lets the client report what it noticed meanwhile
            if not idle.failures:
                return idle
        failures: list[KafkaError] = []
        config = self.cluster.client_config(**producer_settings(self.cluster), **{"delivery.timeout.ms": self.limit_ms})
        config["on_delivery"] = lambda error, _message: failures.append(error)
        config["error_cb"] = lambda error: failures.append(error) if error.fatal() else None
        try:
            return _Idle(producer=Producer(config, logger=_LOGGER), failures=failures)
        except CLIENT_ERRORS as error:
            raise _failed(slot=None, why=str(error)) from error


def _failed(slot: int | None, why: str) -> DeliveryError:
    what = "A slot" if slot is None else f"Slot {slot}"
    return DeliveryError(
        f"{what} was not delivered: {why}. It does not vote; its records belong to the next checkpoint, and those that "
        "the brokers took already are there twice then. Check the brokers, the topic's limits and the user's rights."
    )
