"""What a source, a sink and a committer must do. Implement these for other systems than Kafka.

All methods run on the driver, except the objects returned by :meth:`Source.read` and :meth:`Sink.write`, which are
pickled, run on executors, and may import only the standard library, pyarrow and their own client library.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from coordinator.errors import OncewardError
from coordinator.pipeline.tasks import CheckpointTask, Vote
from coordinator.protocol.values import (
    CheckpointId,
    Claim,
    Committable,
    Document,
    Generation,
    JobName,
    JsonObject,
    Participant,
    ParticipantName,
    Settlement,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SplitReader: TypeAlias = "Callable[[JsonObject, frozenset[str]], Iterator[pa.RecordBatch]]"
"""(split, columns used) -> batches with all columns of the source's schema; memory bounded whatever the split."""

SlotWriter: TypeAlias = "Callable[[CheckpointTask, int, int, Iterator[pa.RecordBatch]], Vote]"
"""(task, slot, attempt id, batches) -> vote. Drains the batches. Raises when anything was not delivered."""


class ReplayRefusedError(OncewardError):
    """Lost slots cannot be written again exactly as they were, and why. The job halts; nothing was written."""


class Severity(StrEnum):
    ERROR = "error"
    """The job is not started."""
    WARNING = "warning"
    """The job starts; the finding is shown."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that the preflight noticed: both numbers in ``message``, the remedy in ``fix``."""

    severity: Severity
    subject: str
    """What it is about, for example ``sink topic orders-eur``."""
    message: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """What a participant may know of its job."""

    job: JobName
    checkpoint_timeout: timedelta


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one checkpoint reads."""

    splits: tuple[JsonObject, ...]
    """One per Spark partition, in a stable order; empty ranges included, so that slots keep their meaning."""
    positions: Document
    """Positions when all splits were read."""
    records: int
    """Upper bound of the records in the splits (offsets may belong to control records); 0 = nothing new."""
    lag: int
    """Offsets that stay unread after this plan."""
    finished: bool
    """A bounded source has nothing left after this plan."""


class Source(ABC):
    """Reads. Its positions are the only thing that says what was processed."""

    participant: Participant
    schema: str
    """Columns as a Spark DDL string."""

    @abstractmethod
    def open(self, context: JobContext) -> None:
        """Create clients. Called once, before everything else."""

    @abstractmethod
    def preflight(self) -> Sequence[Finding]:
        """Everything that would make this source unsafe, found without changing anything."""

    @abstractmethod
    def resolve(self) -> Document:
        """Start positions (and bounded ends) of all partitions, for the job's first checkpoint."""

    @abstractmethod
    def restore(self, positions: Document) -> None:
        """Check that ``positions`` can be continued from. Raises HaltedError when the input is gone or another one."""

    @abstractmethod
    def plan(self, base: Document) -> Plan:
        """Half-open ranges from ``base`` to what is there now, within the source's limits. Does not wait."""

    @abstractmethod
    def read(self) -> SplitReader:
        """The executor's part."""

    def snapshot(self, plan: Plan) -> Document:
        """Positions after ``plan`` was read: last processed + 1."""
        return plan.positions

    def mirror(self, positions: Document) -> None:  # noqa: B027 - optional
        """Show settled positions to lag tools. Best effort; never read back for recovery."""

    def diagnose(self, error: BaseException) -> OncewardError | None:
        """Recognise an error of the reader in what Spark raised: for example input that is gone; None = unknown."""
        return None

    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None:
        """Return when ``splits`` of the checkpoint with ``positions`` can be read again, every record of them.

        Raises ReplayRefusedError otherwise, CheckpointFailedError when that cannot be found out now.
        """
        raise ReplayRefusedError(f"the source {self.participant.name} does not say whether its input is still complete")

    @abstractmethod
    def overlaps(self, sink: "Sink") -> str | None:
        """Say why ``sink`` would feed this source on the same cluster, or None."""

    @abstractmethod
    def close(self) -> None:
        """Release clients. Called on every path."""


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A transaction of a job that is open at the brokers, as they tell it now."""

    id: str
    """As in the committable, if there is one (transactional id)."""
    cluster: str
    """Name of the cluster."""
    participant: str
    """The sink that its id names."""
    generation: int
    """Of the driver under which it was begun."""
    worker: str
    """Token of the worker process that owns the id."""
    state: str
    """In the words of the broker: ``Ongoing``, or ``PrepareCommit`` and ``PrepareAbort`` while it is being ended."""
    owner: tuple[int, int]
    """(producer id, epoch): with the id exactly this transaction and no other."""
    age: timedelta | None
    """Since its first partition was enlisted, on this machine's clock; None where the brokers do not say."""
    left: timedelta | None
    """Until the brokers abort it by themselves, never below zero; None where they do not say."""
    receipted: bool
    """Its receipt is written, so it may be pre-committed: only a decision tells whether it may be aborted."""
    partitions: tuple[str, ...]
    """What it wrote to, as ``topic-partition``; readers of these wait for it."""


@dataclass(frozen=True, kw_only=True)
class Age:
    """How long a pre-committed transaction has been open, and how long it may be."""

    transaction: str
    """As people know it."""
    open_for: timedelta
    timeout: timedelta
    """After which the brokers abort it."""


class Committer(ABC):
    """Ends transactions of others: in the driver, or in the coordinator for a job whose driver is gone."""

    @abstractmethod
    def commit(
        self, committables: Sequence[Committable], *, give_up: Callable[[], bool] = lambda: False
    ) -> Sequence[Settlement]:
        """Commit each and prove the outcome, asking again for as long as it takes or until ``give_up()``.

        Idempotent. One settlement per committable that is known; none for those still unanswered when it gave up.
        """

    @abstractmethod
    def abort(self, committables: Sequence[Committable]) -> None:
        """Abort transactions of an undecided or aborted checkpoint. Idempotent. Never call it for a completed one."""

    @abstractmethod
    def outcome(self, committable: Committable) -> Settlement:
        """What the broker and the receipt prove now, changing nothing."""

    def describe(self, committable: Committable) -> str:
        """What a committable holds, for people: where, how many records, from which input."""
        return json.dumps(committable.document.body, sort_keys=True)

    def handle(self, committable: Committable) -> tuple[str, tuple[int, int]] | None:
        """The transaction as :class:`OpenTransaction` names it, (id, owner); None where it has no such name."""
        return None

    def age(self, committable: Committable) -> Age | None:
        """Of its transaction, should it still be open; asks nobody. None where transactions do not time out."""
        return None

    @abstractmethod
    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """Transactional ids of ``job`` with an open transaction, without those of ``keep``."""

    @abstractmethod
    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        """Everything of ``job`` that is open or being ended at the brokers, by id, changing nothing."""

    @abstractmethod
    def sweep(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """Abort (fence) all leftovers and return their ids. Other jobs are never touched."""

    def claims(self, job: JobName) -> Sequence[Claim]:
        """Who owns ``job``, from each cluster that says so. None where sinks of this kind know no claims."""
        return ()

    def renew_claim(self, job: JobName, claim: Claim) -> None:  # noqa: B027 - optional
        """Say who owns ``job`` on each cluster where somebody does."""

    def longest_open(self) -> timedelta:
        """After so long a transaction that nobody ended has been ended by the system itself."""
        return timedelta(minutes=15)

    @abstractmethod
    def close(self) -> None:
        """Release clients."""


class Sink(ABC):
    """Writes. Nothing of a checkpoint is visible before the decision."""

    participant: Participant

    @abstractmethod
    def open(self, context: JobContext) -> None:
        """Create clients. Called once, before everything else."""

    @abstractmethod
    def preflight(self) -> Sequence[Finding]:
        """Everything that would make this sink unsafe. May create the receipts' topic, nothing else."""

    @abstractmethod
    def begin_generation(self, generation: Generation) -> None:
        """Called once a generation is granted, before anything is written or swept."""

    @abstractmethod
    def prepare(self, df: "DataFrame") -> "DataFrame":
        """Check the columns and project to what the writer takes. Raises ConfigurationError with what is missing."""

    @abstractmethod
    def write(self) -> SlotWriter:
        """The executor's part."""

    def options(self) -> JsonObject:
        """What all writers should know in the next checkpoint."""
        return {}

    @abstractmethod
    def pre_commit(
        self,
        checkpoint: CheckpointId,
        votes: Sequence[Vote],
        inputs: Sequence[Sequence[JsonObject]],
        *,
        unsettled: Collection[Committable],
    ) -> tuple[Committable, ...]:
        """Turn votes (already checked for completeness, ordered by slot) into committables.

        ``inputs[slot]`` are the splits that made the slot: one for a plan without shuffle, else all of them.
        Aborts every open transaction of the job that belongs neither to a vote nor to ``unsettled``: losing attempts.
        Raises CheckpointFailedError when a vote's transaction is not open any more.
        """

    def lost_splits(self, lost: Sequence[Committable]) -> Sequence[JsonObject]:
        """What to read to write each of ``lost`` again: one split per committable, in their order.

        Raises ReplayRefusedError when a slot was not made of one split alone, or where it was written has changed.
        """
        raise ReplayRefusedError(f"the sink {self.participant.name} does not say what its committables were made of")

    @abstractmethod
    def settled(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        """All committables of ``checkpoint`` are proved committed."""

    @abstractmethod
    def committer(self) -> Committer:
        """The committer for this sink's committables, on this sink's connections."""

    @abstractmethod
    def read_claim(self) -> Claim | None:
        """Who owns the job according to the sink's cluster; None if nobody ever did."""

    @abstractmethod
    def write_claim(self, claim: Claim) -> None:
        """Say who owns the job."""

    @abstractmethod
    def close(self) -> None:
        """Release clients. Must not abort a pre-committed transaction."""


__all__ = [
    "Age",
    "CheckpointTask",
    "Committer",
    "Finding",
    "JobContext",
    "OpenTransaction",
    "ParticipantName",
    "Plan",
    "ReplayRefusedError",
    "Severity",
    "Sink",
    "SlotWriter",
    "Source",
    "SplitReader",
    "Vote",
]
