"""Transactions of others: end, fence, describe and list them (docs/facts.md#transactions-of-others).

Every call sends each request once, to a freshly located coordinator, and returns the answer. Retries and judgement are
the committer's task.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from kafka.protocol.admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.producer import (
    AddOffsetsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.control_plane import (
    ControlPlane,
    CoordinatorKind,
    Located,
    NoAnswer,
    Operation,
    Request,
    coordinators_request,
    together,
)
from onceward.sinks.kafka.errors import ControlPlaneClosedError, ControlPlaneError
from onceward.sinks.kafka.identifiers import TransactionalId, claim_name, job_pattern

__all__ = [
    "OVER",
    "PREPARED",
    "Code",
    "Listed",
    "State",
    "Transaction",
    "TransactionView",
    "Transactions",
    "code_of",
    "end_txn_version",
    "next_epoch_request",
]

Code = int | NoAnswer
"""An error code of the protocol, or no answer."""

Listed: TypeAlias = tuple[list[TransactionalId], list[Code]]
"""Ids that the brokers list, and the codes of brokers that did not answer: if there are any, ids may be missing."""

_FENCE_TIMEOUT_MS = 60_000
"""Timeout for a transaction that is never begun: InitProducerId requires one below the broker's cap."""


class State(StrEnum):
    """A transaction's state, named as in the broker."""

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
        """Parse a state; UNKNOWN for states of newer brokers, which prove nothing."""
        return next((state for state in cls if state.value == text), cls.UNKNOWN)


OVER = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT, State.EMPTY})
"""States in which the coordinator counts the id's last transaction as ended, with all its markers."""


PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
"""States in which the coordinator writes the markers."""


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """What identifies exactly one transaction, and how to end it."""

    id: str
    producer_id: int
    epoch: int
    version: int
    """Of EndTxn; every attempt uses the same (docs/facts.md#transactions-of-others), except on clusters that no longer
    support it."""


@dataclass(frozen=True, kw_only=True)
class TransactionView:
    """One transactional id as its coordinator reports it."""

    id: str
    code: Code = ErrorCode.NONE
    """If it is not NONE, the other fields have no meaning."""
    state: State = State.UNKNOWN
    producer_id: int = -1
    epoch: int = -1
    timeout_ms: int = -1
    started_ms: int = -1
    """When the first partition was enlisted, by the broker's clock, in ms since 1970; -1 if no transaction is open."""
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Enlisted partitions by topic; empty once the transaction is complete."""


def end_txn_version(control: ControlPlane) -> int:
    """Return the version of EndTxn for this cluster: 5 if EndTxn raises the epoch, else 4 or the highest that both
    sides support. Raises ControlPlaneError."""
    highest = min(5, control.highest_version(EndTxnRequest))
    return highest if control.transaction_version() >= 2 else min(4, highest)


def next_epoch_request(name: str, *, timeout_ms: int, after: tuple[int, int] = (-1, -1)) -> InitProducerIdRequest:
    """Return the request that aborts the open transaction of an id and gives it its next epoch.

    :param after: the pair (producer id, epoch) that it must have; it is refused if the id has moved on. Default: any.
    """
    producer_id, epoch = after
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        max_version=5,
    )


class Transactions:
    """Requests about transactions. Thread-safe, like the control plane."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    def locate(self, ids: Collection[str]) -> dict[str, Located]:
        """Return the coordinators of ``ids``, for several calls in immediate succession."""
        return self._control.run(self.locating(ids))

    def locating(self, ids: Iterable[str]) -> Operation[dict[str, Located]]:
        """See :meth:`locate`."""
        return self._control.locating(CoordinatorKind.TRANSACTION, ids)

    def end(
        self,
        transactions: Sequence[Transaction],
        *,
        commit: bool,
        located: Mapping[str, Located] | None = None,
        highest: Code | None = None,
    ) -> dict[str, Code]:
        """Commit or abort each, once. Returns codes by transactional id; NoAnswer: it may or may not have happened.

        ``highest``: what :meth:`finding_highest_end_txn` returned a moment ago; asked for by default.
        """
        if highest is None:
            highest = self._control.run(self.finding_highest_end_txn(transactions))
        if isinstance(highest, NoAnswer):
            return {transaction.id: highest for transaction in transactions}
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
        """Abort the open transaction of each id and fence every older epoch, once. CONCURRENT_TRANSACTIONS (51) means
        that the abort is running: retry until NONE."""
        return self._codes({name: next_epoch_request(name, timeout_ms=_FENCE_TIMEOUT_MS) for name in ids}, None)

    def describe(
        self, ids: Collection[str], *, located: Mapping[str, Located] | None = None
    ) -> dict[str, TransactionView]:
        """Return what the coordinators report about ``ids``: one request per coordinator."""
        return self._control.run(self.describing(ids, located=located))

    def describing(
        self, ids: Collection[str], *, located: Mapping[str, Located] | None = None
    ) -> Operation[dict[str, TransactionView]]:
        """See :meth:`describe`."""
        places = located
        if places is None:
            places = yield from self.locating(ids)
        views = {
            name: TransactionView(id=name, code=places[name].code)
            for name in ids
            if places[name].code != ErrorCode.NONE
        }
        by_node: dict[int, list[str]] = {}
        for name in ids:
            if name not in views:
                by_node.setdefault(places[name].node, []).append(name)
        requests = [(node, DescribeTransactionsRequest(transactional_ids=names)) for node, names in by_node.items()]
        answers: list[DescribeTransactionsResponse | NoAnswer] = yield requests
        for names, answer in zip(by_node.values(), answers, strict=True):
            if isinstance(answer, NoAnswer):
                views.update({name: TransactionView(id=name, code=answer) for name in names})
            else:
                views.update({str(entry.transactional_id): _view(entry) for entry in answer.transaction_states})
        return {
            name: views.get(name, TransactionView(id=name, code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)) for name in ids
        }

    def open_ids(self, job: str, *, states: Collection[State] = (State.ONGOING,)) -> Listed:
        """Return the ids of ``job`` with an open transaction on any broker, and the codes of brokers that did not
        answer, of a coordinator that is missing now, or of a missing right: brokers list only what the user may
        describe, without an error. If there are codes, the ids are incomplete.

        Transactions that are being ended (PrepareCommit, PrepareAbort) are left to finish, and listed only if `states`
        names their state.
        """
        probe = claim_name(job)
        (found, failed), located = self._control.run(
            together(self.listing_open_ids(job, states=states), self.locating([probe]))
        )
        if located[probe].code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return [], [located[probe].code]
        return found, failed

    def listing_open_ids(
        self, job: str, *, states: Collection[State] = (State.ONGOING,), producers: Collection[int] = ()
    ) -> Operation[Listed]:
        """See :meth:`open_ids`; does not look for a missing right. ``producers``: only ids with these producer ids."""
        found, failed = yield from self.listing(job, states=states, producers=producers)
        # The pattern only saves work: the parsed id decides which are ours.
        return sorted(identifier for identifier in _parsed(found) if identifier.job == job), failed

    def listing(
        self, job: str | None = None, *, states: Collection[State] = (), producers: Collection[int] = ()
    ) -> Operation[tuple[set[str], list[Code]]]:
        """Return ids in ``states``, by default in any, that the user may describe, and the codes of brokers that did
        not answer. ``job``: other jobs' ids need not be listed."""
        control = self._control
        try:
            pattern = job_pattern(job) if job is not None and self._lists_by_pattern() else None
            filters = [state.value for state in states]
            request = partial(
                ListTransactionsRequest,
                state_filters=filters,
                producer_id_filters=sorted(producers),
                transactional_id_pattern=pattern,
            )
            expected = control.last_coordinators
            leaders: MetadataResponse | NoAnswer
            answers: list[ListTransactionsResponse | NoAnswer]
            leaders, *answers = yield [(None, coordinators_request()), *((node, request()) for node in expected)]
            nodes = control.coordinators(leaders)
        except ControlPlaneClosedError:
            raise
        except ControlPlaneError as error:
            return set(), [NoAnswer(why=str(error))]
        if nodes is None:
            return set(), [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        if nodes != expected:
            answers = yield [(node, request()) for node in nodes]
        found: set[str] = set()
        failed: list[Code] = []
        for answer in answers:
            if isinstance(answer, NoAnswer):
                failed.append(answer)
            elif answer.error_code != ErrorCode.NONE:
                failed.append(int(answer.error_code))
            else:
                found.update(str(entry.transactional_id) for entry in answer.transaction_states)
        return found, failed

    def finding_highest_end_txn(self, transactions: Iterable[Transaction]) -> Operation[Code]:
        """Return the highest version of EndTxn that the cluster can complete.

        A cluster that went back to transaction.version 0 cannot store the result of version 5: it answers 35 and leaves
        the transaction stuck, with answer 51 until its coordinator moves. Version 4 ends it there. If version 5 had
        already ended it, version 4 is refused, and the coordinator or the log shows how it ended."""
        if all(transaction.version < 5 for transaction in transactions):
            return 4
        try:
            version = yield from self._control.reading_transaction_version()
        except ControlPlaneError as error:
            return NoAnswer(why=str(error))
        return 5 if version > 0 else 4

    def _lists_by_pattern(self) -> bool:
        return self._control.highest_version(ListTransactionsRequest) >= 2

    def _codes(self, requests: Mapping[str, Request], located: Mapping[str, Located] | None) -> dict[str, Code]:
        answers: dict[str, EndTxnResponse | InitProducerIdResponse | NoAnswer] = self._control.send_located(
            CoordinatorKind.TRANSACTION, requests, located=located
        )
        return {name: code_of(answer) for name, answer in answers.items()}


def code_of(answer: AddOffsetsToTxnResponse | EndTxnResponse | InitProducerIdResponse | NoAnswer) -> Code:
    """Return the code of an answer that has one."""
    if isinstance(answer, NoAnswer):
        return answer if answer.code is None else answer.code
    return int(answer.error_code)


def _parsed(names: Iterable[str]) -> list[TransactionalId]:
    return [identifier for name in names if (identifier := TransactionalId.parse(name)) is not None]


def _view(entry: DescribeTransactionsResponse.TransactionState) -> TransactionView:
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
