"""What a source, a sink and a committer must do. Implement these for other systems than Kafka.

All methods run on the driver, except the objects returned by :meth:`Source.read` and :meth:`Sink.write`, which are
pickled, run on executors, and may import only the standard library, pyarrow and their own client library.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from onceward.coordinator.errors import OncewardError
from onceward.coordinator.links import Links
from onceward.coordinator.pipeline.tasks import CheckpointTask, Vote
from onceward.coordinator.protocol.committing import Age, Committer, OpenTransaction
from onceward.coordinator.protocol.values import (
    CheckpointId,
    Claim,
    Committable,
    Document,
    Generation,
    JobName,
    JsonObject,
    Participant,
    ParticipantName,
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
    links: Links = field(default_factory=Links)
    """To be told which peers do not answer, and again when they do: the log and ``onceward jobs`` show it."""
    checkpoint_interval: timedelta | None = None
    """Between two checkpoints; 0 = back to back, None = they come only when somebody asks."""


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
    sizing: JsonObject = field(default_factory=dict)
    """Why it is as large as it is, for people: these facts are told with the checkpoint."""
    cut_for_time: bool = False
    """The source left something unread for no other reason than the time that reading it takes."""
    can_coalesce: bool = False
    """Fewer tasks may read the same, each several of the splits (:meth:`Source.coalesce`)."""


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

    def begin_new_run(self) -> None:  # noqa: B027 - optional
        """The job finished at the positions that will be restored: a bounded source resolves its end again. Not called
        where a run broke off: that one goes on to the end that it had."""

    @abstractmethod
    def restore(self, positions: Document) -> None:
        """Check that ``positions`` can be continued from. Raises HaltedError when the input is gone or another one."""

    @abstractmethod
    def plan(self, base: Document) -> Plan:
        """Half-open ranges from ``base`` to what is there now, within the source's limits. Does not wait."""

    def coalesce(self, splits: Sequence[JsonObject], most: int) -> tuple[JsonObject, ...]:
        """The ``splits`` of a plan that can be coalesced, as at most ``most`` splits of about one size: each is a task
        with a transaction, and those are not free."""
        raise NotImplementedError(f"{type(self).__name__} makes plans that can be coalesced, and has no coalesce()")

    @abstractmethod
    def read(self) -> SplitReader:
        """The executor's part."""

    def snapshot(self, plan: Plan) -> Document:
        """Positions after ``plan`` was read: last processed + 1."""
        return plan.positions

    def observe_run(self, plan: Plan, seconds: float, *, failed: bool = False) -> None:  # noqa: B027 - optional
        """The Spark job over ``plan`` took ``seconds`` with its pre-commit, or until it failed. For sources that size
        their next plans by it; what is written again after a loss is not told, because nobody may size that."""

    def mirror(self, positions: Document) -> None:  # noqa: B027 - optional
        """Show settled positions to lag tools. Best effort; never read back for recovery."""

    def diagnose(self, error: BaseException) -> OncewardError | None:
        """Recognise an error of the reader in what Spark raised: for example input that is gone; None = unknown."""
        return None

    def halves(self, splits: Sequence[JsonObject]) -> tuple[Sequence[JsonObject], Sequence[JsonObject]] | None:
        """Two parts that together hold what ``splits`` hold, to find the record that makes a checkpoint fail; None when
        there is nothing to divide."""
        return None

    def describe(self, splits: Sequence[JsonObject]) -> str:
        """The ranges that ``splits`` hold, for people."""
        return ", ".join(str(dict(split)) for split in splits)

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

    def writer_options(self) -> JsonObject:
        """What all writers should know in the next checkpoint."""
        return {}

    def explain(self, cause: str) -> str | None:
        """Why the sink's system refused a record, in words that are enough to act, when ``cause`` says that it did;
        None for every other failure."""
        return None

    def hides_until_decided(self) -> bool:
        """Whether nothing that is written can be seen before the decision: then parts of a failed checkpoint may be run
        again to find out what is at fault."""
        return False

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
    def on_settled(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        """All committables of ``checkpoint`` are proved committed."""

    @abstractmethod
    def committer(self) -> Committer:
        """The committer for this sink's committables, on this sink's connections."""

    @abstractmethod
    def read_claim(self) -> Claim | None:
        """Who owns the job according to the sink's cluster; None if nobody ever did."""

    @abstractmethod
    def take_claim(self, claim: Claim, seen: Claim | None) -> None:
        """Say who owns the job, atomically: in the place of ``seen``, or where there is no claim.

        Called after :meth:`begin_generation`, before anything is swept or committed. Raises ClaimChangedError when
        there is another claim by now.
        """

    def prepare_claim(self, claim: Claim) -> None:  # noqa: B027 - optional
        """``claim`` will be renewed soon, if its checkpoint is completed: do now what need not wait for the decision.

        Called by the thread that calls :meth:`renew_claim`. Must not say anything yet, and not fail.
        """

    @abstractmethod
    def renew_claim(self, claim: Claim, *, give_up: Callable[[], bool]) -> bool:
        """Say that ``claim.completed`` is completed, atomically: in the place of what was written last.

        Called before the first commit of a checkpoint. Asks for as long as it takes; False when it gave up. Raises
        FencedError when there is another claim by now: then nothing may be committed.
        """

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
