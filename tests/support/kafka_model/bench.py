"""A modelled cluster with shortcuts to query it, for the unit tests of the model."""

from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from onceward.sinks.kafka.control.control_plane import CoordinatorKind
from onceward.sinks.kafka.control.receipts import Receipt, read_receipts
from onceward.sinks.kafka.control.transactions import Transactions, TransactionView
from tests.support.kafka_model import (
    AddOffsets,
    AddPartitions,
    Cluster,
    CommitOffsets,
    DirectTransport,
    Offset,
    Produce,
    Record,
    Settings,
    SimControl,
    SimProducer,
)

__all__ = ["OUT", "Bench", "Ids"]

OUT = ("out", 0)
Ids = tuple[str, int, int]
"""Transactional id, producer id, epoch."""


class Bench:
    """Topics ``out`` (2 partitions) and ``onceward``, and a control plane that reaches everything at once."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.cluster = Cluster(settings)
        self.cluster.create_topic("out", 2)
        self.cluster.create_topic("onceward")
        self.transport = DirectTransport()
        self.control = SimControl(self.cluster, self.transport)
        self.transactions = Transactions(self.control)

    # -- as a client's library

    def ask(self, request: Any, *, kind: CoordinatorKind = CoordinatorKind.TRANSACTION, key: str = "t") -> Any:
        """The coordinator's answer, without retries."""
        return self.control.send_located(kind, {key: request})[key]

    def init(self, name: str = "t", *, ids: Ids | None = None, timeout_ms: int = 60_000) -> Ids:
        """What InitProducerId returns; it must not be refused."""
        request = init_request(name, ids, timeout_ms)
        answer = self.ask(request, key=name)
        assert answer.error_code == 0, answer
        return name, answer.producer_id, answer.producer_epoch

    def code_of_init(self, name: str = "t", *, ids: Ids | None = None) -> int:
        return int(self.ask(init_request(name, ids, 60_000), key=name).error_code)

    def open(self, name: str = "t", *, values: Sequence[bytes] = (b"a",), timeout_ms: int = 60_000) -> Ids:
        """Open a transaction with records in ``out``-0 and a receipt of checkpoint 7."""
        ids = self.init(name, timeout_ms=timeout_ms)
        self.enlist(ids, OUT)
        assert self.produce(ids, values) == 0
        self.receipt(ids)
        return ids

    def enlist(self, ids: Ids, *partitions: tuple[str, int]) -> int:
        request = AddPartitions(
            transactional_id=ids[0], producer_id=ids[1], producer_epoch=ids[2], partitions=partitions
        )
        return int(self.ask(request, key=ids[0]).error_code)

    def produce(
        self, ids: Ids, values: Sequence[bytes] = (b"a",), *, sequence: int = 0, partition: tuple[str, int] = OUT
    ) -> int:
        request = Produce(
            partition=partition,
            records=tuple(Record(value=value) for value in values),
            transactional_id=ids[0],
            producer_id=ids[1],
            producer_epoch=ids[2],
            sequence=sequence,
        )
        answer = self.cluster.handle(self.cluster.log(partition).leader, request, self.transport.now())
        return int(answer.error_code)

    def receipt(self, ids: Ids, token: str = "token") -> int:
        name, producer, epoch = ids
        enlisted = AddOffsets(transactional_id=name, producer_id=producer, producer_epoch=epoch, group_id=name)
        code = int(self.ask(enlisted, key=name).error_code)
        if code:
            return code
        request = CommitOffsets(
            transactional_id=name,
            group_id=name,
            producer_id=producer,
            producer_epoch=epoch,
            offsets={("onceward", 0): Offset(offset=7, metadata=token)},
        )
        return int(self.ask(request, kind=CoordinatorKind.GROUP, key=name).error_code)

    def producer(
        self,
        name: str = "t",
        *,
        timeout_ms: int = 60_000,
        room: int = 100_000,
        failed: Callable[[KafkaError], object] = print,
        **more: Any,
    ) -> SimProducer:
        """A client that can begin a transaction. `room`: how many records its queue holds."""
        config = {
            "queue.buffering.max.messages": room,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "enable.idempotence": True,
            "acks": "all",
            **more,
        }
        producer = SimProducer(config, cluster=self.cluster, transport=self.transport, failed=failed)
        producer.init_transactions(30)
        return producer

    # -- as any other program

    def end(self, ids: Ids, *, commit: bool = True, version: int = 5) -> int:
        return int(self.ask(end_request(ids, commit=commit, version=version), key=ids[0]).error_code)

    def view(self, name: str = "t") -> TransactionView:
        return self.transactions.describe([name])[name]

    def view_at(self, node: int, name: str = "t") -> Any:
        """One broker's answer, whether it is the coordinator or not."""
        request = DescribeTransactionsRequest(transactional_ids=[name])
        return self.cluster.handle(node, request, self.transport.now()).transaction_states[0]

    def end_at(self, node: int, ids: Ids, *, commit: bool = True, version: int = 5) -> int:
        request = end_request(ids, commit=commit, version=version)
        return int(self.cluster.handle(node, request, self.transport.now()).error_code)

    def receipt_of(self, name: str = "t", token: str = "token") -> Receipt:
        return read_receipts(self.control, {name: token})[name]

    def visible(self, partition: tuple[str, int] = OUT) -> list[bytes | None]:
        self.cluster.advance(self.transport.now())
        return [entry.record.value for entry in self.cluster.log(partition).read(0)[0] if entry.record is not None]

    def wait(self, seconds: float) -> None:
        self.transport.sleep(seconds)
        self.cluster.advance(self.transport.now())

    def coordinator(self, kind: CoordinatorKind = CoordinatorKind.TRANSACTION, key: str = "t") -> int:
        return self.control.locate(kind, [key])[key].node


def init_request(name: str, ids: Ids | None, timeout_ms: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1 if ids is None else ids[1],
        producer_epoch=-1 if ids is None else ids[2],
        max_version=5,
    )


def end_request(ids: Ids, *, commit: bool, version: int) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=ids[0],
        producer_id=ids[1],
        producer_epoch=ids[2],
        committed=commit,
        min_version=version,
        max_version=version,
    )
