"""The committer at modelled brokers, with transactions that another client ended, hid or aborted in part."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kafka.protocol.admin import DescribeProducersRequest, DescribeTransactionsRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from onceward.common.errors import ConfigurationError, FencedError, HaltedError
from onceward.protocol.committing import Age
from onceward.protocol.values import (
    Author,
    CheckpointId,
    Claim,
    Committable,
    Document,
    Generation,
    JobName,
    Outcome,
)
from onceward.protocol.values import Settlement as Settled
from onceward.sinks.kafka.control.claim_reading import read_claim
from onceward.sinks.kafka.control.claims import ClaimHolder
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.control_plane import CoordinatorKind
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import State, Transaction
from onceward.sinks.kafka.errors import ContradictionError, ControlPlaneError
from tests.support.documents import author
from tests.support.kafka_model import LAST_EPOCH, AddOffsets, Settings, SimControl
from tests.support.kafka_model.bench import OUT, Bench, Ids, init_request
from tests.support.kafka_model.transport import Call, DirectTransport

OTHER = ("out", 1)
JOB = JobName("orders")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def bench() -> Bench:
    return Bench(Settings(brokers=(1, 2, 3), timeout_scan_s=1))


def clock(bench: Bench) -> Clock:
    return Clock(
        now=lambda: NOW + timedelta(seconds=bench.transport.now()), monotonic=bench.transport.now, wait=bench.wait
    )


def committer(bench: Bench, generation: int | None = 2) -> KafkaSystem:
    return KafkaSystem(bench.control, clock=clock(bench), generation=lambda: generation)


def name(number: int, generation: int = 2) -> str:
    return f"orders.sink.{generation}.0123abcd.{number}"


class OneIsOutdated(DirectTransport):
    """For a second, a deposed coordinator gets every DescribeTransactions. The new one gets what any may answer."""

    def __init__(self, outdated: int, current: int) -> None:
        super().__init__()
        self._outdated = outdated
        self._current = current

    def send(self, calls: Sequence[Call]) -> list[Any]:
        return super().send([replace(call, node=self._node(call)) for call in calls])

    def _node(self, call: Call) -> int:
        if isinstance(call.request, DescribeTransactionsRequest) and self.now() < 1:
            return self._outdated
        return self._current if call.node is None else call.node


def written(bench: Bench, number: int = 0) -> Ids:
    """Write two records to one partition, one to the other, and a receipt."""
    ids = bench.init(name(number))
    bench.enlist(ids, OUT, OTHER)
    assert bench.produce(ids, (b"a", b"b")) == bench.produce(ids, (b"c",), partition=OTHER) == bench.receipt(ids) == 0
    return ids


def handle_of(bench: Bench, ids: Ids, slot: int = 0) -> KafkaCommittable:
    return KafkaCommittable(
        slot=slot,
        checkpoint=7,
        cluster_name=bench.control.cluster.name,
        cluster_id=bench.cluster.settings.cluster_id,
        transaction=Transaction(id=ids[0], producer_id=ids[1], epoch=ids[2], version=5),
        token="token",
        topics={"out": TopicRecords(records=3, partitions=(0, 1))},
        records=3,
        bytes=3,
        inputs=[{"topic": "in", "partition": 4, "start": 10, "end": 13}],
        pre_committed=NOW,
        timeout=timedelta(minutes=1),
    )


def committable(bench: Bench, ids: Ids, slot: int = 0) -> Committable:
    return handle_of(bench, ids, slot).to_committable()


def outcomes(settlements: Sequence[Settled]) -> dict[int, Outcome]:
    return {each.slot: each.outcome for each in settlements}


def committed(bench: Bench, ids: Ids) -> Settled:
    (settlement,) = committer(bench).commit(author(), [committable(bench, ids)])
    return settlement


def count(bench: Bench, kind: type) -> int:
    return sum(isinstance(call.request, kind) for call in bench.transport.sent)


# -- commit


def test_a_transaction_that_was_already_committed_is_committed(bench: Bench) -> None:
    ids = written(bench)
    assert bench.end(ids) == 0
    bench.wait(1)
    assert committed(bench, ids).outcome is Outcome.COMMITTED
    assert bench.visible() == [b"a", b"b"]


def test_more_transactions_than_one_request_holds_are_committed_without_a_pause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.sinks.kafka.control.settling.IN_FLIGHT", 2)
    handles = [committable(bench, written(bench, number), number) for number in range(5)]
    settled = committer(bench).commit(author(), handles)
    assert outcomes(settled) == dict.fromkeys(range(5), Outcome.COMMITTED)
    assert bench.transport.now() < 0.1  # until the markers are there
    assert count(bench, EndTxnRequest) == 5


@pytest.mark.parametrize("commit", [True, False])
def test_the_log_proves_the_end_of_a_transaction_whose_id_moved_on(bench: Bench, commit: bool) -> None:
    ids = written(bench)
    assert bench.end(ids, commit=commit) == 0
    bench.wait(1)
    later = written(bench)
    assert bench.end(later, commit=not commit) == 0
    bench.wait(1)
    began = bench.transport.now()
    settlement = committed(bench, ids)
    assert settlement.outcome is (Outcome.COMMITTED if commit else Outcome.LOST)
    assert ("is COMMIT" if commit else "is ABORT") in settlement.evidence
    looked_twice = bench.transport.now() - began > 2
    assert looked_twice is not commit, "one look does not prove a loss"


def test_a_transaction_that_timed_out_is_lost_after_two_looks_that_agree(bench: Bench) -> None:
    ids = written(bench)
    bench.wait(70)
    settlement = committed(bench, ids)
    assert settlement.outcome is Outcome.LOST
    assert 72.1 <= bench.transport.now() < 76


def test_one_slot_may_be_committed_another_lost_and_a_third_unanswered(bench: Bench) -> None:
    """The third slot's coordinator does not answer: it gets no outcome, and the others do not wait for it."""
    lost = written(bench, 0)
    assert bench.end(lost, commit=False) == 0
    bench.wait(1)
    node = bench.coordinator(key=lost[0])
    there = [number for number in range(1, 30) if bench.coordinator(key=name(number)) == node]
    away = [number for number in range(1, 30) if bench.coordinator(key=name(number)) != node]
    whole, third = written(bench, there[0]), written(bench, away[0])
    silent = bench.coordinator(key=third[0])
    bench.transport.cut = lambda call: (
        isinstance(call.request, EndTxnRequest) and call.request.transactional_id == third[0]
    )
    handles = [committable(bench, ids, slot) for slot, ids in enumerate((third, lost, whole))]
    settled = committer(bench).commit(author(), handles, give_up=lambda: bench.transport.now() > 10)
    assert outcomes(settled) == {1: Outcome.LOST, 2: Outcome.COMMITTED}
    assert silent != node
    bench.transport.cut = lambda _call: False
    assert outcomes(committer(bench).commit(author(), handles[:1])) == {0: Outcome.COMMITTED}


def test_a_single_refusal_is_checked_again_and_does_not_lose_the_transaction(bench: Bench) -> None:
    """A coordinator with outdated state may refuse a commit that it carries out a moment later."""
    ids, ask, refused = written(bench), bench.transport._one, list[Any]()

    def one(call: Any) -> Any:
        if isinstance(call.request, EndTxnRequest) and not refused:
            refused.append(call)
            return type("Refused", (), {"error_code": 49})()
        return ask(call)

    changed: Any = bench.transport
    changed._one = one
    assert committed(bench, ids).outcome is Outcome.COMMITTED
    assert bench.transport.now() >= 2.1
    bench.wait(1)
    assert bench.visible() == [b"a", b"b"]


def test_a_transaction_that_lost_a_part_is_aborted_whole_before_it_counts_as_lost(bench: Bench) -> None:
    ids = written(bench)
    bench.cluster.log(OTHER).mark(ids[1], ids[2], commit=False, now=bench.transport.now())
    settlement = committed(bench, ids)
    assert settlement.outcome is Outcome.LOST
    assert "seen twice, the rest is aborted" in settlement.evidence
    assert bench.transport.now() >= 2.1
    bench.wait(1)
    assert bench.visible() == bench.visible(OTHER) == []
    assert bench.view(ids[0]).state is State.COMPLETE_ABORT


@pytest.mark.parametrize("readable", [True, False], ids=["log", "receipt"])
def test_a_committed_transaction_that_a_late_request_reopened_is_committed(readable: bool) -> None:
    """Until EndTxn version 5, a repeated AddOffsetsToTxn that arrives after the commit reopens the transaction under
    the same pair, without its records. Aborted and replayed, they would be visible twice."""
    bench = Bench(Settings(transaction_version=1))
    ids = written(bench)
    assert bench.end(ids, version=4) == 0
    bench.wait(1)
    late = AddOffsets(transactional_id=ids[0], producer_id=ids[1], producer_epoch=ids[2], group_id=ids[0])
    assert bench.ask(late, key=ids[0]).error_code == 0
    assert bench.view(ids[0]).state is State.ONGOING
    if not readable:
        for partition in (OUT, OTHER):
            bench.cluster.log(partition).start = bench.cluster.log(partition).high_watermark
    handle = handle_of(bench, ids)
    handle = replace(handle, transaction=replace(handle.transaction, version=4))
    (settlement,) = committer(bench).commit(author(), [handle.to_committable()])
    assert settlement.outcome is Outcome.COMMITTED
    ends = [call.request for call in bench.transport.sent if isinstance(call.request, EndTxnRequest)]
    assert all(end.committed for end in ends)


def test_an_outdated_coordinator_does_not_let_a_transaction_that_lost_a_part_be_committed() -> None:
    """The deposed coordinator describes the transaction before ours, so ours seems to have ended. The coordinator that
    gets EndTxn knows ours, and would commit the rest."""
    bench = Bench(Settings(brokers=(1, 2, 3)))
    bench.init(name(0))
    former = bench.coordinator(key=name(0))
    current = former % 3 + 1
    bench.cluster.move_coordinator(CoordinatorKind.TRANSACTION, name(0), current, 0.0, stale_s=1.5)
    bench.transport = OneIsOutdated(former, current)
    bench.control = SimControl(bench.cluster, bench.transport)
    ids = written(bench)
    bench.cluster.log(OTHER).mark(ids[1], ids[2], commit=False, now=bench.transport.now())
    settlement = committed(bench, ids)
    assert settlement.outcome is Outcome.LOST
    assert bench.visible(OUT) == bench.visible(OTHER) == []


def test_a_transaction_that_was_aborted_at_the_last_epoch_is_lost(bench: Bench) -> None:
    """The abort moves the id to another producer id, so its coordinator never shows that ours has ended."""
    bench.init(name(0))
    entry = bench.cluster.entry(name(0))
    assert entry is not None
    entry.epoch = LAST_EPOCH - 1
    ids = written(bench)
    assert ids[2] == LAST_EPOCH
    assert bench.end(ids, commit=False) == 0
    bench.wait(1)
    assert bench.view(ids[0]).producer_id != ids[1]
    settled = committer(bench).commit(author(), [committable(bench, ids)], give_up=lambda: bench.transport.now() > 60)
    assert [settlement.outcome for settlement in settled] == [Outcome.LOST]


def test_a_driver_that_leaves_after_it_saw_a_lost_part_aborts_nothing(bench: Bench) -> None:
    ids = written(bench)
    bench.cluster.log(OTHER).mark(ids[1], ids[2], commit=False, now=bench.transport.now())
    settled = committer(bench).commit(author(), [committable(bench, ids)], give_up=lambda: bench.transport.now() > 2)
    assert list(settled) == []
    assert bench.view(ids[0]).state is State.ONGOING
    assert count(bench, EndTxnRequest) == 0


def test_a_part_that_was_lost_before_the_commit_is_in_doubt_and_named(bench: Bench) -> None:
    ids = written(bench)
    bench.cluster.log(OTHER).mark(ids[1], ids[2], commit=False, now=bench.transport.now())
    assert bench.end(ids) == 0
    bench.wait(1)
    settlement = committed(bench, ids)
    assert settlement.outcome is Outcome.IN_DOUBT
    assert "out-1" in settlement.evidence
    assert "is ABORT behind 1 records" in settlement.evidence


def test_of_two_slots_that_lost_a_part_the_open_one_is_aborted_and_the_ended_one_is_in_doubt(bench: Bench) -> None:
    ended, is_open = written(bench, 0), written(bench, 1)
    for ids in (ended, is_open):
        bench.cluster.log(OTHER).mark(ids[1], ids[2], commit=False, now=bench.transport.now())
    assert bench.end(ended) == 0
    bench.wait(1)
    settled = committer(bench).commit(
        author(), [committable(bench, ids, slot) for slot, ids in enumerate((ended, is_open))]
    )
    assert outcomes(settled) == {0: Outcome.IN_DOUBT, 1: Outcome.LOST}


def test_a_part_that_is_seen_lost_after_other_looks_is_believed_when_it_is_seen_twice(bench: Bench) -> None:
    """During the first looks the coordinator refuses although every part exists."""
    ids, ask, refused = written(bench), bench.transport._one, list[Any]()

    def one(call: Any) -> Any:
        if isinstance(call.request, EndTxnRequest) and call.request.committed:
            refused.append(call)
            if len(refused) == 3:
                bench.cluster.log(OTHER).mark(ids[1], ids[2], commit=False, now=bench.transport.now())
            return type("Refused", (), {"error_code": 49})()
        return ask(call)

    changed: Any = bench.transport
    changed._one = one
    assert committed(bench, ids).outcome is Outcome.LOST
    assert len(refused) == 3
    assert 4 * 2.1 <= bench.transport.now() < 5 * 2.1, "two more looks"


def test_another_transaction_under_the_id_is_fenced_only_when_it_is_seen_twice(bench: Bench) -> None:
    ids = written(bench)
    assert bench.end(ids) == 0
    bench.wait(1)
    hides = written(bench)  # its open receipt hides ours
    for partition in (OUT, OTHER):
        bench.cluster.log(partition).start = bench.cluster.log(partition).high_watermark  # nor does the log show it
    settlement = committed(bench, ids)
    assert settlement.outcome is Outcome.COMMITTED
    assert bench.view(hides[0]).state is not State.ONGOING
    assert bench.transport.now() >= 4.2
    fences = [call for call in bench.transport.sent if isinstance(call.request, InitProducerIdRequest)]
    assert [call.request.producer_id for call in fences[-1:]] == [-1]


def test_a_cluster_with_another_id_at_the_address_is_not_asked(bench: Bench) -> None:
    ids = written(bench)
    elsewhere = replace(handle_of(bench, ids), cluster_id="another").to_committable()
    bench.transport.sent.clear()
    (settlement,) = committer(bench).commit(author(), [elsewhere])
    assert settlement.outcome is Outcome.IN_DOUBT
    assert "another" in settlement.evidence
    assert count(bench, EndTxnRequest) == count(bench, DescribeTransactionsRequest) == 0
    assert committer(bench).outcome(elsewhere).outcome is Outcome.IN_DOUBT
    with pytest.raises(ControlPlaneError, match=r"slots \[0\] could not be aborted"):
        committer(bench).abort(author(), [elsewhere])
    assert bench.view(ids[0]).state is State.ONGOING


def test_an_unreadable_document_fails_the_call_before_any_request(bench: Bench) -> None:
    unreadable = Committable(slot=1, document=Document(kind="kafka-transaction", version=9, body={}))
    right = committable(bench, written(bench))
    bench.transport.sent.clear()
    for call in (committer(bench).commit, committer(bench).abort):
        with pytest.raises(HaltedError, match="slot 1"):
            call(author(), [right, unreadable])
    with pytest.raises(HaltedError):
        committer(bench).sweep(JOB, keep=[unreadable])
    assert bench.transport.sent == []


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ("payments-service-7", author()),
        ("payments.sink.2.0123abcd.0", author()),
        ("orders.other.2.0123abcd.0", author()),
        ("orders.sink.2.0123abcd.0", author(last=1)),
        ("orders.sink.2.0123abcd.0", author(first=3)),
    ],
    ids=["another program", "another job", "another sink", "a later generation", "an earlier generation"],
)
def test_the_transaction_of_another_is_neither_committed_nor_aborted_nor_fenced(
    bench: Bench, theirs: str, named: Author
) -> None:
    """The right one beside it is not ended either: the process that forged one slot may have forged the others."""
    right, forged = (handle_of(bench, written(bench, slot), slot) for slot in (0, 1))
    own = replace(right.transaction, id=name(0, named.generations[0]))
    both = [
        replace(right, transaction=own).to_committable(),
        replace(forged, transaction=replace(forged.transaction, id=theirs)).to_committable(),
    ]
    bench.transport.sent.clear()
    for call in (committer(bench).check, committer(bench).commit, committer(bench).abort):
        with pytest.raises(HaltedError, match=rf"slot 1 .* names transaction '{re.escape(theirs)}'"):
            call(named, both)
        committer(bench).check(named, both[:1])
    assert bench.transport.sent == []


def test_parts_are_unknown_while_their_leader_does_not_answer(bench: Bench) -> None:
    ids, until = written(bench), 3.0
    bench.transport.cut = lambda call: (
        isinstance(call.request, DescribeProducersRequest) and bench.transport.now() < until
    )
    assert committed(bench, ids).outcome is Outcome.COMMITTED
    assert bench.transport.now() >= until
    assert count(bench, EndTxnRequest) == 1


# -- abort


def test_an_abort_is_confirmed_and_may_be_repeated(bench: Bench) -> None:
    ids = written(bench)
    for _ in range(2):
        committer(bench).abort(author(), [committable(bench, ids)])
        bench.wait(1)
        assert bench.view(ids[0]).state is State.COMPLETE_ABORT
    assert bench.visible() == []


def test_an_abort_with_a_lost_answer_is_retried(bench: Bench) -> None:
    ids, deaf = written(bench), iter([True, True])
    bench.transport.deaf = lambda call: isinstance(call.request, EndTxnRequest) and next(deaf, False)
    committer(bench).abort(author(), [committable(bench, ids)])
    bench.wait(1)
    assert bench.view(ids[0]).state is State.COMPLETE_ABORT


def test_an_abort_without_confirmation_for_30_s_is_an_error(bench: Bench) -> None:
    ids = written(bench)
    bench.transport.cut = lambda call: isinstance(call.request, EndTxnRequest)
    with pytest.raises(ControlPlaneError, match="Could not abort 1 within 30 s"):
        committer(bench).abort(author(), [committable(bench, ids)])
    assert 30 <= bench.transport.now() < 32


def test_a_fenced_superseded_or_forgotten_transaction_needs_no_abort(bench: Bench) -> None:
    fenced, moved = written(bench, 0), written(bench, 1)
    bench.control.send_located(CoordinatorKind.TRANSACTION, {name(0): init_request(name(0), None, 60_000)})
    bench.wait(1)
    bench.end(moved, commit=False)
    bench.wait(1)
    later = written(bench, 1)
    forgotten = (name(2), 99, 0)
    handles = [committable(bench, ids, slot) for slot, ids in enumerate((fenced, moved, forgotten))]
    committer(bench).abort(author(), handles)
    assert bench.view(later[0]).state is State.ONGOING, "that is another transaction"


@pytest.mark.parametrize("late", [False, True], ids=["being committed", "committed"])
def test_a_transaction_that_was_to_be_aborted_and_is_committed_is_a_contradiction(bench: Bench, late: bool) -> None:
    """This includes the time before its markers are written: a prepared commit cannot be undone."""
    ids = written(bench)
    assert bench.end(ids) == 0
    if late:
        bench.wait(1)
    with pytest.raises(ContradictionError, match=f"Transaction {name(0)} .* it is committed"):
        committer(bench).abort(author(), [committable(bench, ids)])


@pytest.mark.parametrize("version", [4, 5])
def test_a_commit_by_a_later_owner_of_the_id_is_no_contradiction(version: int) -> None:
    bench = Bench(Settings(transaction_version=2 if version == 5 else 0))
    ids = written(bench)
    assert bench.end(ids, commit=False, version=version) == 0
    bench.wait(1)
    later = written(bench)
    assert bench.end(later, version=version) == 0
    bench.wait(1)
    handle = handle_of(bench, ids)
    handle = replace(handle, transaction=replace(handle.transaction, version=version))
    committer(bench).abort(author(), [handle.to_committable()])
    assert bench.visible() == [b"a", b"b"]


def test_a_commit_with_an_unchanged_epoch_is_a_contradiction_too() -> None:
    bench = Bench(Settings(transaction_version=0))
    ids = written(bench)
    assert bench.end(ids, version=4) == 0
    bench.wait(1)
    handle = handle_of(bench, ids)
    handle = replace(handle, transaction=replace(handle.transaction, version=4))
    with pytest.raises(ContradictionError):
        committer(bench).abort(author(), [handle.to_committable()])


def test_an_abort_refused_while_the_transaction_is_open_is_retried(bench: Bench) -> None:
    ids, ask, refused = written(bench), bench.transport._one, list[Any]()

    def one(call: Any) -> Any:
        if isinstance(call.request, EndTxnRequest) and len(refused) < 2:
            refused.append(call)
            return type("Refused", (), {"error_code": 48})()
        return ask(call)

    changed: Any = bench.transport
    changed._one = one
    committer(bench).abort(author(), [committable(bench, ids)])
    bench.wait(1)
    assert bench.view(ids[0]).state is State.COMPLETE_ABORT


# -- sweep and lists


def test_a_sweep_aborts_unreferenced_transactions_and_leaves_other_jobs_alone(bench: Bench) -> None:
    kept, older, stranger = written(bench, 0), bench.open(name(0, 1)), bench.open("bills.sink.2.0123abcd.0")
    mine = bench.open(name(1))
    assert list(committer(bench).leftovers(JOB, keep=[committable(bench, kept)])) == [older[0], mine[0]]
    assert list(committer(bench).sweep(JOB, keep=[committable(bench, kept)])) == [older[0], mine[0]]
    assert bench.view(kept[0]).state is bench.view(stranger[0]).state is State.ONGOING
    assert list(committer(bench).leftovers(JOB)) == [kept[0]]


def test_a_sweep_that_meets_a_newer_generation_touches_nothing(bench: Bench) -> None:
    older, newer = bench.open(name(0, 1)), bench.open(name(0, 3))
    with pytest.raises(FencedError):
        committer(bench).sweep(JOB)
    assert bench.view(older[0]).state is bench.view(newer[0]).state is State.ONGOING
    assert list(committer(bench, None).sweep(JOB)) == [older[0], newer[0]], (
        "before anything is granted nothing is newer"
    )


def test_a_job_is_forgotten_once_nothing_of_it_is_open(bench: Bench) -> None:
    system = committer(bench)
    first, second = bench.open(name(1)), bench.open(name(0))
    assert list(system.leftovers(JOB)) == [second[0], first[0]]
    assert [one.handle.id for one in system.transactions(JOB)] == [second[0], first[0]]
    ours = Claim(store_id="ours", generation=Generation(1), completed=CheckpointId(1), holder="a")
    ClaimHolder(bench.control, JOB, clock(bench)).take(ours, ())
    bench.wait(0.1)
    with pytest.raises(ControlPlaneError, match="are open"):
        system.forget(JOB, ours)
    assert list(system.sweep(JOB)) == [second[0], first[0]]
    assert list(system.leftovers(JOB)) == []
    system.forget(JOB, ours)
    assert read_claim(bench.control, JOB, clock(bench)) is None


def test_a_sweep_is_done_when_the_brokers_have_aborted_everything_and_not_before() -> None:
    slow = Bench(Settings(marker_delay=lambda _id, _partition: 5.0))
    ids = slow.open(name(0))
    assert list(committer(slow).sweep(JOB)) == [ids[0]]
    assert slow.transport.now() >= 5
    assert slow.view(ids[0]).state in (State.COMPLETE_ABORT, State.EMPTY)
    stuck = Bench(Settings(marker_delay=lambda _id, _partition: 500.0))
    stuck.open(name(0))
    with pytest.raises(ControlPlaneError, match=rf"Could not fence 1 within 30 s.*{name(0)}: 51 CONCURRENT"):
        committer(stuck).sweep(JOB)


def test_a_transaction_that_is_ending_is_listed_and_not_swept(bench: Bench) -> None:
    here = Bench(Settings(marker_delay=lambda _id, _partition: 5.0))
    ids = here.open(name(0))
    assert here.end(ids) == 0
    assert list(committer(here).ending(JOB)) == [ids[0]]
    assert list(committer(here).sweep(JOB)) == []
    (listed,) = committer(here).transactions(JOB)
    assert (listed.handle.id, listed.state, listed.left) == (ids[0], State.PREPARE_COMMIT.value, None)


def test_commits_on_an_unreachable_cluster_do_not_count_as_shown(bench: Bench) -> None:
    one = committable(bench, written(bench))
    bench.transport.cut = lambda _call: True
    with pytest.raises(ControlPlaneError, match=r"slots \[0\] is unknown: its cluster cannot be reached"):
        committer(bench).ending(JOB, beside=[one])


def test_open_transactions_are_listed_with_their_age_and_topics(bench: Bench) -> None:
    bench.wait(5)
    second, first = written(bench, 1), bench.init(name(0))
    bench.enlist(first, OUT)
    bench.wait(7)
    at = datetime.fromtimestamp(12, tz=UTC)
    listing = KafkaSystem(bench.control, clock=replace(clock(bench), now=lambda: at))
    listed = listing.transactions(JOB)
    assert [one.handle for one in listed] == [(ids[0], f"{ids[1]}/{ids[2]}") for ids in (first, second)]
    assert [one.details for one in listed] == [
        {"worker": "0123abcd", "receipt": "none", "partitions": "out-0"},
        {"worker": "0123abcd", "receipt": "written", "partitions": "out-0, out-1"},
    ]
    one = listed[1]
    assert (one.cluster, one.participant, one.generation) == (bench.control.cluster.name, "sink", 2)
    assert (one.state, one.age, one.left) == ("Ongoing", timedelta(seconds=7), timedelta(seconds=53))


def test_a_transaction_that_is_listed_and_not_described_is_an_error(bench: Bench) -> None:
    written(bench)
    bench.transport.cut = lambda call: isinstance(call.request, DescribeTransactionsRequest)
    with pytest.raises(ControlPlaneError, match=r"list transaction .* as open and do not describe it.*Ask again\."):
        committer(bench).transactions(JOB)


# -- outcome of one transaction, for an operator


def test_a_single_outcome_changes_nothing(bench: Bench) -> None:
    ids = written(bench)
    bench.transport.sent.clear()
    assert committer(bench).outcome(committable(bench, ids)).outcome is Outcome.IN_DOUBT
    assert count(bench, EndTxnRequest) == count(bench, InitProducerIdRequest) == 0
    assert bench.transport.now() >= 2.1
    assert bench.end(ids) == 0
    bench.wait(1)
    began = bench.transport.now()
    assert committer(bench).outcome(committable(bench, ids)).outcome is Outcome.COMMITTED
    assert bench.transport.now() == began, "one look proves a commit"


def test_an_unproved_outcome_reports_the_last_evidence(bench: Bench) -> None:
    ids = written(bench)
    looks = iter([False, True])
    bench.transport.cut = lambda call: isinstance(call.request, DescribeTransactionsRequest) and next(looks)
    settled = committer(bench).outcome(committable(bench, ids))
    assert settled.outcome is Outcome.IN_DOUBT
    assert "no answer (the request was lost)" in settled.evidence, "the second look"
    assert count(bench, DescribeTransactionsRequest) == 2
    bench.transport.cut = lambda _call: True
    settled = committer(bench).outcome(committable(bench, ids))
    assert (settled.outcome, settled.evidence) == (Outcome.IN_DOUBT, "its cluster cannot be reached")


def test_an_abort_on_a_missing_cluster_reports_why(bench: Bench) -> None:
    handle = replace(handle_of(bench, written(bench), 5), cluster_id="another")
    with pytest.raises(ControlPlaneError, match=r"slots \[5\] could not be aborted: .* with id another, but"):
        committer(bench).abort(author(), [handle.to_committable()])
    bench.transport.cut = lambda _call: True
    with pytest.raises(ControlPlaneError, match=r"slots \[5\] could not be aborted: its cluster cannot be reached"):
        committer(bench).abort(author(), [handle.to_committable()])


def test_the_outcome_of_an_abort_needs_two_looks(bench: Bench) -> None:
    ids = written(bench)
    bench.end(ids, commit=False)
    bench.wait(1)
    began = bench.transport.now()
    assert committer(bench).outcome(committable(bench, ids)).outcome is Outcome.LOST
    assert bench.transport.now() - began == pytest.approx(2.1)


# -- names, ages, claims


def test_a_description_names_the_transaction_and_its_input_in_the_words_of_the_source(bench: Bench) -> None:
    handle = replace(handle_of(bench, (name(0), 4, 1)), input_text="batch 5")
    said = committer(bench).describe(handle.to_committable())
    assert f"slot 0 of checkpoint 7, transaction {name(0)}" in said
    assert said.endswith("3 records (3 to out) from batch 5")
    assert committer(bench).handle(handle.to_committable()) == (name(0), "4/1")


def test_a_description_of_an_earlier_release_s_committable_has_the_splits_as_they_are(bench: Bench) -> None:
    former = handle_of(bench, (name(0), 4, 1))
    batch = replace(former, inputs=[{"batch": 5, "slot": 0, "digests": {}}])
    assert committer(bench).describe(batch.to_committable()).endswith('from [{"batch": 5, "slot": 0, "digests": {}}]')
    many = replace(former, inputs=[{"partition": number} for number in range(1_000)])
    assert 'from [{"partition": 0}, ' in (said := committer(bench).describe(many.to_committable()))
    assert len(said) < 1_000


def test_an_age_counts_from_the_earlier_of_the_two_clocks(bench: Bench) -> None:
    handle = handle_of(bench, (name(0), 4, 1))
    bench.wait(30)

    def age(**changed: Any) -> Age | None:
        return committer(bench).age(replace(handle, **changed).to_committable())

    assert age() == Age(transaction=name(0), open_for=timedelta(seconds=30), timeout=timedelta(minutes=1))
    before, after = NOW - timedelta(seconds=9), NOW + timedelta(seconds=9)
    assert [each.open_for.seconds for began in (before, after) if (each := age(began=began))] == [39, 30]
    assert age(timeout=timedelta(0)) is None


@pytest.mark.parametrize(("hours", "shown"), [(10, timedelta(hours=10)), (-10, timedelta(0))])
def test_a_wall_clock_that_jumped_shows_a_wrong_age_and_changes_no_outcome(
    bench: Bench, hours: int, shown: timedelta
) -> None:
    """For example that of the driver which recovers the job, or that of the coordinator which settles it."""
    wrong = replace(clock(bench), now=lambda: NOW + timedelta(hours=hours))
    one = committable(bench, written(bench))
    late = KafkaSystem(bench.control, clock=wrong, generation=lambda: 2)
    age = late.age(one)
    assert age is not None
    assert age.open_for == shown
    assert late.sweep(JOB, keep=[one]) == []
    (settlement,) = late.commit(author(), [one])
    assert settlement.outcome is Outcome.COMMITTED
    bench.wait(1)
    assert bench.visible() == [b"a", b"b"]


def test_a_claim_is_renewed_by_its_holder_only(bench: Bench) -> None:
    ours = Claim(store_id="ours", generation=Generation(1), completed=CheckpointId(1), holder="a")
    one = KafkaSystem(bench.control, clock=clock(bench))
    with pytest.raises(ConfigurationError, match=r"holds no claim\. Nothing was written"):
        one.renew_claim(ours)
    assert one.read_claim(JOB, certain=True) is None


def test_no_transaction_lasts_longer_than_the_brokers_let_it(bench: Bench) -> None:
    capped = Bench(Settings(max_timeout_ms=7 * 60_000)).control
    assert KafkaSystem(capped, clock=clock(bench)).longest_open() == timedelta(minutes=7)
    bench.transport.cut = lambda _call: True
    assert committer(bench).longest_open() >= timedelta(minutes=15)
