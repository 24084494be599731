"""The product's control plane, writer and committer, and the executors' client, on the model when the network fails."""

import gc
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from onceward import KafkaCluster
from onceward.connections.per_process import PerProcess
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.driver.origins import slot_origins
from onceward.executor.slots import Attempt
from onceward.protocol.values import CheckpointId, Generation, JobName, Outcome, ParticipantName
from onceward.sinks.kafka.client import GroupOffset
from onceward.sinks.kafka.control.claim_reading import read_claim
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import CoordinatorKind, NoAnswer
from onceward.sinks.kafka.control.receipts import ReceiptState
from onceward.sinks.kafka.control.recent import KnownPlaces
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import State, end_txn_version
from onceward.sinks.kafka.driver.precommit import FirstAnswers, Owner, ask_brokers, make_committables
from onceward.sinks.kafka.errors import DeliveryError, PreCommitError
from onceward.sinks.kafka.executor import producers
from onceward.sinks.kafka.executor.writer import KafkaSlotWriter
from tests.support.kafka_model import Call, Produce, Settings, SimProducer
from tests.support.kafka_model.bench import OUT, Bench
from tests.support.slots import write_slot


class Sink:
    """The product's writer and committer on a bench."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, timeout_ms: int = 60_000) -> None:
        self.bench = bench

        self.clients: list[weakref.ref[SimProducer]] = []

        def producer(config: dict[str, Any], **more: Any) -> SimProducer:
            made = SimProducer(config, cluster=bench.cluster, transport=bench.transport, **more)
            self.clients.append(weakref.ref(made))
            return made

        monkeypatch.setattr(producers, "new_producer", producer)
        monkeypatch.setattr(producers, "_pools", PerProcess())
        self.writer = KafkaSlotWriter(
            cluster=KafkaCluster("simulated:9092"),
            topic="out",
            topics=("out",),
            transaction_timeout_ms=timeout_ms,
            limit_ms=timeout_ms,
        )
        start = datetime(2026, 1, 1, tzinfo=UTC)
        self.clock = Clock(
            now=lambda: start + timedelta(seconds=bench.transport.now()),
            monotonic=bench.transport.now,
            wait=bench.transport.sleep,
        )
        self.owner = Owner(
            job=JobName("job"),
            sink=ParticipantName("sink"),
            generation=Generation(1),
            cluster_name="simulated",
            cluster_id=bench.control.cluster_id(),
            end_txn_version=end_txn_version(bench.control),
        )

    def write(
        self, *values: bytes, checkpoint: int = 1, slot: int = 0, announced: Callable[[Vote], None] | None = None
    ) -> Vote:
        task = CheckpointTask(job="job", generation=1, checkpoint=checkpoint, splits=(), columns=(), sinks={"sink": {}})
        batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])
        return write_slot(self.writer, Attempt(task=task, slot=slot, number=0), [batch], announced)

    def prepared(self, *slots: list[bytes], checkpoint: int = 1) -> tuple[KafkaCommittable, ...]:
        votes = [self.write(*values, checkpoint=checkpoint, slot=slot) for slot, values in enumerate(slots)]
        return self.committables(votes, checkpoint=checkpoint)

    def committables(self, votes: Sequence[Vote], *, checkpoint: int = 1) -> tuple[KafkaCommittable, ...]:
        control, origins = self.bench.control, slot_origins([[] for _ in votes], str)
        return make_committables(
            control, self.owner, CheckpointId(checkpoint), votes, origins, self.clock, first=self.asked(votes)
        )

    def asked(self, votes: Sequence[Vote]) -> FirstAnswers:
        return ask_brokers(
            self.bench.control, self.owner, CheckpointId(1), votes, ["out"], places=KnownPlaces(), now=0.0
        )

    def system(self) -> KafkaSystem:
        return KafkaSystem(self.bench.control, clock=self.clock)


@pytest.fixture(params=[2, 1], ids=["cluster-2", "cluster-1"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(Settings(brokers=(1, 2, 3), transaction_version=request.param, timeout_scan_s=1))


@pytest.fixture
def sink(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Sink:
    return Sink(bench, monkeypatch)


def _once(matches: Callable[[Call], bool]) -> Callable[[Call], bool]:
    """True for the first call that matches."""
    met: list[Call] = []

    def judge(call: Call) -> bool:
        if met or not matches(call):
            return False
        met.append(call)
        return True

    return judge


def _is(kind: type) -> Callable[[Call], bool]:
    return lambda call: isinstance(call.request, kind)


# -- the product


def test_a_checkpoint_is_written_prepared_and_committed(sink: Sink) -> None:
    handles = sink.prepared([b"a", b"b"], [b"c"])
    assert all(sink.bench.view(handle.transaction.id).state is State.ONGOING for handle in handles)
    settled = sink.system().commit(sink.owner.author, [handle.to_committable() for handle in handles])
    assert [settlement.outcome for settlement in settled] == [Outcome.COMMITTED] * 2
    sink.bench.wait(1)
    assert sorted(value or b"" for number in (0, 1) for value in sink.bench.visible(("out", number))) == [
        b"a",
        b"b",
        b"c",
    ]


def test_a_transaction_is_proved_before_the_brokers_have_any_of_its_records(sink: Sink) -> None:
    bench, coming = sink.bench, list[tuple[Vote, KafkaCommittable]]()
    bench.transport.cut = lambda call: isinstance(call.request, Produce) and not coming

    def prove(vote: Vote) -> None:
        assert [bench.cluster.log(("out", number)).high_watermark for number in (0, 1)] == [0, 0]
        (handle,) = sink.committables([vote])
        coming.append((vote, handle))

    vote = sink.write(b"a", b"b", announced=prove)
    [(announced, handle)] = coming
    assert announced == vote
    assert handle.topics["out"].partitions == (0, 1) == bench.view(handle.transaction.id).partitions["out"]
    (settled,) = sink.system().commit(sink.owner.author, [handle.to_committable()])
    assert settled.outcome is Outcome.COMMITTED


def test_a_slot_frees_its_client_with_its_vote_and_not_only_by_the_collector(sink: Sink) -> None:
    gc.collect()
    gc.disable()
    try:
        sink.write(b"a")
        assert [client() for client in sink.clients] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("lost", ["cut", "deaf"])
def test_a_commit_whose_request_or_answer_is_lost_is_committed_once(sink: Sink, lost: str) -> None:
    (handle,) = sink.prepared([b"a"])
    setattr(sink.bench.transport, lost, _once(_is(EndTxnRequest)))
    (settled,) = sink.system().commit(sink.owner.author, [handle.to_committable()])
    assert settled.outcome is Outcome.COMMITTED
    sink.bench.wait(1)
    assert len([*sink.bench.visible(), *sink.bench.visible(("out", 1))]) == 1


def test_a_transaction_that_timed_out_is_proved_lost(sink: Sink) -> None:
    (handle,) = sink.prepared([b"a"])
    sink.bench.wait(100)
    (settled,) = sink.system().commit(sink.owner.author, [handle.to_committable()])
    assert settled.outcome is Outcome.LOST


def test_a_commit_that_was_not_heard_of_is_proved_by_the_receipt_after_the_id_moved_on(sink: Sink) -> None:
    (handle,) = sink.prepared([b"a"])
    transaction = handle.transaction
    sink.bench.end((transaction.id, transaction.producer_id, transaction.epoch), version=transaction.version)
    sink.bench.wait(1)
    sink.bench.open(transaction.id)
    (settled,) = sink.system().commit(sink.owner.author, [handle.to_committable()])
    assert settled.outcome is Outcome.COMMITTED


def test_losers_are_fenced_and_winners_are_kept(sink: Sink) -> None:
    loser = sink.write(b"x")
    (winner,) = sink.prepared([b"a"])
    assert sink.system().sweep(JobName("job"), keep=[winner.to_committable()]) == [loser.body["id"]]
    assert sink.bench.view(winner.transaction.id).state is State.ONGOING


def test_a_vote_for_a_timed_out_transaction_is_not_prepared(sink: Sink) -> None:
    vote = sink.write(b"a")
    sink.bench.wait(100)
    with pytest.raises(PreCommitError, match="instead of open"):
        sink.committables([vote])


def test_an_unclaimed_job_has_no_claim(sink: Sink) -> None:
    assert read_claim(sink.bench.control, "job", sink.clock) is None


def test_a_slot_without_brokers_does_not_vote(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = sink.bench.transport
    monkeypatch.setattr("onceward.sinks.kafka.executor.delivery.time.monotonic", clock.now)
    first = sink.write(b"a")
    assert first.records == 1
    clock.cut = lambda call: isinstance(call.request, Produce)
    with pytest.raises(DeliveryError, match="not delivered"):
        sink.write(b"b")


# -- late duplicates


@pytest.mark.parametrize("commit", [True, False])
def test_a_late_end_does_nothing_to_the_next_transaction_of_the_id(bench: Bench, commit: bool) -> None:
    version = 5 if bench.cluster.settings.transaction_version == 2 else 4
    first = bench.open()
    bench.end(first, commit=commit, version=version)
    bench.wait(1)
    bench.open()
    late = next(call for call in bench.transport.sent if isinstance(call.request, EndTxnRequest))
    before = bench.view()
    assert late.apply(bench.transport.now()).error_code == 90
    assert bench.view() == before


def test_a_late_fence_aborts_whatever_is_open_by_then(bench: Bench) -> None:
    bench.init()
    fence = next(call for call in bench.transport.sent if isinstance(call.request, InitProducerIdRequest))
    ids = bench.open()
    assert fence.apply(bench.transport.now()).error_code == 51
    bench.wait(1)
    assert bench.view().state is State.COMPLETE_ABORT
    assert bench.produce(ids, sequence=1) == 47


def test_a_late_batch_after_the_end_stays_out(bench: Bench) -> None:
    version = 5 if bench.cluster.settings.transaction_version == 2 else 4
    ids = bench.open()
    bench.end(ids, version=version)
    bench.wait(1)
    assert bench.produce(ids) == (47 if version == 5 else 48)
    assert bench.cluster.log(OUT).high_watermark == 2


# -- the client


def records(*values: bytes) -> pa.RecordBatch:
    partitions = pa.array([0] * len(values), pa.int32())
    return pa.record_batch([pa.array(values, pa.binary()), partitions], ["value", "partition"])


def write(producer: SimProducer, value: bytes) -> None:
    producer.produce("out", records(value), lambda: producer.poll(0))


def test_a_batch_whose_answer_was_lost_is_written_once(bench: Bench) -> None:
    producer = bench.producer()
    producer.begin_transaction()
    write(producer, b"a")
    bench.transport.deaf = _once(_is(Produce))
    assert producer.flush(5) == 0
    assert bench.cluster.log(OUT).high_watermark == 1


def test_a_client_finds_the_new_leader(bench: Bench) -> None:
    producer = bench.producer()
    producer.begin_transaction()
    write(producer, b"a")
    assert producer.flush(5) == 0
    bench.cluster.fail(bench.cluster.log(OUT).leader, bench.transport.now(), election_s=1.0)
    write(producer, b"b")
    assert producer.flush(0.5) == 1
    assert producer.flush(5) == 0
    assert [entry.record.value for entry in bench.cluster.log(OUT).entries if entry.record] == [b"a", b"b"]


def test_a_client_finds_the_new_coordinators(bench: Bench) -> None:
    producer = bench.producer()
    for checkpoint in (1, 2):
        producer.begin_transaction()
        producer.commit_offset(GroupOffset("t", "onceward", 0, checkpoint, ""), 5)
        producer.abort_transaction(5)
        for kind in CoordinatorKind:
            node = bench.coordinator(kind) % 3 + 1
            bench.cluster.move_coordinator(kind, "t", node, bench.transport.now(), loading_s=1.0)


def test_records_that_are_not_taken_in_time_are_reported_as_failed(bench: Bench) -> None:
    failures: list[KafkaError] = []
    producer = bench.producer(timeout_ms=10_000, failed=failures.append)
    producer.begin_transaction()
    write(producer, b"a")
    bench.transport.cut = lambda _call: True
    assert producer.flush(5) == 1
    assert producer.flush(10) == 0
    assert [failure.code() for failure in failures] == [KafkaError._MSG_TIMED_OUT]
    with pytest.raises(KafkaException):
        producer.commit_offset(GroupOffset("t", "onceward", 0, 1, ""), 1)


def test_a_fenced_client_stays_fenced(bench: Bench) -> None:
    producer = bench.producer()
    producer.begin_transaction()
    bench.producer()
    write(producer, b"a")
    for _ in range(2):
        with pytest.raises(KafkaException) as raised:
            producer.flush(5)
        assert raised.value.args[0].code() == KafkaError._FENCED
        assert raised.value.args[0].fatal()
    with pytest.raises(KafkaException):
        producer.begin_transaction()
    with pytest.raises(KafkaException):
        producer.abort_transaction(1)


def test_a_client_that_goes_away_leaves_its_transaction_open(bench: Bench) -> None:
    producer = bench.producer()
    producer.begin_transaction()
    write(producer, b"a")
    producer.flush(5)
    del producer
    bench.wait(10)
    assert bench.view().state is State.ONGOING


def test_an_aborted_client_can_begin_again(bench: Bench) -> None:
    producer = bench.producer()
    for value in (b"a", b"b"):
        producer.begin_transaction()
        write(producer, value)
        producer.flush(5)
        producer.abort_transaction(5)
        assert bench.visible() == []
        bench.wait(1)


def test_a_client_that_gave_up_a_batch_does_not_begin_again(bench: Bench) -> None:
    producer = bench.producer()
    producer.begin_transaction()
    write(producer, b"a")
    bench.transport.deaf = _is(Produce)
    assert producer.flush(1) == 1
    producer.abort_transaction(5)
    with pytest.raises(NotImplementedError):
        producer.begin_transaction()


def test_an_abort_of_nothing_is_not_sent_to_the_brokers(bench: Bench) -> None:
    producer = bench.producer()
    producer.begin_transaction()
    write(producer, b"a")
    producer.abort_transaction(5)
    assert len(producer) == 0
    assert bench.view().state is State.EMPTY


def test_the_queue_has_an_end(bench: Bench) -> None:
    producer = bench.producer(room=2)
    producer.begin_transaction()
    waited: list[int] = []

    def full() -> None:
        waited.append(len(producer))
        producer.poll(0)

    producer.produce("out", records(b"0", b"1", b"2"), full)
    assert waited == [2]
    assert (producer.accepted, len(producer)) == (3, 1)


def test_calls_out_of_order_are_refused(bench: Bench) -> None:
    producer = bench.producer()
    with pytest.raises(KafkaException):
        producer.init_transactions(1)
    with pytest.raises(KafkaException):
        write(producer, b"a")
    with pytest.raises(KafkaException):
        producer.abort_transaction(1)
    producer.begin_transaction()
    with pytest.raises(KafkaException):
        producer.begin_transaction()


def test_an_unsafe_configuration_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="acks"):
        bench.producer(acks="1")


def test_the_clients_receipt_is_like_librdkafkas(bench: Bench) -> None:
    producer = bench.producer()
    producer.begin_transaction()
    producer.commit_offset(GroupOffset("t", "onceward", 0, 7, "token"), 5)
    view = bench.view()
    assert bench.receipt_of().state is ReceiptState.UNSTABLE
    bench.end(("t", view.producer_id, view.epoch))
    bench.wait(1)
    assert bench.receipt_of().state is ReceiptState.PRESENT


def test_a_control_plane_without_brokers_raises_an_error(bench: Bench) -> None:
    for broker in bench.cluster.alive:
        bench.cluster.fail(broker, 0.0)
    assert isinstance(bench.control.send_all([(None, EndTxnRequest("t", 0, 0, True))])[0], NoAnswer)
