"""Committing many transactions at modelled brokers: which cluster gets the requests, and when they stop."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from kafka.protocol.producer import EndTxnRequest

from onceward import KafkaCluster
from onceward.protocol.values import Outcome, Settlement
from onceward.sinks.kafka.control.brokers import topic_facts
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.control_plane import IN_FLIGHT, ControlPlane, CoordinatorKind, Operation
from onceward.sinks.kafka.control.recent import KafkaPreCommitted, Lately
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import Code, State, Transaction, Transactions
from onceward.sinks.kafka.errors import ControlPlaneError
from tests.support.documents import author
from tests.support.kafka_model import Settings
from tests.support.kafka_model.bench import Bench


class Unreachable(ControlPlane):
    """A cluster that must not be asked."""

    def __init__(self, name: str) -> None:
        super().__init__(KafkaCluster("127.0.0.1:1", name=name))
        self.asked = 0

    def cluster_id(self) -> str:
        self.asked += 1
        raise ControlPlaneError("it is dead")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def pending(bench: Bench, count: int) -> list[KafkaCommittable]:
    handles = []
    for slot in range(count):
        name, producer, epoch = bench.open(f"orders.sink.1.0123abcd.{slot}")
        handles.append(
            KafkaCommittable(
                slot=slot,
                checkpoint=7,
                cluster_name=bench.control.cluster.name,
                cluster_id=bench.cluster.settings.cluster_id,
                transaction=Transaction(id=name, producer_id=producer, epoch=epoch, version=5),
                token="token",
                topics={"out": TopicRecords(records=1, partitions=(0,))},
                records=1,
                bytes=1,
                inputs=[],
                pre_committed=datetime(2026, 1, 1, tzinfo=UTC),
            )
        )
    return handles


def committer(bench: Bench) -> KafkaSystem:
    return KafkaSystem(bench.control, clock=Clock(wait=bench.wait))


def test_hundreds_of_pending_transactions_are_committed_in_one_round(bench: Bench) -> None:
    handles = pending(bench, 300)
    settled = committer(bench).commit(author(), [handle.to_committable() for handle in handles])
    assert [each.slot for each in settled] == list(range(300))
    assert {each.outcome for each in settled} == {Outcome.COMMITTED}
    assert sum(isinstance(call.request, EndTxnRequest) for call in bench.transport.sent) == 300


def recent(bench: Bench, handles: list[KafkaCommittable], asked: float = 0.0) -> KafkaPreCommitted:
    """Answers of a pre-commit at ``asked``, on the clock of :func:`at`."""
    located = Transactions(bench.control).locate([handle.transaction.id for handle in handles])
    topics = topic_facts(bench.control, ["out"])
    return KafkaPreCommitted(
        committables=tuple(handle.to_committable() for handle in handles),
        control=bench.control,
        asked=asked,
        located=located,
        topics=topics,
        handles=handles,
    )


def looked_ahead(bench: Bench, handles: list[KafkaCommittable], asked: float) -> KafkaPreCommitted:
    """The same, with what was asked beside the claim."""
    made = recent(bench, handles)
    made.look_ahead(claimed(), asked, Lately())
    return made


def claimed() -> Operation[Code]:
    """The last request of a claim, answered."""
    yield []
    return 0


def commit_at(
    bench: Bench, now: float, known: KafkaPreCommitted, handles: Sequence[KafkaCommittable]
) -> Sequence[Settlement]:
    """Commit at ``now``, in the process of the pre-commit."""
    made = KafkaSystem(bench.control, clock=Clock(wait=bench.wait, monotonic=lambda: now))
    return made.commit(author(), [handle.to_committable() for handle in handles], known=known)


def test_a_commit_right_after_the_pre_commit_does_not_ask_again_who_coordinates_and_leads(bench: Bench) -> None:
    handles = pending(bench, 2)
    known = recent(bench, handles)
    before = len(bench.transport.sent)
    settled = commit_at(bench, 1.0, known, handles)
    assert {each.outcome for each in settled} == {Outcome.COMMITTED}
    sent = Counter(type(call.request).__name__ for call in bench.transport.sent[before:])
    # once before the commits, and until the markers are there
    assert sent.pop("DescribeProducersRequest") <= 3
    assert sent == {"ApiVersionsRequest": 1, "EndTxnRequest": 2}


def test_answers_that_have_grown_old_are_asked_for_again(bench: Bench) -> None:
    (handle,) = pending(bench, 1)
    known = recent(bench, [handle])
    before = len(bench.transport.sent)
    (settlement,) = commit_at(bench, 1.1, known, [handle])
    assert settlement.outcome is Outcome.COMMITTED
    sent = {type(call.request).__name__ for call in bench.transport.sent[before:]}
    assert {"FindCoordinatorRequest", "MetadataRequest"} <= sent


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (0.5, {"EndTxnRequest": 2, "DescribeProducersRequest": 2}),
        (1.1, {"DescribeProducersRequest": 3, "ApiVersionsRequest": 1, "EndTxnRequest": 2}),
    ],
    ids=["at once", "later"],
)
def test_a_commit_right_after_the_claim_does_not_ask_again_what_was_asked_beside_it(
    bench: Bench, now: float, expected: dict[str, int]
) -> None:
    handles = pending(bench, 2)
    known = replace(looked_ahead(bench, handles, 0.0), asked=now)
    before = len(bench.transport.sent)
    settled = commit_at(bench, now, known, handles)
    assert {each.outcome for each in settled} == {Outcome.COMMITTED}
    assert Counter(type(call.request).__name__ for call in bench.transport.sent[before:]) == expected


def test_the_version_of_the_end_is_asked_at_most_every_half_second(bench: Bench) -> None:
    answers, versions = recent(bench, pending(bench, 2)), Lately[Code]()
    for now, asked_at in ((0.0, 0.0), (0.4, 0.0), (0.6, 0.6)):
        bench.transport.sent.clear()
        code = answers.look_ahead(claimed(), now, versions)
        ahead = answers.ahead
        assert code == 0
        assert ahead is not None
        assert ahead.asked == asked_at, "a commit must know how old the oldest answer is"
        sent = {type(call.request).__name__ for call in bench.transport.sent}
        assert sent == {"DescribeProducersRequest"} | ({"ApiVersionsRequest"} if asked_at == now else set())


def test_a_part_that_was_missing_beside_the_claim_is_not_committed(bench: Bench) -> None:
    (handle,) = pending(bench, 1)
    transaction = handle.transaction
    log = bench.cluster.log(("out", 0))
    log.mark(transaction.producer_id, transaction.epoch, commit=False, now=bench.transport.now())
    (settlement,) = commit_at(bench, 0.0, looked_ahead(bench, [handle], 0.0), [handle])
    assert settlement.outcome is Outcome.LOST


def test_answers_about_other_transactions_are_not_used(bench: Bench) -> None:
    handles = pending(bench, 2)
    settled = commit_at(bench, 0.0, recent(bench, handles[:1]), handles)
    assert {each.outcome for each in settled} == {Outcome.COMMITTED}


def test_a_coordinator_that_has_moved_since_the_pre_commit_is_found() -> None:
    bench = Bench(Settings(brokers=(1, 2)))
    (handle,) = pending(bench, 1)
    known, name = recent(bench, [handle]), handle.transaction.id
    successor = 3 - bench.coordinator(key=name)
    bench.cluster.move_coordinator(CoordinatorKind.TRANSACTION, name, successor, bench.transport.now())
    (settlement,) = commit_at(bench, 0.0, known, [handle])
    assert settlement.outcome is Outcome.COMMITTED


def test_a_part_that_was_lost_since_the_pre_commit_is_noticed(bench: Bench) -> None:
    (handle,) = pending(bench, 1)
    known = recent(bench, [handle])
    transaction = handle.transaction
    log = bench.cluster.log(("out", 0))
    log.mark(transaction.producer_id, transaction.epoch, commit=False, now=bench.transport.now())
    (settlement,) = commit_at(bench, 0.0, known, [handle])
    assert settlement.outcome is Outcome.LOST


def test_a_transaction_that_may_be_on_the_dead_cluster_stays_pending(bench: Bench) -> None:
    (handle,) = pending(bench, 1)
    rounds = iter(range(3))
    alone = KafkaSystem(Unreachable("elsewhere"), clock=Clock(wait=bench.wait))
    assert list(alone.commit(author(), [handle.to_committable()], give_up=lambda: next(rounds, None) is None)) == []


def test_nothing_is_sent_after_the_stop_signal(bench: Bench) -> None:
    handles = pending(bench, 200)

    def enough() -> bool:
        return sum(isinstance(call.request, EndTxnRequest) for call in bench.transport.sent) > 1

    settled = committer(bench).commit(author(), [handle.to_committable() for handle in handles], give_up=enough)
    sent = [call.request.transactional_id for call in bench.transport.sent if isinstance(call.request, EndTxnRequest)]
    assert settled == []  # the markers are not seen yet; the next generation asks again
    assert len(sent) == IN_FLIGHT
    assert bench.view(handles[-1].transaction.id).state is State.ONGOING


def test_no_commit_is_sent_while_a_partition_has_no_leader(bench: Bench) -> None:
    """The brokers would drop the marker, and the part would stay open."""
    (handle,) = pending(bench, 1)
    log = bench.cluster.log(("out", 0))
    leader, log.leader = log.leader, -1
    rounds = iter(range(3))
    assert not committer(bench).commit(author(), [handle.to_committable()], give_up=lambda: next(rounds, None) is None)
    assert not any(isinstance(call.request, EndTxnRequest) for call in bench.transport.sent)
    log.leader = leader
    (settlement,) = committer(bench).commit(author(), [handle.to_committable()])
    assert settlement.outcome is Outcome.COMMITTED
