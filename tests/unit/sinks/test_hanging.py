"""Transactions that the modelled brokers end without all their markers, and how a commit finishes them."""

import logging
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from onceward.connections.codes import ErrorCode
from onceward.protocol.values import JobName, Outcome, Settlement
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.receipts import ReceiptState
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import State, Transaction
from onceward.sinks.kafka.errors import ControlPlaneError
from tests.support.documents import author
from tests.support.kafka_model import LAST_EPOCH, Settings
from tests.support.kafka_model.bench import OUT, Bench, Ids
from tests.support.kafka_model.settings import OFFSETS_TOPIC, Partition
from tests.support.kafka_model.transport import Call

NAME = "orders.sink.1.0123abcd.0"
OTHER = ("out", 1)
BOTH = frozenset({OUT, OTHER})


class Brokers(Bench):
    """Brokers that skip the markers of some partitions."""

    def __init__(self, version: int, *, epoch: int = -1) -> None:
        self.skipped: frozenset[Partition] = frozenset()
        self.skips_receipts = False
        super().__init__(
            Settings(
                transaction_version=version,
                timeout_scan_s=1,
                last_used_epoch=lambda _id: epoch,
                skips_marker=lambda _id, place: (
                    place in self.skipped or (place[0] == OFFSETS_TOPIC and self.skips_receipts)
                ),
            )
        )
        self.end_version = 5 if version >= 2 else 4

    def written(self, *, timeout_ms: int = 60_000) -> Ids:
        """Write two records to one partition, one to the other, and a receipt."""
        ids = self.init(NAME, timeout_ms=timeout_ms)
        self.enlist(ids, OUT, OTHER)
        assert self.produce(ids, (b"a", b"b")) == self.produce(ids, (b"c",), partition=OTHER) == self.receipt(ids) == 0
        return ids

    def end_without(self, ids: Ids, *places: Partition, receipt: bool = True, commit: bool = True) -> None:
        """End a transaction while no leader of ``places`` is known."""
        self.skipped, self.skips_receipts = frozenset(places), receipt
        assert self.end(ids, commit=commit, version=self.end_version) == 0
        self.wait(1)
        self.skipped, self.skips_receipts = frozenset(), False

    def handle(self, ids: Ids) -> KafkaCommittable:
        return KafkaCommittable(
            slot=0,
            checkpoint=7,
            cluster_name=self.control.cluster.name,
            cluster_id=self.cluster.settings.cluster_id,
            transaction=Transaction(id=ids[0], producer_id=ids[1], epoch=ids[2], version=self.end_version),
            token="token",
            topics={"out": TopicRecords(records=3, partitions=(0, 1))},
            records=3,
            bytes=3,
            inputs=[{"topic": "in", "partition": 4, "start": 10, "end": 13}],
            pre_committed=datetime(2026, 1, 1, tzinfo=UTC),
            timeout=timedelta(minutes=1),
        )

    @property
    def clock(self) -> Clock:
        return Clock(monotonic=self.transport.now, wait=self.wait)

    def swept(self, *keep: Ids, generation: int = 1, topics: Collection[str] | None = ("out",)) -> list[str]:
        made = KafkaSystem(self.control, clock=self.clock, generation=lambda: generation, topics=topics)
        return list(made.sweep(JobName("orders"), keep=[self.handle(ids).to_committable() for ids in keep]))

    def committed(self, ids: Ids) -> Settlement:
        made = KafkaSystem(self.control, clock=self.clock)
        (settlement,) = made.commit(author(), [self.handle(ids).to_committable()])
        return settlement

    def held_back(self) -> bool:
        """Whether a reader of committed records stops before the end."""
        logs = [self.cluster.log(place) for place in BOTH]
        return any(log.last_stable_offset < log.high_watermark for log in logs)

    @property
    def read(self) -> tuple[list[bytes | None], list[bytes | None]]:
        """What readers of committed records find in both partitions."""
        return self.visible(OUT), self.visible(OTHER)

    def sent(self, kind: type) -> int:
        return sum(isinstance(call.request, kind) for call in self.transport.sent)


@pytest.fixture(params=[0, 1, 2], ids="transaction.version {}".format)
def brokers(request: pytest.FixtureRequest) -> Brokers:
    return Brokers(request.param)


ALL = ([b"a", b"b"], [b"c"])
BY_EACH = pytest.mark.parametrize("topics", [("out",), None], ids=["driver", "coordinator"])
"""A coordinator does not know the topics of a job."""


def test_a_commit_that_the_brokers_confirm_and_do_not_finish_is_finished_before_it_is_settled(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    ids = brokers.written()
    brokers.end_without(ids, OUT, OTHER)
    assert brokers.read == ([], [])
    assert brokers.view(NAME).state is State.COMPLETE_COMMIT
    with caplog.at_level(logging.WARNING):
        settlement = brokers.committed(ids)
    assert settlement.outcome is Outcome.COMMITTED
    assert brokers.read == ALL
    assert brokers.receipt_of(NAME).state is ReceiptState.PRESENT
    (warning,) = caplog.messages
    assert warning.startswith(f"{NAME} had ended as committed without 2 of its markers")


def test_only_the_partition_without_a_marker_gets_one(brokers: Brokers) -> None:
    ids = brokers.written()
    brokers.end_without(ids, OTHER, receipt=False)
    assert brokers.read == ([b"a", b"b"], [])
    marked = brokers.cluster.log(OUT).high_watermark
    assert brokers.committed(ids).outcome is Outcome.COMMITTED
    assert brokers.read == ALL
    assert brokers.cluster.log(OUT).high_watermark == marked


def test_an_outcome_that_was_looked_for_is_settled_only_once_readers_see_it(brokers: Brokers) -> None:
    """The id has moved on, and the receipt or the marker in one partition proves the commit."""
    ids = brokers.written()
    brokers.end_without(ids, OTHER, receipt=False)
    brokers.init(NAME)
    assert brokers.view(NAME).state is State.EMPTY
    assert brokers.committed(ids).outcome is Outcome.COMMITTED
    assert brokers.read == ALL


def test_a_marker_that_is_only_late_is_waited_for_and_not_written_twice() -> None:
    late = Bench(Settings(marker_delay=lambda _id, place: 20.0 if place == OTHER else 0.0))
    brokers = Brokers(2)
    brokers.cluster, brokers.control, brokers.transport = late.cluster, late.control, late.transport
    brokers.transactions = late.transactions
    ids = brokers.written()
    assert brokers.committed(ids).outcome is Outcome.COMMITTED
    assert brokers.transport.now() >= 20
    assert brokers.sent(EndTxnRequest) == 1
    assert brokers.sent(AddPartitionsToTxnRequest) == 0


def test_markers_that_are_skipped_again_are_written_again(brokers: Brokers) -> None:
    ids = brokers.written()
    brokers.end_without(ids, OUT, OTHER)
    brokers.skipped = frozenset({OTHER})

    def until_the_second_time(call: Call) -> bool:
        if isinstance(call.request, AddPartitionsToTxnRequest) and brokers.sent(AddPartitionsToTxnRequest) == 2:
            brokers.skipped = frozenset()
        return False

    brokers.transport.cut = until_the_second_time
    assert brokers.committed(ids).outcome is Outcome.COMMITTED
    assert brokers.read == ALL


def test_a_timed_out_transaction_whose_abort_reached_no_partition_is_committed_as_decided(brokers: Brokers) -> None:
    ids = brokers.written(timeout_ms=1_000)
    brokers.skipped, brokers.skips_receipts = BOTH, True
    brokers.wait(5)
    brokers.skipped, brokers.skips_receipts = frozenset(), False
    assert brokers.view(NAME).state is State.COMPLETE_ABORT
    assert brokers.committed(ids).outcome is Outcome.COMMITTED
    assert brokers.read == ALL


@pytest.mark.parametrize("receipt", [True, False], ids=["receipt hangs", "receipt aborted"])
def test_a_timed_out_transaction_whose_abort_reached_some_partitions_is_lost_and_holds_no_reader_back(
    brokers: Brokers, receipt: bool
) -> None:
    ids = brokers.written(timeout_ms=1_000)
    brokers.skipped, brokers.skips_receipts = frozenset({OTHER}), receipt
    brokers.wait(5)
    brokers.skipped, brokers.skips_receipts = frozenset(), False
    assert brokers.committed(ids).outcome is Outcome.LOST
    assert brokers.read == ([], [])
    assert not brokers.held_back()


def test_a_request_that_arrives_a_second_time_amid_the_mend_aborts_nothing(brokers: Brokers) -> None:
    """Or that another process sends as well. InitProducerId would abort what is being committed."""
    ids = brokers.written()
    brokers.end_without(ids, OUT, OTHER)
    brokers.transport.sent.clear()

    def repeats_all(_call: Call) -> bool:
        for earlier in brokers.transport.sent[:-1]:
            earlier.apply(brokers.transport.now(), brokers.cluster.alive[0])
        return False

    brokers.transport.cut = repeats_all
    assert brokers.committed(ids).outcome is Outcome.COMMITTED
    assert brokers.read == ALL


@pytest.mark.parametrize("request_type", [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, EndTxnRequest])
@pytest.mark.parametrize("arrives", [True, False], ids=["carried out", "lost"])
@pytest.mark.parametrize("hanging", [(OUT, OTHER), (OTHER,)], ids=["all", "a part"])
def test_a_process_that_dies_while_it_writes_markers_leaves_them_to_the_next_one(
    brokers: Brokers, request_type: type, arrives: bool, hanging: tuple[Partition, ...]
) -> None:
    ids = brokers.written()
    brokers.end_without(ids, *hanging)
    dead: list[Call] = []

    def dies(call: Call) -> bool:
        if brokers.sent(AddPartitionsToTxnRequest) and isinstance(call.request, request_type):
            dead.append(call)
        return bool(dead) and (call is not dead[0] or not arrives)

    brokers.transport.cut = dies
    first = KafkaSystem(brokers.control, clock=brokers.clock)
    assert first.commit(author(), [brokers.handle(ids).to_committable()], give_up=lambda: bool(dead)) == []
    brokers.transport.cut = lambda _call: False
    assert brokers.committed(ids).outcome is Outcome.COMMITTED
    assert brokers.read == ALL


def test_an_id_that_has_another_producer_id_by_now_is_in_doubt_and_named_with_the_brokers_tool(
    brokers: Brokers,
) -> None:
    ids = brokers.written()
    brokers.end_without(ids, OTHER, receipt=False)
    brokers.cluster._state.transaction_shard(NAME).table.clear()  # as after transactional.id.expiration.ms
    brokers.init(NAME)
    settlement = brokers.committed(ids)
    assert settlement.outcome is Outcome.IN_DOUBT
    assert "another producer id" in settlement.evidence
    assert "out-1 offset 0" in settlement.evidence
    assert "kafka-transactions.sh" in settlement.evidence
    assert "--topic out --partition 1 --start-offset 0" in settlement.evidence
    assert brokers.sent(AddPartitionsToTxnRequest) == 0


@pytest.mark.parametrize(("version", "hanging"), [(0, LAST_EPOCH), (0, LAST_EPOCH - 1), (2, LAST_EPOCH - 1)])
def test_a_producer_at_its_last_epoch_finishes_without_another_one(version: int, hanging: int) -> None:
    brokers = Brokers(version, epoch=hanging - 1)
    ids = brokers.written()
    assert ids[2] == hanging
    brokers.end_without(ids, OUT, OTHER)
    assert brokers.committed(ids).outcome is Outcome.COMMITTED
    assert brokers.read == ALL


# -- transactions that no checkpoint will settle


@BY_EACH
@pytest.mark.parametrize("ended", ["timed out", "aborted", "fenced"])
def test_an_abort_without_markers_is_finished_by_the_next_sweep(
    brokers: Brokers, ended: str, topics: Collection[str] | None
) -> None:
    ids = brokers.written(timeout_ms=1_000)
    brokers.skipped, brokers.skips_receipts = BOTH, True
    if ended == "timed out":
        brokers.wait(5)
    elif ended == "aborted":
        assert brokers.end(ids, commit=False, version=brokers.end_version) == 0
    else:
        assert brokers.code_of_init(NAME) == ErrorCode.CONCURRENT_TRANSACTIONS
    brokers.wait(1)
    brokers.skipped, brokers.skips_receipts = frozenset(), False
    if ended == "fenced":
        brokers.init(NAME)
    assert brokers.held_back()
    assert brokers.swept(topics=topics) == [NAME]
    brokers.wait(1)
    assert not brokers.held_back()
    assert brokers.read == ([], [])
    assert brokers.receipt_of(NAME).state is ReceiptState.ABSENT
    assert brokers.swept(topics=topics) == []


def test_a_sweep_that_fences_finishes_what_the_brokers_skip_then(brokers: Brokers) -> None:
    brokers.written()
    brokers.skipped = BOTH

    def until_the_fence_is_done(call: Call) -> bool:
        if isinstance(call.request, AddPartitionsToTxnRequest):
            brokers.skipped = frozenset()
        return False

    brokers.transport.cut = until_the_fence_is_done
    assert brokers.swept() == [NAME]
    brokers.wait(1)
    assert not brokers.held_back()


def test_a_sweep_leaves_alone_what_is_to_be_settled_what_is_newer_and_what_is_another_jobs(brokers: Brokers) -> None:
    ids = brokers.written()
    brokers.end_without(ids, OUT, OTHER)
    for swept in (brokers.swept(ids), brokers.swept(generation=0)):
        assert swept == []
    other = brokers.init("orders-2.sink.1.0123abcd.0")
    brokers.enlist(other, OUT)
    assert brokers.produce(other) == 0
    brokers.end_without(other, OUT, commit=False)
    assert brokers.swept(ids) == []
    assert brokers.held_back()
    assert brokers.committed(ids).outcome is Outcome.COMMITTED


def test_a_commit_that_the_brokers_still_report_is_not_aborted_by_a_sweep(brokers: Brokers) -> None:
    """As an earlier release left it, which settled a checkpoint that no reader sees."""
    brokers.end_without(brokers.written(), OUT, OTHER)
    assert brokers.swept() == [NAME]
    brokers.wait(1)
    assert brokers.read == ALL


@BY_EACH
@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("epoch", [LAST_EPOCH - 2, LAST_EPOCH - 1, LAST_EPOCH])
def test_a_fence_that_takes_the_producer_id_finishes_first_what_the_brokers_skip(
    version: int, epoch: int, topics: Collection[str] | None
) -> None:
    """Nothing can end a part once its id has another producer id."""
    brokers = Brokers(version, epoch=epoch - 1)
    assert brokers.written()[2] == epoch
    brokers.skipped = BOTH

    def until_the_fence_is_done(call: Call) -> bool:
        if isinstance(call.request, AddPartitionsToTxnRequest):
            brokers.skipped = frozenset()
        return False

    brokers.transport.cut = until_the_fence_is_done
    assert brokers.swept(topics=topics) == [NAME]
    brokers.wait(1)
    assert not brokers.held_back()
    assert brokers.read == ([], [])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_id_whose_producer_id_a_fence_would_take_is_not_fenced_unseen(version: int) -> None:
    """Its coordinator does not answer, just when the first fence has aborted it without a marker."""
    brokers = Brokers(version, epoch=LAST_EPOCH - 1)
    brokers.written()
    brokers.skipped = BOTH
    unanswered: list[Call] = []

    def once(call: Call) -> bool:
        if isinstance(call.request, AddPartitionsToTxnRequest):
            brokers.skipped = frozenset()
        fenced = isinstance(call.request, DescribeTransactionsRequest) and brokers.sent(InitProducerIdRequest) == 2
        unanswered.extend([call] * fenced)
        return fenced and len(unanswered) == 1

    brokers.transport.cut = once
    assert brokers.swept() == [NAME]
    brokers.wait(1)
    assert not brokers.held_back()


@pytest.mark.parametrize("version", [0, 2])
def test_what_is_open_at_the_last_epoch_is_aborted_before_a_fence_takes_its_producer_id(version: int) -> None:
    """With transaction.version 2, brokers give the id another one already when the fence's abort is complete."""
    brokers = Brokers(version, epoch=LAST_EPOCH - 1)
    ids = brokers.written()
    brokers.transport.sent.clear()
    seen: list[tuple[State, int]] = []

    def fences(call: Call) -> bool:
        if isinstance(call.request, InitProducerIdRequest):
            entry = brokers.cluster.entry(NAME)
            assert entry is not None
            seen.append((State(entry.state.value), entry.producer_id))
        return False

    brokers.transport.cut = fences
    assert brokers.swept() == [NAME]
    assert seen == [(State.COMPLETE_ABORT, ids[1])]
    assert brokers.code_of_init(NAME, ids=ids) != ErrorCode.NONE or brokers.view(NAME).producer_id != ids[1]
    assert brokers.read == ([], [])


@BY_EACH
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_fence_that_takes_the_producer_id_waits_for_leaders_that_are_away(
    version: int, topics: Collection[str] | None
) -> None:
    """Without its leader no one knows whether a part hangs; brokers skip markers just then."""
    brokers = Brokers(version, epoch=LAST_EPOCH - 1)
    brokers.written()
    brokers.skipped = BOTH
    logs = [brokers.cluster.log(place) for place in BOTH]
    leaders = [log.leader for log in logs]
    for log in logs:
        log.leader = -1

    def comes_back(_call: Call) -> bool:
        if brokers.transport.now() >= 5:
            brokers.skipped = frozenset()
            for log, leader in zip(logs, leaders, strict=True):
                log.leader = leader
        return False

    brokers.transport.cut = comes_back
    assert brokers.swept(topics=topics) == [NAME]
    brokers.wait(1)
    assert not brokers.held_back()
    assert brokers.read == ([], [])


def test_what_is_fenced_and_cannot_be_finished_is_named_with_the_brokers_tool(brokers: Brokers) -> None:
    """As when another program takes the id over at the same moment, at the producer's last epoch."""
    brokers.written()
    brokers.skipped = BOTH

    asked: Any = brokers.transport
    original = asked._one

    def one(call: Call) -> Any:
        answer = original(call)
        if isinstance(call.request, InitProducerIdRequest) and call.request.producer_id < 0 and not taken_over:
            taken_over.append(True)
            brokers.wait(1)
            brokers.cluster._state.transaction_shard(NAME).table.clear()
            brokers.init(NAME)
        return answer

    taken_over: list[bool] = []
    asked._one = one
    with pytest.raises(ControlPlaneError, match=r"another producer id .* kafka-transactions\.sh .* abort --topic out"):
        brokers.swept()


# -- a late request of the producer reopens what has ended (KIP-890, until transaction.version 2)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("place", [OUT, OTHER], ids=["marked", "hanging"])
def test_a_commit_that_a_late_request_reopens_is_committed_before_it_can_time_out(
    version: int, place: Partition
) -> None:
    brokers = Brokers(version)
    ids = brokers.written()
    brokers.end_without(ids, OTHER)
    assert brokers.enlist(ids, place) == ErrorCode.NONE
    assert brokers.view(NAME).state is State.ONGOING
    assert brokers.committed(ids).outcome is Outcome.COMMITTED
    assert brokers.read == ALL
    assert not brokers.held_back()


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("hanging", "outcome"), [((OTHER,), Outcome.IN_DOUBT), ((OUT, OTHER), Outcome.LOST)], ids=["a part", "all"]
)
def test_a_confirmed_commit_that_a_late_request_reopens_and_a_timeout_aborts_is_not_called_settled(
    version: int, hanging: tuple[Partition, ...], outcome: Outcome
) -> None:
    """The process stands still for longer than the transaction's timeout, just after the brokers' confirmation."""
    brokers = Brokers(version)
    ids = brokers.written(timeout_ms=1_000)
    brokers.skipped, brokers.skips_receipts = frozenset(hanging), True
    stood_still = False

    def wait(seconds: float) -> None:
        nonlocal stood_still
        brokers.wait(seconds)
        if not stood_still and brokers.view(NAME).state is State.COMPLETE_COMMIT:
            stood_still, brokers.skipped, brokers.skips_receipts = True, frozenset(), False
            assert brokers.enlist(ids, *hanging) == ErrorCode.NONE
            brokers.wait(10)

    clock = Clock(monotonic=brokers.transport.now, wait=wait)
    made = KafkaSystem(brokers.control, clock=clock)
    (settlement,) = made.commit(author(), [brokers.handle(ids).to_committable()])
    assert settlement.outcome is outcome, settlement
    assert "was aborted before its markers were written: out-" in settlement.evidence
