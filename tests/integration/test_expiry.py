"""What brokers forget: ids, receipts, the claim of an idle job; and a longer time limit than they have now. Takes
minutes."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward import CheckpointSettings, KafkaSink, KafkaSource
from onceward.connections.codes import ErrorCode
from onceward.dev.kafka import LocalKafka
from onceward.driver import settler
from onceward.protocol.values import CheckpointId, Claim, Committable, Generation, Outcome
from onceward.sinks.kafka.control.claim_reading import read_claim
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.receipts import ReceiptState, read_receipts
from onceward.sinks.kafka.control.transactions import State
from onceward.sinks.kafka.errors import DeliveryError
from tests.support.sink_job import SinkJob
from tests.support.sparkless import SparklessPipeline
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


def test_the_claim_of_an_idle_job_does_not_expire(
    forgetful: LocalKafka, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second or wiped store would be accepted while the job runs."""
    monkeypatch.setattr(settler, "_KEEP_CLAIM", 5.0)
    topics = Topics(forgetful.bootstrap_servers, job)
    source, out = topics.create("in"), topics.create("out")
    topics.fill(source, [b"a"])
    pipeline = SparklessPipeline(
        job=job,
        source=KafkaSource(forgetful.bootstrap_servers, topics=[source], start="earliest"),
        sink=KafkaSink(forgetful.bootstrap_servers, topic=out),
        settings=CheckpointSettings(interval="1s"),
        state_dir=tmp_path / "state",
    )
    running = threading.Thread(target=pipeline.run)
    running.start()
    try:
        wait_until(lambda: topics.values(out) == [b"a"], "it is copied")
        with SinkJob(forgetful.bootstrap_servers, f"{job}-other", topic=out) as other:
            other.take_claim(
                Claim(store_id="store", generation=Generation(1), completed=CheckpointId(0), holder="other"), None
            )
            claimed = read_claim(other.control, job, Clock())
            assert claimed is not None
            assert claimed.completed > 1
            wait_until(lambda: other.read_claim() is None, "a claim that is not kept expires", 240)
            assert read_claim(other.control, job, Clock()) == claimed
    finally:
        pipeline.stop()
        running.join()


def test_a_new_generation_writes_when_the_brokers_limit_of_a_transactions_time_was_lowered(
    forgetful: LocalKafka, job: str
) -> None:
    topics = Topics(forgetful.bootstrap_servers, job)
    out = topics.create("out")
    with SinkJob(forgetful.bootstrap_servers, job, topic=out) as sink:
        (before,) = sink.prepared(1, [b"a"])
        assert outcomes(sink, before) == [Outcome.COMMITTED]
        forgetful._properties["transaction.max.timeout.ms"] = "600000"
        forgetful.restart()
        sink.generation = 2
        sink.sink.begin_generation(Generation(2))
        (after,) = sink.prepared(2, [b"b"])
        assert outcomes(sink, after) == [Outcome.COMMITTED]
        assert topics.values(out) == [b"a", b"b"]


def outcomes(sink: SinkJob, *committables: Committable) -> list[Outcome]:
    return [settlement.outcome for settlement in sink.system().commit(sink.author, committables)]


def receipt(sink: SinkJob, handle: KafkaCommittable) -> ReceiptState:
    return read_receipts(sink.control, {handle.transaction.id: handle.token})[handle.transaction.id].state
