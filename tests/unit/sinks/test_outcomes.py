"""What broker answers prove, over every combination."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from onceward.protocol.values import Outcome
from onceward.sinks.kafka.control.control_plane import NoAnswer
from onceward.sinks.kafka.control.markers import LogEnding, LogProof
from onceward.sinks.kafka.control.outcomes import (
    EndAnswer,
    Judgement,
    Look,
    Proof,
    classify,
    conclude,
    judge,
    judge_torn,
    needs_log,
)
from onceward.sinks.kafka.control.receipts import Receipt, ReceiptState
from onceward.sinks.kafka.control.transactions import State, Transaction, TransactionView

V5 = Transaction(id="j.s.1.00000000.0", producer_id=7, epoch=3, version=5)
V4 = replace(V5, version=4)

PAIRS = [(7, 2), (7, 3), (7, 4), (7, 5), (8, 0)]
ENDED = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
BEING_ENDED = (State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE)


def look(
    state: State = State.EMPTY,
    pair: tuple[int, int] = (7, 3),
    receipt: ReceiptState = ReceiptState.ABSENT,
    *,
    code: int | NoAnswer = 0,
    log: LogProof | None = None,
    end: int = 48,
) -> Look:
    view = TransactionView(id=V5.id, code=code, state=state, producer_id=pair[0], epoch=pair[1])
    return Look(end=end, view=view, receipt=Receipt(state=receipt), log=log)


def logs() -> Iterator[LogProof | None]:
    """Every proof that the log can give."""
    yield None
    for ending, aborted in itertools.product(LogEnding, (False, True)):
        if aborted or ending is not LogEnding.ABORTED:
            yield LogProof(ending=ending, detail="out-0", aborted=aborted)


def proof(transaction: Transaction, seen: Look) -> Proof:
    return judge(transaction, seen).proof


NO_TOKEN = (ReceiptState.ABSENT, ReceiptState.UNSTABLE, ReceiptState.NO_ANSWER)


@pytest.mark.parametrize("transaction", [V5, V4])
@pytest.mark.parametrize(("end", "receipt"), [(48, ReceiptState.PRESENT), (0, ReceiptState.ABSENT)])
def test_our_token_or_an_answered_commit_proves_it_but_for_parts_that_the_log_shows_as_aborted(
    transaction: Transaction, end: int, receipt: ReceiptState
) -> None:
    codes: list[int | NoAnswer] = [0, 105, 53, NoAnswer(why="gone")]
    for state, pair, code, log in itertools.product(State, PAIRS, codes, logs()):
        expected = Proof.COMMITTED
        if log is not None and log.ending is LogEnding.AGAIN:
            expected = Proof.AGAIN
        elif log is not None and log.aborted:
            expected = Proof.LOST if log.ending is LogEnding.ABORTED else Proof.PARTLY
        assert proof(transaction, look(state, pair, receipt, code=code, log=log, end=end)) is expected


def by_coordinator(version: int, state: State, pair: tuple[int, int], receipt: ReceiptState) -> Proof:
    """The table of docs/protocol.md#outcomes without the log, written differently from the code."""
    ours = pair == (7, 3) or (pair == (7, 4) and version == 5)
    moved_on = pair in ((7, 4), (7, 5), (8, 0))
    if state in BEING_ENDED:
        return Proof.AGAIN
    if state is State.COMPLETE_COMMIT and ours:
        return Proof.COMMITTED
    if state is State.COMPLETE_ABORT and ours:
        return Proof.LOST
    if state is State.ONGOING and pair == (7, 3):
        return Proof.OPEN
    if state is State.ONGOING and moved_on:
        return Proof.OPEN_ELSEWHERE
    if state in (*ENDED, State.EMPTY) and moved_on and receipt is ReceiptState.UNSTABLE:
        return Proof.UNSTABLE
    return Proof.NOTHING


BY_LOG = {LogEnding.COMMITTED: Proof.COMMITTED, LogEnding.ABORTED: Proof.LOST, LogEnding.AGAIN: Proof.AGAIN}


def test_every_state_at_every_pair_is_judged_as_designed() -> None:
    for transaction, state, pair, receipt, log in itertools.product((V4, V5), State, PAIRS, NO_TOKEN, logs()):
        reported = by_coordinator(transaction.version, state, pair, receipt)
        asked = reported in (Proof.COMMITTED, Proof.NOTHING, Proof.UNSTABLE) or (
            reported is Proof.LOST and pair == (7, 4)
        )
        expected = reported
        if asked and log is not None:
            expected = BY_LOG.get(log.ending, reported)
            if expected is Proof.COMMITTED and log.aborted:
                expected = Proof.PARTLY
        case = (transaction.version, state, pair, receipt, log)
        assert proof(transaction, look(state, pair, receipt, log=log)) is expected, case


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (look(State.EMPTY, (8, 0)), ["5 answered 48 INVALID_TXN_STATE", "(producer 7, epoch 3)", "0)", "absent ("]),
        (
            look(code=105, end=4711, receipt=ReceiptState.NO_ANSWER),
            ["answered error 4711", "(producer 7, epoch 3)", "105 TRANSACTIONAL_ID_NOT_FOUND", "no answer ("],
        ),
        (
            look(
                code=NoAnswer(why="gone"), log=LogProof(ending=LogEnding.COMMITTED, detail="out-0 COMMIT", aborted=True)
            ),
            ["answered 48", "(producer 7, epoch 3)", "no answer (gone)", "absent (", "out-0 COMMIT"],
        ),
        (
            look(end=0, log=LogProof(ending=LogEnding.COMMITTED, detail="out-0 ABORT", aborted=True)),
            [
                "5 answered 0 NONE",
                "in part",
                "(producer 7, epoch 3)",
                "Empty at (producer 7, epoch 3)",
                "absent (",
                "out-0 ABORT",
            ],
        ),
    ],
    ids=["moved on", "forgotten", "silent", "in part"],
)
def test_the_evidence_names_each_answer_and_its_transaction(seen: Look, said: list[str]) -> None:
    found = judge(V5, seen).evidence.split("; ")
    assert len(found) == len(said)
    assert all(text in part for text, part in zip(said, found, strict=True)), found


def test_a_missing_receipt_alone_is_never_a_loss() -> None:
    """The receipt may have been deleted, however young it would be."""
    losses = {
        (transaction.version, state, pair)
        for transaction, state, pair, code in itertools.product((V4, V5), State, PAIRS, (0, 105))
        if proof(transaction, look(state, pair, ReceiptState.ABSENT, code=code)) is Proof.LOST
    }
    assert losses == {
        (4, State.COMPLETE_ABORT, (7, 3)),
        (5, State.COMPLETE_ABORT, (7, 3)),
        (5, State.COMPLETE_ABORT, (7, 4)),
    }


def test_the_log_is_read_where_it_is_committed_and_where_brokers_and_receipt_prove_too_little() -> None:
    assert needs_log(V5, look(State.EMPTY, (7, 5)))
    assert needs_log(V5, look(State.EMPTY, (7, 5), ReceiptState.UNSTABLE))
    assert needs_log(V4, look(State.COMPLETE_ABORT, (7, 4)))
    assert needs_log(V5, look(State.COMPLETE_ABORT, (7, 4)))
    assert needs_log(V5, look(code=53))
    for committed in (
        look(State.COMPLETE_COMMIT, (7, 3)),
        look(State.EMPTY, (7, 5), ReceiptState.PRESENT),
        look(State.PREPARE_COMMIT, (7, 4), end=0),
    ):
        assert needs_log(V5, committed)
    for seen in (
        look(State.COMPLETE_ABORT, (7, 3)),
        look(State.PREPARE_COMMIT, (7, 4)),
        look(State.ONGOING, (7, 3)),
        look(code=NoAnswer(why="gone")),
    ):
        assert not needs_log(V5, seen)


@pytest.mark.parametrize("receipt", NO_TOKEN)
def test_the_log_proves_the_outcome_of_a_forgotten_id(receipt: ReceiptState) -> None:
    unknown = Proof.UNSTABLE if receipt is ReceiptState.UNSTABLE else Proof.NOTHING
    expected = {LogEnding.COMMITTED: Proof.COMMITTED, LogEnding.ABORTED: Proof.LOST, LogEnding.UNKNOWN: unknown}
    for ending, proved in expected.items():
        log = LogProof(ending=ending, detail="out-0")
        assert proof(V5, look(code=105, receipt=receipt, log=log)) is proved


@pytest.mark.parametrize("code", [NoAnswer(why="disconnected"), 14, 15, 16, 51, -1, 7])
def test_an_unanswered_description_proves_nothing_and_is_retried(code: int | NoAnswer) -> None:
    assert proof(V5, look(State.COMPLETE_ABORT, code=code)) is Proof.AGAIN


def test_a_description_that_is_refused_for_a_right_proves_nothing_unless_the_log_does() -> None:
    """Rights that a person replaces are missing for a moment."""
    for receipt in NO_TOKEN:
        assert proof(V5, look(State.COMPLETE_ABORT, code=53, receipt=receipt)) is Proof.REFUSED
    for ending, aborted in itertools.product(LogEnding, (False, True)):
        log = LogProof(ending=ending, detail="out-0", aborted=aborted)
        expected = BY_LOG.get(ending, Proof.REFUSED)
        expected = Proof.PARTLY if expected is Proof.COMMITTED and aborted else expected
        assert proof(V5, look(code=53, log=log)) is expected
    assert outcomes(*[Proof.REFUSED] * 14) is None
    assert outcomes(*[Proof.REFUSED] * 15) is Outcome.IN_DOUBT


def test_with_version_4_a_state_at_the_next_epoch_may_belong_to_a_later_owner() -> None:
    assert proof(V4, look(State.COMPLETE_COMMIT, (7, 4))) is Proof.NOTHING
    assert proof(V4, look(State.COMPLETE_ABORT, (7, 4))) is Proof.NOTHING


@pytest.mark.parametrize("code", [47, 48, 49, 90, 53, 35, 120, 999])
def test_refusals_of_end_txn_are_doubt_and_never_an_outcome(code: int) -> None:
    assert classify(code) is EndAnswer.DOUBT


@pytest.mark.parametrize("code", [NoAnswer(why="timed out"), 51, 14, 15, 16, 7, -1, 13])
def test_missing_and_retriable_answers_are_retried(code: int | NoAnswer) -> None:
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


def test_a_partial_commit_seen_twice_needs_a_person() -> None:
    assert outcomes(Proof.PARTLY) is None
    assert outcomes(Proof.PARTLY, Proof.PARTLY) is Outcome.IN_DOUBT


def test_a_torn_transaction_is_no_outcome_as_long_as_it_is_open() -> None:
    assert outcomes(*[Proof.TORN] * 1000) is None


@pytest.mark.parametrize("transaction", [V5, V4])
def test_a_transaction_that_lost_a_part_is_committed_only_once_ours_is_known_to_have_ended(
    transaction: Transaction,
) -> None:
    """A deposed coordinator describes what was there before ours: an earlier epoch, another producer, nothing."""
    for state, pair in itertools.product(State, PAIRS):
        judgement = judge_torn(transaction, look(state, pair), ["out-1 holds no open part of it"])
        later = pair in {(7, 4), (7, 5)}
        if later or (pair == (7, 3) and state in {*ENDED, *BEING_ENDED}):
            assert judgement is None
            continue
        assert judgement is not None
        assert judgement.proof is (Proof.TORN if state is State.ONGOING and pair == (7, 3) else Proof.NOTHING)
        assert "out-1" in judgement.evidence
    unanswered = judge_torn(transaction, look(code=NoAnswer(why="gone")), ["out-1"])
    assert unanswered is not None
    assert unanswered.proof is Proof.AGAIN
    refused = judge_torn(transaction, look(code=53), ["out-1"])
    assert refused is not None
    assert refused.proof is Proof.NOTHING


@pytest.mark.parametrize("transaction", [V5, V4])
def test_a_transaction_that_lost_a_part_is_committed_if_receipt_or_log_show_that_it_was(
    transaction: Transaction,
) -> None:
    committed = LogProof(ending=LogEnding.COMMITTED, detail="")
    for state, pair in itertools.product(State, PAIRS):
        assert judge_torn(transaction, look(state, pair, ReceiptState.PRESENT), ["out-1"]) is None
        assert judge_torn(transaction, look(state, pair, log=committed), ["out-1"]) is None


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


def test_every_part_that_is_gone_is_named() -> None:
    judged = judge_torn(V5, look(State.ONGOING), ["out-0 holds none", "out-3 holds none"])
    assert judged is not None
    assert "(producer 7, epoch 3) is open, but out-0 holds none; out-3 holds none: " in judged.evidence
