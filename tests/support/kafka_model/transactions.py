"""One transactional id at its coordinator: the state machine of Kafka 4.3, without I/O.

Source: ``TransactionCoordinator`` and ``TransactionMetadata`` of Apache Kafka; a contract test compares it with a real
broker. `end` and `initialise` decide without changing anything. The caller applies the decision, except at a deposed
coordinator that does not know it yet: that one cannot.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from onceward.connections.codes import ErrorCode
from tests.support.kafka_model.settings import Partition

__all__ = ["LAST_EPOCH", "Change", "Entry", "State", "end", "fence", "initialise"]

LAST_EPOCH = 32_766
"""The highest epoch that a producer gets; one more exists only to fence it."""

_NO_TIMEOUT = 2**31 - 1


class State(StrEnum):
    """The state of a transactional id, in the broker's words."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)


class Change(StrEnum):
    """What an accepted request does to the entry."""

    COMMIT = "commit"
    ABORT = "abort"
    FENCE = "fence"
    """Abort for an InitProducerId request, which is itself answered with 51."""
    RAISE = "raise"
    """The next epoch; nothing is open."""
    ROTATE = "rotate"
    """Another producer id with epoch 0; nothing is open."""
    KEEP = "keep"
    """A repeated request: same answer as before."""


@dataclass(kw_only=True, slots=True)
class Entry:
    """What a coordinator keeps about one id."""

    id: str
    producer_id: int
    epoch: int = -1
    last_epoch: int = -1
    previous_producer_id: int = -1
    next_producer_id: int = -1
    timeout_ms: int
    state: State = State.EMPTY
    partitions: set[Partition] = field(default_factory=set)
    started: float = -1.0
    """When the first partition was enlisted; -1 when nothing is open."""
    updated: float = 0.0
    raises: bool = False
    """Whether the running end raised the epoch (EndTxn from version 5)."""

    @property
    def exhausted(self) -> bool:
        return self.epoch >= LAST_EPOCH

    @property
    def deadline(self) -> float | None:
        """When the open transaction times out; None if it never does."""
        if self.state is not State.ONGOING or self.timeout_ms == _NO_TIMEOUT:
            return None
        return self.started + self.timeout_ms / 1000

    def copy(self) -> "Entry":
        return Entry(
            id=self.id,
            producer_id=self.producer_id,
            epoch=self.epoch,
            last_epoch=self.last_epoch,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            timeout_ms=self.timeout_ms,
            state=self.state,
            partitions=set(self.partitions),
            started=self.started,
            updated=self.updated,
            raises=self.raises,
        )

    def refuses(self, producer_id: int, epoch: int) -> ErrorCode:
        """The answer to a producer that wants to enlist something."""
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.state in PREPARED else ErrorCode.NONE

    def enlist(self, partitions: Iterable[Partition], now: float) -> bool:
        """Add partitions; True when that opened the transaction."""
        opened = self.state is not State.ONGOING
        self.previous_producer_id = self.producer_id
        if opened:
            self.state, self.started = State.ONGOING, now
        self.partitions.update(partitions)
        self.updated = now
        return opened

    def prepare(self, *, commit: bool, raises: bool, next_producer_id: int, now: float) -> None:
        """Make the decision durable: from here it is committed or aborted, whatever happens."""
        if self.state is not State.ONGOING:
            self.started = now
        self.previous_producer_id = self.producer_id
        if raises:
            self.last_epoch = self.epoch
            self.epoch += 1
        self.raises = raises
        self.next_producer_id = next_producer_id
        self.state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        self.updated = now

    def complete(self, now: float) -> None:
        """Complete the end, after all markers are written."""
        self.previous_producer_id = self.producer_id
        if self.raises and self.next_producer_id >= 0:
            self.producer_id, self.epoch = self.next_producer_id, 0
        self.next_producer_id = -1
        self.partitions = set()
        self.state = State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
        self.updated = now

    def begin_anew(
        self, *, rotate_to: int | None, expected_epoch: int | None, keep: bool, timeout_ms: int, now: float
    ) -> None:
        """InitProducerId with nothing open: a new epoch, or the same one for a repeated request (`keep`)."""
        before = self.producer_id
        if rotate_to is not None:
            self.last_epoch = self.epoch if expected_epoch is not None else -1
            self.producer_id, self.epoch = rotate_to, 0
        elif not keep:
            self.last_epoch = -1 if expected_epoch is None else self.epoch
            self.epoch += 1
        self.previous_producer_id = before
        self.timeout_ms = timeout_ms
        self.partitions = set()
        self.started = -1.0
        self.state = State.EMPTY
        self.updated = now


def end(entry: Entry, producer_id: int, epoch: int, *, commit: bool, version: int) -> Change | ErrorCode:
    """What a client's EndTxn does, or the code that answers it."""
    return _end_raising(entry, producer_id, epoch, commit) if version >= 5 else _end(entry, producer_id, epoch, commit)


def _end(entry: Entry, producer_id: int, epoch: int, commit: bool) -> Change | ErrorCode:
    if producer_id != entry.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if epoch != entry.epoch:
        return ErrorCode.PRODUCER_FENCED
    match entry.state:
        case State.ONGOING:
            return Change.COMMIT if commit else Change.ABORT
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT:
            same = commit == (entry.state is State.COMPLETE_COMMIT)
            return ErrorCode.NONE if same else ErrorCode.INVALID_TXN_STATE
        case State.PREPARE_COMMIT | State.PREPARE_ABORT:
            same = commit == (entry.state is State.PREPARE_COMMIT)
            return ErrorCode.CONCURRENT_TRANSACTIONS if same else ErrorCode.INVALID_TXN_STATE
        case State.EMPTY:
            return ErrorCode.INVALID_TXN_STATE


def _end_raising(entry: Entry, producer_id: int, epoch: int, commit: bool) -> Change | ErrorCode:
    overflowed = entry.previous_producer_id == producer_id and epoch == LAST_EPOCH and entry.epoch == 0
    raised = entry.epoch == epoch + 1
    if producer_id != entry.producer_id and not overflowed:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    current = epoch == entry.epoch
    repeated = raised or overflowed
    match entry.state:
        case State.ONGOING:
            if not current:
                return ErrorCode.PRODUCER_FENCED
            return Change.COMMIT if commit else Change.ABORT
        case State.EMPTY:
            if not current:
                return ErrorCode.PRODUCER_FENCED
            return ErrorCode.INVALID_TXN_STATE if commit else Change.ABORT
        case State.PREPARE_COMMIT | State.PREPARE_ABORT:
            if not raised:
                return ErrorCode.PRODUCER_FENCED
            same = commit == (entry.state is State.PREPARE_COMMIT)
            return ErrorCode.CONCURRENT_TRANSACTIONS if same else ErrorCode.INVALID_TXN_STATE
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT:
            if not (repeated or current):
                return ErrorCode.PRODUCER_FENCED
            if repeated:
                same = commit == (entry.state is State.COMPLETE_COMMIT)
                return ErrorCode.NONE if same else ErrorCode.INVALID_TXN_STATE
            return ErrorCode.INVALID_TXN_STATE if commit else Change.ABORT


def initialise(entry: Entry, expected: tuple[int, int] | None) -> Change | ErrorCode:
    """What InitProducerId does, or the code that answers it. `expected`: the (producer id, epoch) that the producer
    had, if it names them."""
    if expected is not None and entry.epoch >= 0:
        known = expected[0] == entry.producer_id
        if not known and not (expected[0] == entry.previous_producer_id and expected[1] >= LAST_EPOCH):
            return ErrorCode.PRODUCER_FENCED
    if entry.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if entry.state is State.ONGOING:
        return Change.FENCE
    if entry.exhausted:
        if expected is None or expected[1] == entry.epoch:
            return Change.ROTATE
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if expected is None or entry.epoch < 0 or expected[1] == entry.epoch:
        return Change.RAISE
    return Change.KEEP if expected[1] == entry.last_epoch else ErrorCode.PRODUCER_FENCED


def fence(entry: Entry, *, raises: bool, now: float) -> None:
    """Abort the open transaction and raise the epoch, for InitProducerId or the timeout. `raises`: the cluster is at
    transaction version 2."""
    if raises and entry.epoch <= LAST_EPOCH:
        entry.prepare(commit=False, raises=True, next_producer_id=-1, now=now)
        return
    if entry.epoch <= LAST_EPOCH:
        entry.epoch += 1
    entry.last_epoch = -1
    entry.prepare(commit=False, raises=False, next_producer_id=-1, now=now)
