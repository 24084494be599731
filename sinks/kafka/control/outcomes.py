"""What the broker's answers prove about a transaction of a completed checkpoint (docs/protocol.md#outcomes). Pure.

A (producer id, epoch) pair belongs to one transaction forever, so a state at that pair describes our transaction and no
other. EndTxn version 5 raises the epoch by one. Version 4 does not: there, a state at epoch + 1 may belong to a later
owner of the id, although it is mostly the result of the broker's timeout.

    EndTxn answers NONE, or the receipt holds our token  -> committed   unless the log shows ABORT
    CompleteCommit at ours                               -> committed   unless the log shows ABORT
    CompleteAbort at ours                                -> lost        (at the next epoch: unless the log shows COMMIT)
    the output's log shows COMMIT after our records      -> committed
    ... and ABORT in some partitions                     -> committed in part
    the output's log shows ABORT in every partition      -> lost
    open at ours, and a partition has lost its part      -> torn: abort the rest, then it is lost, unless receipt or
                                                            log show that it was committed before
    open at another pair                                 -> fence it, look again
    open at ours though EndTxn refuses, receipt hidden   -> ask again, for a while
    a right to ask the coordinator is missing            -> ask again, for a while
    being ended, unreachable                             -> ask again
    anything else                                        -> nothing is proved

The log is read only if nothing else proves enough, or if the transaction is committed but this process did not commit
it just after a look at every part (`parts`). A missing receipt proves nothing, however recent it would be: it may have
been deleted. One positive proof is enough, because a commit cannot be undone. A negative proof must be seen twice, some
time apart, because a stale coordinator can be wrong for seconds (KAFKA-21181).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from onceward.connections.codes import TEMPORARY, ErrorCode
from onceward.protocol.values import Outcome
from onceward.sinks.kafka.control.control_plane import NoAnswer
from onceward.sinks.kafka.control.markers import LogEnding, LogProof
from onceward.sinks.kafka.control.receipts import Receipt, ReceiptState
from onceward.sinks.kafka.control.transactions import Code, State, Transaction, TransactionView

__all__ = [
    "EndAnswer",
    "Judgement",
    "Look",
    "Proof",
    "classify",
    "conclude",
    "describe_code",
    "judge",
    "judge_torn",
    "needs_log",
]

LOOKS_WITHOUT_PROOF = 15
"""Consecutive looks that contradict a refused EndTxn before the outcome counts as in doubt (about 30 s)."""


class EndAnswer(StrEnum):
    """What an answer to EndTxn or InitProducerId proves."""

    DONE = "done"
    AGAIN = "again"
    """No answer, or one that requests a retry: nothing is known."""
    DOUBT = "doubt"
    """A refusal. It proves nothing: the same codes come after a commit and after an abort."""


class Proof(StrEnum):
    """What one look proves."""

    COMMITTED = "committed"
    PARTLY = "partly"
    """Committed, but some partitions had already lost their part."""
    LOST = "lost"
    TORN = "torn"
    """Ours is still open, and a partition has lost its part: it can be aborted, but not committed completely."""
    OPEN = "open"
    """Ours is still open: EndTxn must be retried."""
    OPEN_ELSEWHERE = "open_elsewhere"
    """Ours has ended, and another transaction is open under the id."""
    UNSTABLE = "unstable"
    """Ours has ended, but another open transaction still hides the receipt."""
    REFUSED = "refused"
    """A right is missing, so the coordinator does not describe the transaction."""
    AGAIN = "again"
    """Not answered, or the transaction is being ended."""
    NOTHING = "nothing"
    """Answered, but the answer proves nothing."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at all evidence, from freshly located coordinators."""

    end: Code | None
    """The preceding answer to EndTxn (commit); None if it was not sent."""
    view: TransactionView
    receipt: Receipt
    log: LogProof | None = None
    """What the output itself shows; None if it was not read."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a look proves, and the evidence as text."""

    proof: Proof
    evidence: str


_AGAIN = TEMPORARY | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}
_ENDED = frozenset(
    {
        State.PREPARE_COMMIT,
        State.PREPARE_ABORT,
        State.PREPARE_EPOCH_FENCE,
        State.COMPLETE_COMMIT,
        State.COMPLETE_ABORT,
    }
)


def classify(code: Code) -> EndAnswer:
    """Classify an answer. Unknown codes are doubt: the brokers answered, and it proves nothing."""
    if isinstance(code, NoAnswer):
        return EndAnswer.AGAIN
    if code == ErrorCode.NONE:
        return EndAnswer.DONE
    return EndAnswer.AGAIN if code in _AGAIN else EndAnswer.DOUBT


def describe_code(code: Code) -> str:
    """Describe an answer as text."""
    if isinstance(code, NoAnswer):
        return f"no answer ({code.why})"
    try:
        name = ErrorCode(code).name
    except ValueError:
        return f"error {code}"
    return f"{code} {name}" + _MISSING_RIGHTS.get(code, "")


_MISSING_RIGHTS: dict[int, str] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ": this user lacks a right on a topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ": this user lacks READ on the consumer group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ": this user lacks WRITE on the transactional id",
}


def judge(transaction: Transaction, look: Look) -> Judgement:
    """Return what ``look`` proves about ``transaction``."""
    proof = _proof(transaction, look)
    view = look.view
    if view.code == ErrorCode.NONE:
        seen = f"{view.state} at (producer {view.producer_id}, epoch {view.epoch})"
    else:
        seen = describe_code(view.code)
    parts = [
        f"ours is (producer {transaction.producer_id}, epoch {transaction.epoch})",
        f"DescribeTransactions: {seen}",
        f"receipt {look.receipt.state.value.replace('_', ' ')} ({look.receipt.detail})",
    ]
    if proof is Proof.PARTLY:
        parts.insert(0, "committed in part: what the output log shows as ABORT is missing from the output permanently")
    if look.end is not None:
        parts.insert(0, f"EndTxn version {transaction.version} answered {describe_code(look.end)}")
    if look.log is not None:
        parts.append(f"output log: {look.log.detail}")
    return Judgement(proof=proof, evidence="; ".join(parts))


def has_ended(transaction: Transaction, view: TransactionView) -> bool:
    """Return whether the coordinator shows that ours has ended or is being ended. A deposed coordinator cannot show
    that by mistake: it knows less than happened, never more."""
    if view.code != ErrorCode.NONE or view.producer_id != transaction.producer_id:
        return False
    at_ours = view.epoch == transaction.epoch
    return view.epoch > transaction.epoch or (at_ours and view.state in _ENDED)


def judge_torn(transaction: Transaction, look: Look, gone: Sequence[str]) -> Judgement | None:
    """Return what partitions without their part (``gone``, as text) prove; None if EndTxn can do no harm: ours has
    ended, or it was committed before. Until EndTxn version 5, a late request of its own producer reopens a committed
    transaction under the same pair, without its records (KIP-890).

    NOTHING: the coordinator shows something else than ours. A deposed one shows what was there before.
    """
    view = look.view
    ending = LogEnding.UNKNOWN if look.log is None else look.log.ending
    if has_ended(transaction, view) or look.receipt.state is ReceiptState.PRESENT or ending is LogEnding.COMMITTED:
        return None
    if view.code != ErrorCode.NONE and classify(view.code) is EndAnswer.AGAIN:
        return Judgement(proof=Proof.AGAIN, evidence=f"DescribeTransactions: {describe_code(view.code)}")
    if ending is LogEnding.AGAIN:
        return Judgement(proof=Proof.AGAIN, evidence="a partition that lacks its part does not answer")
    ours = f"ours (producer {transaction.producer_id}, epoch {transaction.epoch})"
    missing = "; ".join(gone)
    if _shown_by_coordinator(transaction, look) is not Proof.OPEN:
        return Judgement(proof=Proof.NOTHING, evidence=f"{ours} is not known to have ended, but {missing}")
    evidence = (
        f"{ours} is open, but {missing}: another process ended it in single partitions, or records were truncated"
    )
    return Judgement(proof=Proof.TORN, evidence=evidence)


def needs_log(transaction: Transaction, look: Look) -> bool:
    """Return whether the output itself can prove more. It can if the transaction ended as committed and no look
    confirmed that every partition held its part; or if brokers and receipt answered but prove nothing, or prove a loss
    only by the next epoch, which is ours unless the cluster went back to a transaction.version that does not raise
    epochs."""
    match _shown(transaction, look):
        case Proof.COMMITTED | Proof.NOTHING | Proof.UNSTABLE | Proof.REFUSED:
            return True
        case Proof.LOST:
            return look.view.epoch != transaction.epoch
        case _:
            return False


def _proof(transaction: Transaction, look: Look) -> Proof:
    proof = _shown(transaction, look)
    if look.log is None or not needs_log(transaction, look):
        return proof
    match look.log.ending:
        case LogEnding.COMMITTED:
            return Proof.PARTLY if look.log.aborted else Proof.COMMITTED
        case LogEnding.ABORTED:
            return Proof.LOST
        case LogEnding.AGAIN:
            return Proof.AGAIN
        case LogEnding.UNKNOWN:
            return Proof.PARTLY if proof is Proof.COMMITTED and look.log.aborted else proof
        case _:
            assert_never(look.log.ending)


def _shown(transaction: Transaction, look: Look) -> Proof:
    """Return what all evidence but the log proves."""
    if look.end == ErrorCode.NONE or look.receipt.state is ReceiptState.PRESENT:
        return Proof.COMMITTED
    return _shown_by_coordinator(transaction, look)


def _shown_by_coordinator(transaction: Transaction, look: Look) -> Proof:
    view = look.view
    if view.code != ErrorCode.NONE:
        if view.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return _moved_on(look)
        if view.code in _MISSING_RIGHTS:
            return Proof.REFUSED
        return Proof.AGAIN if classify(view.code) is EndAnswer.AGAIN else Proof.NOTHING
    same_producer = view.producer_id == transaction.producer_id
    at_ours = same_producer and view.epoch == transaction.epoch
    ended_ours = at_ours or (same_producer and transaction.version >= 5 and view.epoch == transaction.epoch + 1)
    # With an epoch not higher than ours, the view would predate our transaction.
    later = not same_producer or view.epoch > transaction.epoch
    match view.state:
        case State.COMPLETE_COMMIT if ended_ours:
            return Proof.COMMITTED
        case State.COMPLETE_ABORT if ended_ours:
            return Proof.LOST
        case State.ONGOING:
            if at_ours:
                return Proof.OPEN
            return Proof.OPEN_ELSEWHERE if later else Proof.NOTHING
        case State.PREPARE_COMMIT | State.PREPARE_ABORT | State.PREPARE_EPOCH_FENCE:
            return Proof.AGAIN
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT | State.EMPTY:
            return _moved_on(look) if later else Proof.NOTHING
        case State.DEAD | State.UNKNOWN:
            return Proof.NOTHING
        case _:
            assert_never(view.state)


def _moved_on(look: Look) -> Proof:
    """Ours has ended, and its coordinator no longer knows how."""
    return Proof.UNSTABLE if look.receipt.state is ReceiptState.UNSTABLE else Proof.NOTHING


def conclude(judgements: Sequence[Judgement]) -> tuple[Outcome, str] | None:
    """Return the outcome that consecutive looks (oldest first, some seconds apart) prove, or None to look again."""
    if not judgements:
        return None
    last = judgements[-1]
    if last.proof is Proof.COMMITTED:
        return Outcome.COMMITTED, last.evidence
    agreeing = len(judgements) >= 2 and judgements[-2].proof is last.proof
    match last.proof:
        case Proof.LOST if agreeing:
            return Outcome.LOST, f"{last.evidence}; seen twice"
        case Proof.NOTHING | Proof.PARTLY if agreeing:
            return Outcome.IN_DOUBT, f"{last.evidence}; seen twice"
        case Proof.LOST | Proof.NOTHING | Proof.PARTLY:
            return None
        case Proof.OPEN | Proof.UNSTABLE | Proof.REFUSED:
            row = judgements[-LOOKS_WITHOUT_PROOF:]
            if len(row) == LOOKS_WITHOUT_PROOF and all(judgement.proof is last.proof for judgement in row):
                return Outcome.IN_DOUBT, f"{last.evidence}; seen {LOOKS_WITHOUT_PROOF} times"
            return None
        case Proof.AGAIN | Proof.OPEN_ELSEWHERE | Proof.TORN:
            return None
        case _:
            assert_never(last.proof)
