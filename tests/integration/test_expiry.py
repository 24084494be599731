"""Outcomes when the brokers have forgotten first the transactional id, then the receipt too. Takes over a minute."""

from collections.abc import Iterator

import pytest

from onceward.connections.codes import ErrorCode
from onceward.coordinator.dev.kafka import LocalKafka
from onceward.coordinator.protocol.values import Committable, Outcome
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.receipts import ReceiptState, read_receipts
from onceward.sinks.kafka.control.transactions import State
from onceward.sinks.kafka.errors import DeliveryError
from tests.support.sink_job import SinkJob
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def forgetful() -> Iterator[LocalKafka]:
    """A broker that keeps ids for 4 s and receipts for a minute, which is the minimum."""
    properties = {
        "offsets.retention.minutes": "1",
        "offsets.retention.check.interval.ms": "500",
        "transactional.id.expiration.ms": "4000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    }
    with LocalKafka(properties=properties, transaction_timeout_scan_ms=200, heap="256m") as local:
        yield local


def test_outcomes_are_true_when_the_id_is_forgotten_and_the_receipt_has_expired(
    forgetful: LocalKafka, job: str
) -> None:
    topics = Topics(forgetful.bootstrap_servers, job)
    out = topics.create("out")
    with SinkJob(forgetful.bootstrap_servers, job, topic=out, transaction_timeout="1s") as sink:
        committed, timed_out = sink.prepared(1, [b"a"], [b"b"])
        transaction = KafkaCommittable.of(committed).transaction
        assert sink.transactions.end([transaction], commit=True)[transaction.id] == ErrorCode.NONE
        wait_until(lambda: sink.view(timed_out).state is State.COMPLETE_ABORT, "the other one timed out")
        wait_until(lambda: sink.view(committed).code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "the ids are forgotten")
        wait_until(lambda: sink.view(timed_out).code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "the ids are forgotten")
        assert outcomes(sink, committed, timed_out) == [Outcome.COMMITTED, Outcome.LOST]
        assert receipt(sink, KafkaCommittable.of(committed)) is ReceiptState.PRESENT
        wait_until(
            lambda: receipt(sink, KafkaCommittable.of(committed)) is ReceiptState.ABSENT, "the receipt expires", 180
        )
        assert outcomes(sink, committed, timed_out) == [Outcome.COMMITTED, Outcome.LOST]
        # The writer holds a producer that it prepared under an id that has been forgotten since. It does not vote, and
        # the
        # next attempt uses another id.
        with pytest.raises(DeliveryError, match="not currently assigned"):
            sink.prepared(2, [b"c"])
        (again,) = sink.prepared(3, [b"c"])
        assert outcomes(sink, again) == [Outcome.COMMITTED]
        assert topics.values(out) == [b"a", b"c"]


def outcomes(sink: SinkJob, *committables: Committable) -> list[Outcome]:
    return [settlement.outcome for settlement in sink.committer().commit(sink.author, committables)]


def receipt(sink: SinkJob, handle: KafkaCommittable) -> ReceiptState:
    return read_receipts(sink.control, {handle.transaction.id: handle.token})[handle.transaction.id].state
