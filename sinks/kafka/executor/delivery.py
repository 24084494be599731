"""Hands a slot's records to a producer and confirms their delivery within the slot's time limit. Runs on executors.

Imports only the standard library, pyarrow, numpy, confluent_kafka and our pure modules.

Why no failure report means that every record was delivered: the client accepts a record (``produce`` counted it) and
then owes exactly one report for it. With ``delivery.report.only.error`` the client drops the reports of successes, not
those of failures. ``flush() == 0`` means that no accepted record is undelivered and no report is unserved. The queue is
never purged before the vote; a fatal error purges it with failure reports. Therefore accepted = delivered + failures
seen, and a slot votes only if accepted = produced and failures = 0.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from onceward.connections.limits import LOST_S
from onceward.sinks.kafka.client import Producer
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor.records import BatchProducer

__all__ = ["Delivery"]

_FLUSH_SLICE_S = 1.0
_REPORTS_S = 0.1
"""How long to poll for the report behind an error that was already raised."""
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_STALLED_S = 60.0
"""As for a reader: a client without progress for this long is given up; the next attempt creates a new one."""


class Delivery:
    """The delivery of one slot, by one producer that has no other user meanwhile."""

    def __init__(
        self,
        producer: Producer,
        failures: Sequence[KafkaError],
        *,
        topic: str | None,
        topics: Sequence[str],
        limit_ms: int,
        failed: Callable[[str], DeliveryError],
    ) -> None:
        """``failures``: errors that the producer reports during `poll` and `flush`. ``topic``: topic of all records;
        None to route by the ``topic`` column among ``topics``. ``limit_ms``: time from now for the whole slot.
        ``failed``: creates the error to raise from a short cause."""
        self._producer, self._failures = producer, failures
        self._limit_ms = limit_ms
        self._deadline = time.monotonic() + limit_ms / 1000
        self._failed = failed
        self._target = BatchProducer(producer, topic=topic, topics=topics)

    @property
    def records(self) -> Counter[str]:
        """Records that the client accepted, by topic."""
        return self._target.records

    @property
    def bytes(self) -> int:
        """Bytes of the accepted keys and values."""
        return self._target.bytes

    def produce(self, batch: pa.RecordBatch) -> None:
        """Hand the records to the client. Raises DeliveryError and RouteError."""
        self._check()
        self._target.produce(batch, self._check)

    def flush(self) -> None:
        """Wait until the brokers have confirmed every record. Raises DeliveryError if one was refused or is late."""
        with self.client_says():
            while self._producer.flush(_FLUSH_SLICE_S):
                self._check()
        self._check()

    @contextlib.contextmanager
    def client_says(self) -> Iterator[None]:
        """Convert client errors. Only around our own calls: errors of the transform or source pass unchanged."""
        try:
            yield
        except KafkaException as error:
            # A refused record breaks the transaction, and the next call then fails with "erroneous state".
            with contextlib.suppress(KafkaException):
                self._producer.poll(_REPORTS_S)
            self._refuse_failures()
            raise self._failed(str(error)) from error

    def _refuse_failures(self) -> None:
        if self._failures:
            raise self._failed(f"{len(self._failures)} records were refused: {self._cause()}")

    def _cause(self) -> str:
        """The first refusal by a broker. If there is none, a broken transaction purged the records: then its error."""
        refused = next((failure for failure in self._failures if failure.code() not in _PURGED), None)
        if refused is not None:
            return str(refused)
        try:
            # In a broken transaction, this call only raises the error that broke it (rd_kafka_txn_require_states0).
            self._producer.begin_transaction()
        except KafkaException as error:
            return str(error)
        return str(self._failures[0])

    def _check(self) -> None:
        self._refuse_failures()
        if time.monotonic() > self._deadline:
            raise self._failed(f"the brokers did not take them in {self._limit_ms} ms")
        stalled = self._target.stalled_for()
        if stalled > LOST_S:
            self._producer.rebootstrap()
        if stalled > _STALLED_S:
            raise self._failed(f"none of the records that wait was confirmed for {_STALLED_S:.0f} s")
