"""Transactions of others: end, fence, describe and list them (docs/facts.md#transactions-of-others).

Every call asks once, at a freshly located coordinator, and reports what came back. Patience and judgement are the
committer's.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from onceward.sinks.kafka.control import ControlPlane, CoordinatorKind, Located, NoAnswer
from onceward.sinks.kafka.errors import ControlPlaneClosedError, ControlPlaneError
from onceward.sinks.kafka.identifiers import TransactionalId, job_pattern

__all__ = [
    "CODE_NONE",
    "Code",
    "State",
    "Transaction",
    "TransactionView",
    "Transactions",
    "end_txn_version",
]

Code = int | NoAnswer
"""An error code of the protocol (0 = none), or no answer at all."""

CODE_NONE = 0
CODE_NOT_FOUND = 105
CODE_COORDINATOR_NOT_AVAILABLE = 15
_FENCE_TIMEOUT_MS = 60_000
"""Of a transaction that nobody begins: InitProducerId wants one below the broker's cap."""


class State(StrEnum):
    """A transaction's state in the words of the broker."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    DEAD = "Dead"
    UNKNOWN = "Unknown"

    @classmethod
    def of(cls, text: str) -> "State":
        """A state that a newer broker invented is unknown to us, and unknown proves nothing."""
        return next((state for state in cls if state.value == text), cls.UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """What it takes to end a transaction: exactly this one and no other."""

    id: str
    producer_id: int
    epoch: int
    version: int
    """Of EndTxn; the same one is used for every attempt (docs/facts.md#transactions-of-others), but at clusters that
    cannot do it any more."""


@dataclass(frozen=True, kw_only=True)
class TransactionView:
    """What the coordinator of one transactional id says about it."""

    id: str
    code: Code = CODE_NONE
    """Unless it is CODE_NONE, nothing else is meaningful."""
    state: State = State.UNKNOWN
    producer_id: int = -1
    epoch: int = -1
    timeout_ms: int = -1
    started_ms: int = -1
    """When the first partition was enlisted, on the broker's clock, in ms since 1970; -1 when nothing is open."""
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Enlisted partitions by topic; empty once the transaction is complete."""


def end_txn_version(control: ControlPlane) -> int:
    """The version of EndTxn for this cluster: 5 where transactions raise the epoch themselves, else 4 or the highest
    both have. Raises ControlPlaneError."""
    highest = min(5, control.highest_version(EndTxnRequest))
    return highest if control.transaction_version() >= 2 else min(4, highest)


class Transactions:
    """The requests. Thread-safe, as the control plane is."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    def locate(self, ids: Collection[str]) -> dict[str, Located]:
        """The coordinators of ``ids``, for several calls that follow at once."""
        return self._control.locate(CoordinatorKind.TRANSACTION, ids)

    def end(
        self, transactions: Sequence[Transaction], *, commit: bool, located: Mapping[str, Located] | None = None
    ) -> dict[str, Code]:
        """Commit or abort each, once. Code by transactional id; NoAnswer means it may or may not have happened."""
        try:
            highest = self._highest_end_txn(transactions)
        except ControlPlaneError as error:
            return {transaction.id: NoAnswer(why=str(error)) for transaction in transactions}
        requests = {
            transaction.id: EndTxnRequest(
                transactional_id=transaction.id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                committed=commit,
                min_version=min(transaction.version, highest),
                max_version=min(transaction.version, highest),
            )
            for transaction in transactions
        }
        return self._codes(requests, located)

    def fence(self, ids: Collection[str]) -> dict[str, Code]:
        """Abort whatever is open under each id and refuse every older epoch, once. CONCURRENT_TRANSACTIONS (51) means
        that the abort is running: ask again until CODE_NONE."""
        requests = {
            name: InitProducerIdRequest(
                transactional_id=name,
                transaction_timeout_ms=_FENCE_TIMEOUT_MS,
                producer_id=-1,
                producer_epoch=-1,
                max_version=5,
            )
            for name in ids
        }
        return self._codes(requests, None)

    def describe(
        self, ids: Collection[str], *, located: Mapping[str, Located] | None = None
    ) -> dict[str, TransactionView]:
        """What the coordinators say about ``ids``: one request per coordinator."""
        places = self.locate(ids) if located is None else located
        views = {
            name: TransactionView(id=name, code=places[name].code) for name in ids if places[name].code != CODE_NONE
        }
        by_node: dict[int, list[str]] = {}
        for name in ids:
            if name not in views:
                by_node.setdefault(places[name].node, []).append(name)
        answers = self._control.send_all(
            [(node, DescribeTransactionsRequest(transactional_ids=names)) for node, names in by_node.items()]
        )
        for names, answer in zip(by_node.values(), answers, strict=True):
            if isinstance(answer, NoAnswer):
                views.update({name: TransactionView(id=name, code=answer) for name in names})
            else:
                views.update({str(entry.transactional_id): _view(entry) for entry in answer.transaction_states})
        return {name: views.get(name, TransactionView(id=name, code=CODE_NOT_FOUND)) for name in ids}

    def open_ids(
        self, job: str, *, states: Collection[State] = (State.ONGOING,)
    ) -> tuple[list[TransactionalId], list[Code]]:
        """Ids of ``job`` with an open transaction on any broker, and the codes of brokers that could not say, or of a
        coordinator that nobody is just now: then the ids are not all.

        Unless `states` names them, transactions that are being ended already (PrepareCommit, PrepareAbort) are left to
        finish and not listed.
        """
        try:
            pattern = {"transactional_id_pattern": job_pattern(job)} if self._lists_by_pattern() else {}
            nodes = self._control.coordinators()
        except ControlPlaneClosedError:
            raise
        except ControlPlaneError as error:
            return [], [NoAnswer(why=str(error))]
        request = {"state_filters": [state.value for state in states], "producer_id_filters": [], **pattern}
        if nodes is None:
            return [], [CODE_COORDINATOR_NOT_AVAILABLE]
        answers = self._control.send_all([(node, ListTransactionsRequest(**request)) for node in nodes])
        found: set[str] = set()
        failed: list[Code] = []
        for answer in answers:
            if isinstance(answer, NoAnswer):
                failed.append(answer)
            elif answer.error_code != CODE_NONE:
                failed.append(int(answer.error_code))
            else:
                found.update(str(entry.transactional_id) for entry in answer.transaction_states)
        # The pattern only saves work: what is ours is decided here, on the parsed id.
        return sorted(identifier for identifier in _parsed(found) if identifier.job == job), failed

    def _highest_end_txn(self, transactions: Sequence[Transaction]) -> int:
        """A cluster that went back to transaction.version 0 cannot keep what version 5 makes of a transaction: it
        answers 35 and leaves the transaction stuck, answered 51 until its coordinator moves. Version 4 ends it there.
        If version 5 had ended it before, version 4 is refused, and the coordinator or the log shows the end."""
        if all(transaction.version < 5 for transaction in transactions):
            return 4
        return 5 if self._control.transaction_version() > 0 else 4

    def _lists_by_pattern(self) -> bool:
        return self._control.highest_version(ListTransactionsRequest) >= 2

    def _codes(self, requests: Mapping[str, Any], located: Mapping[str, Located] | None) -> dict[str, Code]:
        answers = self._control.send_located(CoordinatorKind.TRANSACTION, requests, located=located)
        return {name: _code(answer) for name, answer in answers.items()}


def _code(answer: Any) -> Code:
    if isinstance(answer, NoAnswer):
        return answer if answer.code is None else answer.code
    return int(answer.error_code)


def _parsed(names: Iterable[str]) -> list[TransactionalId]:
    return [identifier for name in names if (identifier := TransactionalId.parse(name)) is not None]


def _view(entry: Any) -> TransactionView:
    return TransactionView(
        id=str(entry.transactional_id),
        code=int(entry.error_code),
        state=State.of(str(entry.transaction_state)),
        producer_id=int(entry.producer_id),
        epoch=int(entry.producer_epoch),
        timeout_ms=int(entry.transaction_timeout_ms),
        started_ms=int(entry.transaction_start_time_ms),
        partitions={
            str(topic.topic): tuple(sorted(int(partition) for partition in topic.partitions))
            for topic in entry.topics or ()
        },
    )
