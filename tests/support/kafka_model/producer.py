"""The executors' client on the modelled brokers. It replaces the sink's producers.

Like librdkafka it enlists partitions before it writes to them, numbers batches per partition, repeats a batch until it
is answered, and is permanently fenced by 47 and 90. Unlike librdkafka it has no thread: ``poll`` and ``flush`` send
batches. Dropping the last reference does nothing to the transaction.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any
from zlib import crc32

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.client import GroupOffset
from onceward.sinks.kafka.client.pending import InThread
from onceward.sinks.kafka.control.control_plane import CoordinatorKind, NoAnswer
from tests.support.kafka_model.cluster import Cluster
from tests.support.kafka_model.errors import abortable, failure, fatal, wrong_state
from tests.support.kafka_model.outbox import Outbox
from tests.support.kafka_model.requests import Requests
from tests.support.kafka_model.settings import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    Offset,
    Partition,
    Produce,
    Record,
)
from tests.support.kafka_model.transport import Transport

__all__ = ["SimProducer"]

_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
_NOT_NOW = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
_REQUIRED = {"enable.idempotence": True, "acks": "all"}
_RETRY_S = 0.02


class _Phase(Enum):
    NEW = "new"
    READY = "ready"
    OPEN = "open"
    FAILED = "failed"
    """Only an abort is possible."""
    BROKEN = "broken"
    """Fenced, or refused in a way that the client cannot recover from."""


class SimProducer:
    """A transactional producer. Not thread-safe."""

    slow_to_make = True

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        cluster: Cluster,
        transport: Transport,
        topics: Sequence[str] = (),
        failed: Callable[[KafkaError], object] = lambda _error: None,
        logger: object = None,
        implicit: bool = False,
    ) -> None:
        """`implicit`: enlist partitions by writing to them, as clients at transaction version 2 do; librdkafka 2.16
        does not."""
        for key, value in _REQUIRED.items():
            if config.get(key) != value:
                raise ValueError(f"the model of the producer needs {key}={value}, not {config.get(key)!r}")
        self._name = str(config["transactional.id"])
        self._timeout_ms = int(config["transaction.timeout.ms"])
        self._room = int(config.get("queue.buffering.max.messages", 100_000))
        self._failed = failed
        self.accepted = 0
        self.partitions: dict[str, set[int]] = {}
        """By topic, those of the accepted records."""
        self._requests = Requests(cluster, transport)
        self._transport = transport
        self._implicit = implicit
        self._phase = _Phase.NEW
        self._why: KafkaError | None = None
        self._producer_id = self._epoch = -1
        self._enlisted: set[Partition] = set()
        self._anything_enlisted = False
        self._outbox = Outbox()
        self._without_key = 0

    def __len__(self) -> int:
        return len(self._outbox)

    def load_metadata(self, timeout: float) -> None:
        """Reach any broker. Its answer about topics does not matter: the model chooses partitions itself."""
        deadline = self._deadline(timeout)
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False, min_version=4)
        while isinstance(self._requests.once(None, request), NoAnswer):
            if self._transport.now() >= deadline:
                raise failure(KafkaError._TRANSPORT, "no broker answers")
            self._transport.sleep(_RETRY_S)

    def init_transactions(self, timeout: float) -> None:
        """Take the id over. Raises KafkaException."""
        if self._phase is not _Phase.NEW:
            raise wrong_state("init_transactions was called before")
        request = InitProducerIdRequest(
            transactional_id=self._name,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            max_version=4,
        )
        answer = self._coordinator(request, self._deadline(timeout))
        if answer.error_code:
            raise self._break(answer.error_code, "InitProducerId was refused")
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._phase = _Phase.READY

    def begin_transaction(self) -> None:
        """Local: the brokers learn of it with the first partition."""
        self._refuse_broken()
        if self._phase is not _Phase.READY:
            raise wrong_state(f"begin_transaction in phase {self._phase.value}")
        if self._outbox.doubtful:
            raise NotImplementedError(
                "librdkafka would raise its epoch here; the sink never begins again after a failure"
            )
        self._phase = _Phase.OPEN
        self._enlisted, self._anything_enlisted = set(), False

    def produce(self, topic: str, records: pa.RecordBatch, full: Callable[[], None]) -> None:
        """Queue records one by one; `full` is called while the queue is full. Raises KafkaException."""
        for row in records.to_pylist():
            self._refuse_closed()
            while len(self._outbox) >= self._room:
                full()
                self._refuse_closed()
            stamp = row.get("timestamp")
            record = Record(
                value=row["value"],
                key=row.get("key"),
                headers=tuple((header["key"], header["value"]) for header in row.get("headers") or ()),
                stamp=0 if stamp is None else int(stamp.timestamp() * 1000),
            )
            partition = row.get("partition")
            self._queue(topic, record, -1 if partition is None else partition)
            self.accepted += 1

    def poll(self, timeout: float) -> None:
        """Try once to send what is queued, then wait if something remains."""
        self._refuse_broken()
        self._send_round(self._transport.now())
        if len(self._outbox) and timeout > 0:
            self._transport.sleep(timeout)

    def flush(self, timeout: float) -> int:
        """Send until the queue is empty or time is up. Returns the number of records left."""
        deadline = self._deadline(timeout)
        self._refuse_broken()
        while len(self._outbox):
            before = len(self._outbox)
            self._send_round(deadline)
            if self._transport.now() >= deadline:
                break
            if len(self._outbox) == before:
                self._transport.sleep(min(_RETRY_S, deadline - self._transport.now()))
        return len(self._outbox)

    def rebootstrap(self) -> None:
        """Does nothing: it never forgets its brokers."""

    def send_offset(self, offset: GroupOffset, timeout: float) -> InThread:
        return InThread(lambda: self.commit_offset(offset, timeout))

    def commit_offset(self, offset: GroupOffset, timeout: float) -> None:
        """Commit an offset with the transaction. Raises KafkaException."""
        self._refuse_closed()
        deadline = self._deadline(timeout)
        if not self._implicit:
            self._enlist(
                AddOffsets(
                    transactional_id=self._name,
                    producer_id=self._producer_id,
                    producer_epoch=self._epoch,
                    group_id=offset.group,
                ),
                deadline,
            )
        self._anything_enlisted = True
        request = CommitOffsets(
            transactional_id=self._name,
            group_id=offset.group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            offsets={(offset.topic, offset.partition): Offset(offset=offset.offset, metadata=offset.metadata)},
            implicit=self._implicit,
        )
        while True:
            answer = self._requests.coordinator(CoordinatorKind.GROUP, offset.group, request, deadline)
            if answer.error_code not in _NOT_NOW:
                break
            self._requests.wait(deadline, f"error {answer.error_code}")
        if answer.error_code:
            raise self._fail(answer.error_code, "TxnOffsetCommit was refused")

    def abort_transaction(self, timeout: float) -> None:
        """Drop what is queued and abort what the brokers know. Raises KafkaException."""
        self._refuse_broken()
        if self._phase not in (_Phase.OPEN, _Phase.FAILED):
            raise wrong_state(f"abort_transaction in phase {self._phase.value}")
        self._phase = _Phase.FAILED
        self._outbox.drop()
        if self._anything_enlisted:
            request = EndTxnRequest(
                transactional_id=self._name,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                committed=False,
                min_version=1,
                max_version=1,
            )
            answer = self._coordinator(request, self._deadline(timeout))
            if answer.error_code:
                raise self._break(answer.error_code, "EndTxn was refused")
        self._phase = _Phase.READY

    # -- inside

    def _deadline(self, timeout: float) -> float:
        return self._transport.now() + timeout

    def _coordinator(self, request: Any, deadline: float) -> Any:
        return self._requests.coordinator(CoordinatorKind.TRANSACTION, self._name, request, deadline)

    def _queue(self, topic: str, record: Record, partition: int) -> None:
        if partition < 0:
            count = self._requests.partitions(topic)
            if count is None:
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC, f"{topic} is not known"))
            if record.key is None:
                self._without_key += 1
                partition = self._without_key % count
            else:
                partition = crc32(record.key) % count
        self.partitions.setdefault(topic, set()).add(partition)
        self._outbox.add((topic, partition), record, self._transport.now())

    def _send_round(self, deadline: float) -> None:
        """Send the oldest batch of each partition once. Raises KafkaException if that breaks the producer."""
        if not len(self._outbox) or self._phase is not _Phase.OPEN:
            return
        expired = self._outbox.oldest + self._timeout_ms / 1000
        deadline = min(deadline, expired)
        if self._transport.now() >= expired:
            self._fail(KafkaError._MSG_TIMED_OUT, "the records were not taken in time")
            return
        waiting = self._outbox.waiting()
        if not self._implicit and not self._enlist_partitions(waiting, deadline):
            return
        self._anything_enlisted = True
        for partition, answer in self._requests.produce(self._outbox.in_flight(self._batch)).items():
            if isinstance(answer, NoAnswer) or answer.error_code in _NOT_NOW:
                self._requests.forget_leaders(partition[0])
            elif answer.error_code:
                refused = self._fail(answer.error_code, f"a batch for {partition[0]}-{partition[1]} was refused")
                if self._broken:
                    raise refused
                return
            else:
                self._outbox.delivered(partition, self._transport.now())

    def _enlist_partitions(self, partitions: Sequence[Partition], deadline: float) -> bool:
        missing = sorted(set(partitions) - self._enlisted)
        if not missing:
            return True
        request = AddPartitions(
            transactional_id=self._name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            partitions=missing,
        )
        try:
            self._enlist(request, deadline)
        except KafkaException:
            # Out of time for now, or already reported as failed.
            if self._broken:
                raise
            return False
        self._enlisted.update(missing)
        return True

    def _enlist(self, request: AddPartitions | AddOffsets, deadline: float) -> None:
        self._anything_enlisted = True
        answer = self._coordinator(request, deadline)
        if answer.error_code:
            raise self._fail(answer.error_code, "the transaction cannot be continued")

    def _batch(self, partition: Partition, records: Sequence[Record], sequence: int) -> Produce:
        return Produce(
            partition=partition,
            records=records,
            transactional_id=self._name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            sequence=sequence,
            implicit=self._implicit,
        )

    def _fail(self, code: int, why: str) -> KafkaException:
        """Fail the transaction: report everything queued as failed."""
        if code in _FENCED:
            raised = self._break(code, why)
        else:
            self._phase, self._why = _Phase.FAILED, abortable(code, why)
            raised = KafkaException(self._why)
        for _ in self._outbox.drop():
            self._failed(raised.args[0])
        return raised

    def _break(self, code: int, why: str) -> KafkaException:
        """Make the producer unusable."""
        known = KafkaError._FENCED if code in _FENCED else code
        self._phase, self._why = _Phase.BROKEN, fatal(known, f"{self._name}: {why} (error {code})")
        return KafkaException(self._why)

    @property
    def _broken(self) -> bool:
        return self._phase is _Phase.BROKEN

    def _refuse_broken(self) -> None:
        if self._broken:
            assert self._why is not None
            raise KafkaException(self._why)

    def _refuse_closed(self) -> None:
        self._refuse_broken()
        if self._phase is _Phase.FAILED and self._why is not None:
            raise KafkaException(self._why)
        if self._phase is not _Phase.OPEN:
            raise wrong_state(f"no transaction is open, phase {self._phase.value}")
