"""A slot fails when its client gets no record confirmed for too long; slow progress is enough. No broker needed."""

import itertools
import logging
import time
from collections.abc import Callable
from typing import cast

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from onceward.sinks.kafka.client import ArrowProducer
from onceward.sinks.kafka.client.messages import Partitioning
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor import delivery as module
from onceward.sinks.kafka.executor.delivery import Delivery
from onceward.sinks.kafka.executor.records import BatchProducer

RECORDS = pa.RecordBatch.from_pydict({"value": [b"a", b"b", b"c"]})


@pytest.fixture
def nowhere() -> ArrowProducer:
    """A producer for a broker that does not exist."""
    producer = ArrowProducer(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, topics=["out"], failed=print, logger=logging.getLogger()
    )
    producer._places["out"] = itertools.repeat(Partitioning(1, 0))  # no broker reports the partitions
    return producer


def test_a_slot_fails_when_no_record_is_confirmed(nowhere: ArrowProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STALLED_S", 0.2)
    monkeypatch.setattr(module, "_FLUSH_SLICE_S", 0.05)
    delivery = Delivery(nowhere, [], topic="out", topics=("out",), limit_ms=60_000, failed=DeliveryError)
    delivery.produce(RECORDS)
    with pytest.raises(DeliveryError, match="none of the records that wait was confirmed"):
        delivery.flush()


def test_a_producer_gets_its_bootstrap_servers_again_while_nothing_is_confirmed(
    nowhere: ArrowProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOST_S", 0.2)
    monkeypatch.setattr(module, "_STALLED_S", 0.5)
    monkeypatch.setattr(module, "_FLUSH_SLICE_S", 0.05)
    asked: list[float] = []
    nowhere.rebootstrap = lambda: asked.append(time.monotonic())  # type: ignore[assignment]
    began = time.monotonic()
    delivery = Delivery(nowhere, [], topic="out", topics=("out",), limit_ms=60_000, failed=DeliveryError)
    delivery.produce(RECORDS)
    with pytest.raises(DeliveryError):
        delivery.flush()
    assert asked
    assert asked[0] - began > 0.2


class Confirming:
    """A client whose broker has confirmed ``confirmed`` records."""

    def __init__(self) -> None:
        self.accepted = self.confirmed = 0

    def produce(self, _topic: str, records: pa.RecordBatch, full: Callable[[], None]) -> None:
        for _ in range(records.num_rows):
            while not self.room:
                full()
            self.accepted += 1

    room = True

    def poll(self, _: float) -> None:
        """Report nothing."""

    def __len__(self) -> int:
        return self.accepted - self.confirmed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def target(client: Confirming) -> BatchProducer:
    return BatchProducer(client, topic="out", topics=())  # type: ignore[arg-type]


def test_every_confirmed_record_restarts_the_stall_clock(clock: list[float]) -> None:
    client = Confirming()
    made = target(client)
    made.produce(RECORDS, lambda: None)
    clock[0] = 50.0
    assert made.stalled_for() == 50.0
    client.confirmed = 1
    assert made.stalled_for() == 0.0
    clock[0] = 75.0
    assert made.stalled_for() == 25.0


def test_a_full_queue_that_moves_on_slowly_does_not_stand_still(clock: list[float]) -> None:
    class Full(Confirming):
        @property
        def room(self) -> bool:  # type: ignore[override]
            return len(self) < 1

        def poll(self, seconds: float) -> None:
            if seconds:  # waits for room
                clock[0] += 40.0
                self.confirmed += 1

    stood_still = []
    made = BatchProducer(
        Full(),  # type: ignore[arg-type]
        topic="out",
        topics=(),
    )
    made.produce(pa.concat_batches([RECORDS, RECORDS]), lambda: stood_still.append(made.stalled_for()))
    assert clock[0] == 200.0
    assert max(stood_still) < 60.0


def test_without_waiting_records_the_slot_is_not_stalled(clock: list[float]) -> None:
    client = Confirming()
    made = target(client)
    made.produce(RECORDS, lambda: None)
    client.confirmed = 3
    clock[0] = 1000.0  # a slow transform
    made.produce(RECORDS, lambda: None)
    clock[0] = 1005.0
    assert made.stalled_for() == 5.0


def test_a_refused_record_is_reported_instead_of_the_clients_state() -> None:
    failures: list[KafkaError] = []

    class Reporting(Confirming):
        def poll(self, _: float) -> None:
            failures.append(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    producer = cast(ArrowProducer, Reporting())
    delivery = Delivery(producer, failures, topic="out", topics=("out",), limit_ms=60_000, failed=DeliveryError)
    refused = pytest.raises(DeliveryError, match=r"1 records were refused: .*MSG_SIZE_TOO_LARGE")
    with refused, delivery.client_says():
        raise KafkaException(KafkaError(KafkaError._STATE))


def test_records_purged_by_a_broken_transaction_are_reported_with_its_error() -> None:
    failures = [KafkaError(KafkaError._PURGE_QUEUE), KafkaError(KafkaError._PURGE_INFLIGHT)]

    class Broken(Confirming):
        def begin_transaction(self) -> None:
            raise KafkaException(KafkaError(KafkaError.INVALID_PRODUCER_ID_MAPPING, "not currently assigned"))

    producer = cast(ArrowProducer, Broken())
    delivery = Delivery(producer, failures, topic="out", topics=("out",), limit_ms=60_000, failed=DeliveryError)
    refused = pytest.raises(DeliveryError, match=r"2 records were refused: .*not currently assigned")
    with refused, delivery.client_says():
        raise KafkaException(KafkaError(KafkaError._STATE))


def test_a_refusal_is_reported_before_the_purge_that_follows_it() -> None:
    failures = [KafkaError(KafkaError._PURGE_QUEUE), KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)]
    producer = cast(ArrowProducer, Confirming())
    delivery = Delivery(producer, failures, topic="out", topics=("out",), limit_ms=60_000, failed=DeliveryError)
    refused = pytest.raises(DeliveryError, match=r"2 records were refused: .*MSG_SIZE_TOO_LARGE")
    with refused, delivery.client_says():
        raise KafkaException(KafkaError(KafkaError._STATE))


class Flushing(Confirming):
    """Each call of flush takes ``seconds`` and confirms one record; the broker may refuse the last ones."""

    def __init__(self, clock: list[float], seconds: float = 1.0) -> None:
        super().__init__()
        self._clock, self._seconds = clock, seconds
        self.failures: list[KafkaError] = []
        self.refuses = 0
        self.rebootstraps = 0

    def flush(self, timeout: float) -> int:
        assert timeout > 0
        self._clock[0] += self._seconds
        self.confirmed += 1
        if self.refuses and len(self) < self.refuses:
            self.failures.append(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        return len(self)

    def rebootstrap(self) -> None:
        self.rebootstraps += 1

    def delivery(self, limit_ms: int = 60_000) -> Delivery:
        producer = cast(ArrowProducer, self)
        return Delivery(producer, self.failures, topic="out", topics=("out",), limit_ms=limit_ms, failed=DeliveryError)


def test_a_slot_is_delivered_when_the_last_record_of_its_last_batch_is(clock: list[float]) -> None:
    client = Flushing(clock)
    delivery = client.delivery()
    for _ in range(3):
        delivery.produce(RECORDS)
    delivery.flush()
    assert (client.accepted, client.confirmed, clock[0]) == (9, 9, 9.0)
    assert (delivery.records, delivery.bytes, client.rebootstraps) == ({"out": 9}, 9, 0)


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_a_slot_of_which_records_were_refused_is_not_delivered(clock: list[float], refused: int) -> None:
    """This holds even when no record waits any more."""
    client = Flushing(clock)
    client.refuses = refused
    delivery = client.delivery()
    delivery.produce(RECORDS)
    with pytest.raises(DeliveryError, match=r"1 records were refused: .*MSG_SIZE_TOO_LARGE"):
        delivery.flush()


@pytest.mark.parametrize(("limit_ms", "late"), [(3_000, False), (2_999, True), (1_000, True)])
def test_a_slot_has_its_time_from_when_it_began(clock: list[float], limit_ms: int, late: bool) -> None:
    clock[0] = 500.0
    client = Flushing(clock)
    delivery = client.delivery(limit_ms)
    delivery.produce(RECORDS)
    if not late:
        delivery.flush()
        return
    with pytest.raises(DeliveryError, match=f"did not take them in {limit_ms} ms"):
        delivery.flush()


@pytest.mark.parametrize(("seconds", "given_up", "rebootstraps"), [(9.0, False, 0), (61.0, True, 1)])
def test_records_that_move_on_slowly_are_waited_for_and_those_that_stand_still_are_not(
    clock: list[float], seconds: float, given_up: bool, rebootstraps: int
) -> None:
    class Still(Flushing):
        def flush(self, timeout: float) -> int:
            left = super().flush(timeout)
            if given_up:
                self.confirmed = 0
            return left if not given_up else len(self)

    client = Still(clock, seconds)
    delivery = client.delivery(1_000_000)
    delivery.produce(RECORDS)
    if given_up:
        with pytest.raises(DeliveryError, match="none of the records that wait was confirmed for 60 s"):
            delivery.flush()
    else:
        delivery.flush()
    assert client.rebootstraps == rebootstraps
