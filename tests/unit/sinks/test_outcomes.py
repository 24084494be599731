"""What broker answers prove, over every combination."""

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest

from coordinator.protocol.values import Outcome
from sinks.kafka.control import NoAnswer
from sinks.kafka.outcomes import EndAnswer, Judgement, Look, Proof, classify, conclude, judge
from sinks.kafka.receipts import Receipt, ReceiptState
from sinks.kafka.transactions import State, Transaction, TransactionView

V5 = Transaction(id="j.s.1.00000000.0", producer_id=7, epoch=3, version=5)
V4 = replace(V5, version=4)
WEEK = timedelta(days=7)

PAIRS = [(7, 2), (7, 3), (7, 4), (7, 5), (8, 0)]
ENDED = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
BEING_ENDED = (State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE)


def look(
    state: State = State.EMPTY,
    pair: tuple[int, int] = (7, 3),
    receipt: ReceiptState = ReceiptState.ABSENT,
    *,
    code: int | NoAnswer = 0,
    age: timedelta = timedelta(minutes=1),
    retention: timedelta | None = WEEK,
) -> Look:
    view = TransactionView(id=V5.id, code=code, state=state, producer_id=pair[0], epoch=pair[1])
    return Look(end=48, view=view, receipt=Receipt(state=receipt), age=age, retention=retention)


def proof(transaction: Transaction, seen: Look) -> Proof:
    return judge(transaction, seen).proof


@pytest.mark.parametrize("transaction", [V5, V4])
def test_our_token_in_the_receipt_proves_the_commit_whatever_else_is_seen(transaction: Transaction) -> None:
    codes: list[int | NoAnswer] = [0, 105, 53, NoAnswer(why="gone")]
    for state, pair, code in itertools.product(State, PAIRS, codes):
        assert proof(transaction, look(state, pair, ReceiptState.PRESENT, code=code)) is Proof.COMMITTED


def test_every_state_at_every_pair_is_judged_as_the_design_says() -> None:
    for transaction, state, pair, receipt in itertools.product(
        (V4, V5), State, PAIRS, (ReceiptState.ABSENT, ReceiptState.UNSTABLE, ReceiptState.NO_ANSWER)
    ):
        ours = pair == (7, 3) or (pair == (7, 4) and transaction.version == 5)
        moved_on = pair in ((7, 4), (7, 5), (8, 0))
        if state in BEING_ENDED:
            expected = Proof.AGAIN
        elif state is State.COMPLETE_COMMIT and ours:
            expected = Proof.COMMITTED
        elif state is State.COMPLETE_ABORT and ours:
            expected = Proof.LOST
        elif state is State.ONGOING and pair == (7, 3):
            expected = Proof.OPEN
        elif state is State.ONGOING and moved_on:
            expected = Proof.OPEN_ELSEWHERE
        elif state in (*ENDED, State.EMPTY) and moved_on:
            expected = {
                ReceiptState.ABSENT: Proof.LOST,
                ReceiptState.UNSTABLE: Proof.UNSTABLE,
                ReceiptState.NO_ANSWER: Proof.NOTHING,
            }[receipt]
        else:
            expected = Proof.NOTHING
        assert proof(transaction, look(state, pair, receipt)) is expected, (transaction.version, state, pair, receipt)


def test_an_id_that_the_brokers_forgot_has_moved_on() -> None:
    assert proof(V5, look(code=105)) is Proof.LOST
    assert proof(V5, look(code=105, receipt=ReceiptState.NO_ANSWER)) is Proof.NOTHING


@pytest.mark.parametrize("code", [NoAnswer(why="disconnected"), 14, 15, 16, 51, -1, 7])
def test_an_unanswered_description_proves_nothing_and_is_asked_again(code: int | NoAnswer) -> None:
    assert proof(V5, look(State.COMPLETE_ABORT, code=code)) is Proof.AGAIN


def test_a_refused_description_proves_nothing() -> None:
    assert proof(V5, look(State.COMPLETE_ABORT, code=53)) is Proof.NOTHING


@pytest.mark.parametrize(
    ("age", "retention"),
    [(timedelta(days=4), WEEK), (timedelta(minutes=1), None), (timedelta(hours=-2), WEEK), (WEEK, WEEK)],
)
def test_an_absent_receipt_that_may_have_expired_proves_nothing(age: timedelta, retention: timedelta | None) -> None:
    judged = judge(V5, look(State.EMPTY, (7, 5), age=age, retention=retention))
    assert judged.proof is Proof.NOTHING
    assert "its absence proves nothing" in judged.evidence


def test_an_abort_at_our_pair_is_a_loss_however_old_the_receipt_is() -> None:
    assert proof(V5, look(State.COMPLETE_ABORT, (7, 4), age=timedelta(days=30))) is Proof.LOST


def test_with_version_4_a_state_at_the_next_epoch_may_belong_to_a_later_owner() -> None:
    assert proof(V4, look(State.COMPLETE_COMMIT, (7, 4), age=timedelta(days=5))) is Proof.NOTHING
    assert proof(V4, look(State.COMPLETE_ABORT, (7, 4), age=timedelta(days=5))) is Proof.NOTHING


@pytest.mark.parametrize("code", [47, 48, 49, 90, 53, 35, 120, 999])
def test_refusals_of_end_txn_are_doubt_and_never_an_outcome(code: int) -> None:
    assert classify(code) is EndAnswer.DOUBT


@pytest.mark.parametrize("code", [NoAnswer(why="timed out"), 51, 14, 15, 16, 7, -1, 13])
def test_missing_and_retriable_answers_are_asked_again(code: int | NoAnswer) -> None:
    assert classify(code) is EndAnswer.AGAIN


def test_no_error_is_done() -> None:
    assert classify(0) is EndAnswer.DONE


def outcomes(*proofs: Proof) -> Outcome | None:
    concluded = conclude([Judgement(proof=each, evidence="seen") for each in proofs])
    return None if concluded is None else concluded[0]


def test_a_loss_needs_two_looks_in_a_row() -> None:
    assert outcomes(Proof.LOST) is None
    assert outcomes(Proof.LOST, Proof.AGAIN, Proof.LOST) is None
    assert outcomes(Proof.LOST, Proof.NOTHING) is None
    assert outcomes(Proof.LOST, Proof.LOST) is Outcome.LOST


def test_a_commit_needs_one_look_and_overrules_earlier_ones() -> None:
    assert outcomes(Proof.COMMITTED) is Outcome.COMMITTED
    assert outcomes(Proof.LOST, Proof.COMMITTED) is Outcome.COMMITTED


def test_nothing_proved_twice_is_in_doubt() -> None:
    assert outcomes(Proof.NOTHING) is None
    assert outcomes(Proof.NOTHING, Proof.NOTHING) is Outcome.IN_DOUBT


def test_no_answer_is_never_an_outcome_however_often() -> None:
    assert outcomes(*[Proof.AGAIN] * 1000) is None
    assert outcomes(*[Proof.OPEN_ELSEWHERE] * 1000) is None
    assert outcomes() is None


@pytest.mark.parametrize("each", [Proof.OPEN, Proof.UNSTABLE])
def test_a_contradiction_that_stays_is_in_doubt_after_a_while(each: Proof) -> None:
    assert outcomes(*[each] * 14) is None
    assert outcomes(*[each] * 15) is Outcome.IN_DOUBT
    assert outcomes(*[each] * 14, Proof.AGAIN, each) is None
