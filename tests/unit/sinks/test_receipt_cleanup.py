"""Receipts are deleted once no settlement needs them, and never while one of them is being written."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, ListGroupsRequest, ListTransactionsRequest

from onceward.protocol.values import CheckpointId, Claim, Generation
from onceward.sinks.kafka.control.claim_reading import read_claim
from onceward.sinks.kafka.control.claims import ClaimHolder
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.forgetting import forget_job
from onceward.sinks.kafka.control.receipt_cleanup import delete_older_receipts, delete_receipts
from onceward.sinks.kafka.control.receipts import ReceiptState
from onceward.sinks.kafka.errors import ControlPlaneError
from tests.support.kafka_model import Call, Settings
from tests.support.kafka_model.bench import Bench

LAST = Claim(store_id="ours", generation=Generation(3), completed=CheckpointId(9), holder="a")


@pytest.fixture
def bench() -> Bench:
    return Bench(Settings(brokers=(1, 2, 3)))


def name(number: int, generation: int = 2, job: str = "orders") -> str:
    return f"{job}.sink.{generation}.0123abcd.{number}"


def clock(bench: Bench) -> Clock:
    return Clock(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), monotonic=bench.transport.now, wait=bench.wait)


def receipts(bench: Bench, *names: str, ended: bool = True) -> None:
    for each in names:
        ids = bench.open(each)
        assert not ended or bench.end(ids) == 0
    bench.wait(1)


def left(bench: Bench, *names: str) -> list[str]:
    return [each for each in names if bench.receipt_of(each).state is ReceiptState.PRESENT]


def cut(bench: Bench, request: type, node: int | None = None, *, times: int = 10**9) -> None:
    """Lose the next requests of a kind, or only those to ``node`` if it is given."""
    lost = 0

    def lose(call: Call) -> bool:
        nonlocal lost
        hit = isinstance(call.request, request) and node in (None, call.node) and lost < times
        lost += hit
        return hit

    bench.transport.cut = lose


def test_receipts_of_unused_ids_are_deleted_and_all_others_stay(bench: Bench) -> None:
    names = [name(number) for number in range(8)]
    receipts(bench, *names)
    assert delete_receipts(bench.control, "orders", names[:6]) == names[:6]
    assert left(bench, *names) == names[6:]
    assert delete_receipts(bench.control, "orders", []) == []


@pytest.mark.parametrize("commit", [True, False])
def test_a_receipt_that_is_being_written_is_never_deleted(bench: Bench, commit: bool) -> None:
    """Deleting its group would lose the receipt, and nothing could prove the commit."""
    here = Bench(Settings(marker_delay=lambda _id, _partition: 5.0))
    names = [name(number) for number in range(3)]
    here.open(names[0])
    assert here.end(here.open(names[1]), commit=commit) == 0
    assert delete_receipts(here.control, "orders", names) == []
    assert delete_older_receipts(here.control, "orders", below=3) == []
    here.wait(6)
    assert left(here, names[1]) == ([names[1]] if commit else [])


def test_nothing_is_deleted_while_open_transactions_are_unknown(bench: Bench) -> None:
    names = [name(number) for number in range(8)]
    receipts(bench, *names)
    cut(bench, ListTransactionsRequest, bench.cluster.settings.brokers[1])
    assert delete_receipts(bench.control, "orders", names) == []
    assert delete_older_receipts(bench.control, "orders", below=3) == []
    cut(bench, ListTransactionsRequest, 99)
    assert left(bench, *names) == names


def test_receipts_of_earlier_generations_go_and_those_of_others_stay(bench: Bench) -> None:
    older = [name(number, generation) for generation in (1, 2) for number in range(4)]
    others = [name(0, 3), name(0, 4), name(0, 1, "orders-eur"), name(0, 1, "orders.more"), "a-group"]
    receipts(bench, *older, *others)
    ClaimHolder(bench.control, "orders", clock(bench)).take(LAST, ())
    bench.wait(1)
    assert delete_older_receipts(bench.control, "orders", below=3) == sorted(older)
    assert left(bench, *older, *others) == others
    assert read_claim(bench.control, "orders", clock(bench)) == LAST


@pytest.mark.parametrize("request_type", [ListGroupsRequest, DeleteGroupsRequest])
def test_receipts_of_a_silent_broker_are_left_for_later(bench: Bench, request_type: type) -> None:
    names = [name(number) for number in range(12)]
    receipts(bench, *names)
    silent = bench.cluster.settings.brokers[0]
    cut(bench, request_type, silent)
    deleted = delete_older_receipts(bench.control, "orders", below=3)
    assert 0 < len(deleted) < len(names)
    cut(bench, request_type, 99)
    assert left(bench, *names) == [each for each in names if each not in deleted]
    assert delete_older_receipts(bench.control, "orders", below=3) == sorted(set(names) - set(deleted))


def test_a_refused_deletion_is_not_reported_as_done(bench: Bench) -> None:
    names = [name(0), name(1)]
    receipts(bench, *names)
    ask = bench.transport._one

    def one(call: Call) -> Any:
        answer = ask(call)
        if isinstance(call.request, DeleteGroupsRequest):
            for result in answer.results:
                if result.group_id == name(1):
                    results = [each for each in answer.results if each is not result]
                    refused = SimpleNamespace(group_id=name(1), error_code=30)
                    return SimpleNamespace(results=[*results, refused])
        return answer

    changed: Any = bench.transport
    changed._one = one
    assert delete_receipts(bench.control, "orders", names) == [name(0)]


# -- a job that is deleted


def forget(bench: Bench) -> None:
    forget_job(bench.control, "orders", LAST, clock(bench))


def claimed(bench: Bench, claim: Claim = LAST) -> None:
    ClaimHolder(bench.control, "orders", clock(bench)).take(claim, ())
    bench.wait(1)


def test_a_deleted_job_leaves_neither_receipts_nor_claim_and_others_keep_theirs(bench: Bench) -> None:
    ours = [name(number, generation) for generation in (1, 3) for number in range(4)]
    others = [name(0, 4), name(0, 1, "bills")]
    receipts(bench, *ours, *others)
    claimed(bench)
    forget(bench)
    assert left(bench, *ours, *others) == others
    assert read_claim(bench.control, "orders", clock(bench)) is None
    forget(bench)  # the first run was killed before it could report success


@pytest.mark.parametrize(
    "claim",
    [
        Claim(store_id="theirs", generation=Generation(1), completed=CheckpointId(1), holder="b"),
        Claim(store_id="ours", generation=Generation(4), completed=CheckpointId(10), holder="b"),
    ],
    ids=["another store's", "a newer generation's"],
)
def test_a_claim_that_is_not_of_the_deleted_job_stays(bench: Bench, claim: Claim) -> None:
    claimed(bench, claim)
    forget(bench)
    assert read_claim(bench.control, "orders", clock(bench)) == claim


def test_nothing_is_deleted_while_a_transaction_is_open(bench: Bench) -> None:
    receipts(bench, name(0))
    claimed(bench)
    receipts(bench, name(1), ended=False)
    with pytest.raises(ControlPlaneError, match=f"Transactions of job orders are open: {name(1)}. Nothing was deleted"):
        forget(bench)
    assert left(bench, name(0)) == [name(0)]
    assert read_claim(bench.control, "orders", clock(bench)) == LAST


def test_the_claim_stays_while_receipts_are_unknown(bench: Bench) -> None:
    receipts(bench, *(name(number) for number in range(8)))
    claimed(bench)
    cut(bench, ListGroupsRequest, bench.cluster.settings.brokers[2])
    with pytest.raises(ControlPlaneError, match="Not every broker reports which receipts"):
        forget(bench)
    cut(bench, ListGroupsRequest, 99)
    assert read_claim(bench.control, "orders", clock(bench)) == LAST
    forget(bench)


def test_a_lost_deletion_is_retried(bench: Bench) -> None:
    receipts(bench, name(0))
    claimed(bench)
    cut(bench, DeleteGroupsRequest, times=3)
    forget(bench)
    cut(bench, DeleteGroupsRequest, 99)
    assert left(bench, name(0)) == []
    assert read_claim(bench.control, "orders", clock(bench)) is None


@pytest.mark.parametrize(("with_receipts", "what"), [(True, "1 receipts of job orders"), (False, "the claim of job")])
def test_a_deletion_without_confirmation_for_30_s_is_an_error(bench: Bench, with_receipts: bool, what: str) -> None:
    if with_receipts:
        receipts(bench, name(0))
    claimed(bench)
    began = bench.transport.now()
    cut(bench, DeleteGroupsRequest)
    with pytest.raises(ControlPlaneError, match=f"After 30 s {what}"):
        forget(bench)
    assert 30 <= bench.transport.now() - began < 33
