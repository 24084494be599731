"""What a cluster that lacks a transaction's features is asked, and what its answers mean."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.control_plane import CoordinatorKind, Located, NoAnswer, Operation
from onceward.sinks.kafka.control.transactions import Transaction, Transactions, end_txn_version


class Cluster:
    """Keep every request, and answer as the test sets."""

    def __init__(self, *, end_txn: int = 5, transactions: int = 2, answers: Mapping[str, Any] | None = None) -> None:
        self._end_txn = end_txn
        self._transactions = transactions
        self._answers = answers or {}
        self.asked: dict[str, Any] = {}
        self.located: Mapping[str, Located] | None = None

    def highest_version(self, _request: type) -> int:
        return self._end_txn

    def transaction_version(self) -> int:
        return self._transactions

    def reading_transaction_version(self) -> Operation[int]:
        yield from ()
        return self._transactions

    def run(self, operation: Operation[Any]) -> Any:
        with pytest.raises(StopIteration) as ended:
            next(operation)
        return ended.value.value

    def send_located(
        self, kind: CoordinatorKind, keyed: Mapping[str, Any], *, located: Mapping[str, Located] | None
    ) -> dict[str, Any]:
        assert kind is CoordinatorKind.TRANSACTION
        self.asked, self.located = dict(keyed), located
        return {name: self._answers.get(name, SimpleNamespace(error_code=ErrorCode.NONE)) for name in keyed}


@pytest.mark.parametrize(
    ("end_txn", "transactions", "version"),
    [(5, 2, 5), (6, 2, 5), (6, 3, 5), (5, 1, 4), (5, 0, 4), (6, 1, 4), (4, 2, 4), (3, 2, 3), (3, 0, 3)],
)
def test_transactions_end_with_version_5_only_where_they_raise_the_epoch_themselves(
    end_txn: int, transactions: int, version: int
) -> None:
    cluster: Any = Cluster(end_txn=end_txn, transactions=transactions)
    assert end_txn_version(cluster) == version


@pytest.mark.parametrize(
    ("begun_with", "transactions", "ended_with"),
    [(5, 2, 5), (5, 1, 5), (5, 0, 4), (4, 2, 4), (4, 0, 4), (3, 2, 3)],
)
def test_a_transaction_ends_with_the_version_it_was_begun_with_unless_the_cluster_went_back(
    begun_with: int, transactions: int, ended_with: int
) -> None:
    cluster: Any = Cluster(transactions=transactions)
    transaction = Transaction(id="a", producer_id=7, epoch=3, version=begun_with)
    assert Transactions(cluster).end([transaction], commit=True) == {"a": ErrorCode.NONE}
    request = cluster.asked["a"]
    assert (request.producer_id, request.producer_epoch, request.committed) == (7, 3, True)
    assert request._min_version == request._max_version == ended_with, "the library picks between them"


def test_known_transaction_coordinators_are_asked_directly() -> None:
    cluster: Any = Cluster()
    located: Any = {"a": object()}
    Transactions(cluster).end([Transaction(id="a", producer_id=1, epoch=0, version=4)], commit=False, located=located)
    assert cluster.located is located


def test_an_unlocated_coordinators_code_is_the_answer_and_silence_stays_silence() -> None:
    silence = NoAnswer(why="the request was lost")
    cluster: Any = Cluster(answers={"a": NoAnswer(why="its coordinator is not known", code=15), "b": silence})
    assert Transactions(cluster).fence(["a", "b", "c"]) == {"a": 15, "b": silence, "c": ErrorCode.NONE}


def test_a_fence_names_no_producer_so_that_every_older_epoch_is_refused() -> None:
    cluster: Any = Cluster()
    Transactions(cluster).fence(["a"])
    request = cluster.asked["a"]
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("a", -1, -1)
