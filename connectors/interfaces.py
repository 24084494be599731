"""The interfaces of source and sink. Implement them for systems other than Kafka.

All methods run on the driver. The objects that :meth:`Source.read` and :meth:`SinkSession.write` return are pickled and
run on executors; they may import only the standard library, pyarrow and their own client library.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, runtime_checkable

from onceward.common.errors import OncewardError
from onceward.common.links import Links
from onceward.connectors.slots import Library, SlotWriter, StayingWriter
from onceward.connectors.tasks import Vote
from onceward.protocol.committing import PreCommitted, System
from onceward.protocol.read_progress import PartitionLag
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
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

__all__ = [
    "Assignment",
    "Chosen",
    "Examined",
    "Finding",
    "FollowedSource",
    "Follower",
    "JobContext",
    "Origin",
    "Pace",
    "Plan",
    "Refusal",
    "ReplayRefusedError",
    "Replays",
    "Rereads",
    "Resource",
    "ReusesIds",
    "Risk",
    "Severity",
    "Sink",
    "SinkSession",
    "Source",
    "SplitFollower",
    "SplitReader",
    "Stays",
    "writer_options",
]

SplitReader: TypeAlias = "Callable[[JsonObject, frozenset[str]], Iterator[pa.RecordBatch]]"
"""(split, columns used) -> batches with all columns of the source's schema; memory stays bounded for any split."""


class Follower(Protocol):
    """Reads one slot's input on and on, in a staying task. One thread reads; :meth:`cut` comes from another."""

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Yield batches as they come, until a cut. Memory stays bounded, however long the cut takes."""

    def cut(self, allowed: Sequence[int] = ()) -> None:
        """End :meth:`batches` after what it has taken, at once if it waits. ``allowed``: this slot's part of
        :meth:`FollowedSource.allowances`, for what follows."""

    def reached(self) -> JsonObject:
        """Return what was read since the last call: ``{"ranges": [splits], "lags": [offsets left, or null]}``."""

    def close(self) -> None:
        """Release the client."""


SplitFollower: TypeAlias = Callable[[JsonObject, frozenset[str], "Pace", Callable[..., None]], Follower]
"""(split, columns used, pace, news) -> follower. It calls ``news`` for the first records after each cut, and when all
input of a bounded split is read. It calls ``news(urgent=False)`` when it has passed input without records: the driver
cuts for that when no task has records for a second."""

Pace: TypeAlias = JsonObject
"""``interval``: seconds between two cuts; ``hold``: seconds after its first record at which a follower stops reading
until the next cut, so that no transaction grows without limit while the coordinator is away."""


class ReplayRefusedError(OncewardError):
    """Lost slots cannot be written again exactly as they were, and why. The job halts; nothing was written."""


class Severity(StrEnum):
    ERROR = "error"
    """The job does not start."""
    WARNING = "warning"
    """The job starts; the finding is shown."""


class Risk(StrEnum):
    """Names for ``accept_risks``."""

    REPLICATION = "replication"
    """A single lost disk or server can lose confirmed records."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding of the preflight: ``message`` gives both numbers, ``fix`` the remedy."""

    severity: Severity
    subject: str
    """What the finding concerns, for example ``sink topic orders-eur``."""
    message: str
    fix: str
    risk: Risk | None = None
    """What a person accepts so that the warning is not shown; None = it cannot be accepted."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What ``onceward doctor`` has learned from a system, without a job that starts."""

    facts: Sequence[tuple[str, str]] = ()
    """Subject, and what was found."""
    findings: Sequence[Finding] = ()
    unknown: Sequence[tuple[str, str, str]] = ()
    """Subject, why it is not known, and how to know it."""
    libraries: Sequence[Library] = ()
    """What executors need to write there, besides what each job needs."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a sink's system refused what was written."""

    text: str
    """Cause and remedy, without a full stop at the end."""
    by_record: bool
    """A record may be the cause."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Something that sources read and sinks write. Equal resources are the same thing."""

    kind: str
    """What it is, such as ``Kafka topic``."""
    cluster: str
    """The id that its cluster gives itself: addresses and names of clusters differ between a job's two sides."""
    name: str


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A column that a sink's writer takes."""

    column: str
    """Its name in the records."""
    name: str
    """Its name in the writer's batches."""
    cast: str | None = None
    """The Spark type to which it is cast; None if it stays as it is."""


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """What a participant may know about its job."""

    job: JobName
    checkpoint_timeout: timedelta
    links: Links = field(default_factory=Links)
    """Where participants report peers that do not answer, and their recovery: the log and ``onceward jobs`` show it."""
    checkpoint_interval: timedelta | None = None
    """Time between two checkpoints; 0 = back to back, None = only on request."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one checkpoint reads."""

    splits: tuple[JsonObject, ...]
    """One per Spark partition, in a stable order; empty ranges are included, so that slots keep their meaning."""
    positions: Document
    """Positions after all splits are read."""
    records: int
    """Upper bound of the records in the splits (offsets may belong to control records); 0 = nothing new."""
    lag: int | None
    """Offsets that stay unread after this plan; None when the source does not know."""
    finished: bool
    """A bounded source has nothing left after this plan."""
    sizing: JsonObject = field(default_factory=dict)
    """Facts that explain the plan's size; they are logged with the checkpoint."""
    cut_for_time: bool = False
    """The source left records unread only because reading them would take too long."""
    can_coalesce: bool = False
    """Fewer tasks may read the same records, each of them several splits (:meth:`Source.coalesce`)."""
    counted: bool = True
    """False if ``records`` says no more than that there are some: the tasks' digests count them."""
    partitions: Callable[[], Iterable[PartitionLag]] = field(default=tuple, compare=False)
    """The partitions of the input after this plan, for listings. Called at most once per checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Which input each staying task reads, from where on."""

    splits: tuple[JsonObject, ...]
    """One per slot, without ends where the input has none."""
    positions: Document
    """Where the tasks begin."""
    finished: bool
    """A bounded source has nothing left: no task is needed."""


_TEXTS = 3
"""Slots whose input is described in words: a checkpoint may have thousands."""


def split_name(split: JsonObject) -> str:
    """Return a text that equal splits share, and only they."""
    return repr(sorted(split.items()))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The input of one slot, or of a whole checkpoint. The sink stores it in its committable, because another process
    may replay it."""

    inputs: Sequence[JsonObject]
    """The splits whose records made the slot: one for a plan without a shuffle, else all of them. Slots of a shuffle
    share one list."""
    replayable: bool
    """True when writing ``inputs`` again gives the same records: of a slot, when it holds exactly those of one split;
    of a whole checkpoint, always."""
    text: str = ""
    """What the source says of ``inputs`` (:meth:`Source.describe`): the sink cannot read them."""
    whole: bool = False
    """True for a committable that holds all slots of its checkpoint."""

    @classmethod
    def of_all(cls, origins: Sequence["Origin"]) -> "Origin":
        """Return the origin of a committable that holds all slots. ``origins``: one per slot."""
        shared = {id(one.inputs): one.inputs for one in origins}.values()
        splits = {split_name(split): split for inputs in shared for split in inputs}
        texts = list(dict.fromkeys(one.text for one in origins if one.text))
        more = f" and {len(texts) - _TEXTS} more" if len(texts) > _TEXTS else ""
        return cls(inputs=tuple(splits.values()), replayable=True, text="; ".join(texts[:_TEXTS]) + more, whole=True)


class Source(ABC):
    """Reads the input. Its positions are the only record of what was processed.

    One that can do more is a :class:`FollowedSource`, or has the method of :class:`Rereads`, too.
    """

    participant: Participant
    schema: str
    """Columns as a Spark DDL string."""
    copied_columns: Sequence[str]
    """The columns that a job without a transform writes, in order."""
    idle_poll_s: float = 0.05
    """Seconds between two plans while a checkpoint waits for new data."""

    @abstractmethod
    def open(self, context: JobContext) -> None:
        """Create clients. Called once, before everything else."""

    @abstractmethod
    def preflight(self) -> Sequence[Finding]:
        """Find everything that would make this source unsafe, without changing anything."""

    @abstractmethod
    def resolve(self) -> Document:
        """Return the start positions (and bounded ends) of all partitions, for the job's first checkpoint."""

    def begin_new_run(self) -> None:  # noqa: B027 - optional
        """Resolve the end of a bounded source again: the job finished at the positions that will be restored. Not
        called after an interrupted run, which continues to the end that it had."""

    @abstractmethod
    def restore(self, positions: Document) -> None:
        """Check that reading can continue from ``positions``. Raises HaltedError if the input is gone or replaced."""

    def wakes(self, wake: Callable[[], None]) -> None:  # noqa: B027 - optional
        """Keep ``wake``, which ends a checkpoint's wait for new data if :meth:`has_news`. Called in each generation. A
        source that learns of its input calls it; others are asked for a plan every ``idle_poll_s``."""

    def has_news(self) -> bool:
        """Return whether input has come since the last plan, if the source learns of it. Must not wait."""
        return False

    @abstractmethod
    def plan(self, base: Document) -> Plan:
        """Return half-open ranges from ``base`` to the current end, within the source's limits. Does not wait."""

    def coalesce(self, splits: Sequence[JsonObject], most: int) -> tuple[JsonObject, ...]:
        """Merge the ``splits`` of a plan that can be coalesced into at most ``most`` splits of similar size. Every
        split costs a task with a transaction."""
        raise NotImplementedError(f"{type(self).__name__} makes plans that can be coalesced, and has no coalesce()")

    @abstractmethod
    def read(self) -> SplitReader:
        """Return the reader that runs on executors."""

    def snapshot(self, plan: Plan) -> Document:
        """Return the positions after ``plan`` was read: last processed + 1."""
        return plan.positions

    def observe_run(  # noqa: B027 - optional
        self, plan: Plan, seconds: float, *, failed: bool = False, held: float = 0.0
    ) -> None:
        """Report that the Spark job over ``plan`` took ``seconds`` with its pre-commit, or until it failed. Sources may
        size their next plans by it. Replays after a loss are not reported: their size is fixed. ``held``: for how many
        of these seconds a task's reader was held back, by its own report (``held_back()``, optional)."""

    def on_settled(self, positions: Document) -> None:  # noqa: B027 - optional
        """Called when everything before ``positions`` is proved committed, in the order of the checkpoints and perhaps
        repeatedly. Must not wait: the next commit does."""

    def mirror(self, positions: Document) -> None:  # noqa: B027 - optional
        """Publish settled positions for lag tools. Best effort; never read back for recovery."""

    def diagnose(self, error: BaseException) -> OncewardError | None:
        """Recognise an error of the reader in a Spark exception, for example missing input; None = unknown."""
        return None

    def halves(self, splits: Sequence[JsonObject]) -> tuple[Sequence[JsonObject], Sequence[JsonObject]] | None:
        """Divide ``splits`` into two parts that together hold the same records, to find the record that makes a
        checkpoint fail; None when they cannot be divided."""
        return None

    def describe(self, splits: Sequence[JsonObject]) -> str:
        """Describe the ranges that ``splits`` hold, for people: the first ones, and how many more. Each committable
        keeps the text."""
        more = f" and {len(splits) - 5} more splits" if len(splits) > 5 else ""
        return ", ".join(str(dict(split)) for split in splits[:5]) + more

    @abstractmethod
    def reads(self, resource: Resource) -> bool:
        """Return whether ``resource`` is input of this source, or will be once it exists. Called after
        :meth:`preflight`."""

    @abstractmethod
    def close(self) -> None:
        """Release clients. Called on every path."""


class FollowedSource(Source):
    """A source that tasks which stay can read."""

    @abstractmethod
    def follow(self) -> SplitFollower:
        """Return the reader of staying tasks. Raises ConfigurationError if an option of the source needs tasks per
        checkpoint."""

    @abstractmethod
    def assign(self, base: Document, most: int) -> Assignment:
        """Spread the input after ``base`` over at most ``most`` staying tasks."""

    @abstractmethod
    def reached(self, assigned: Document, reports: Sequence[JsonObject]) -> Plan:
        """Return what staying tasks have read from ``assigned`` on, as the plan that would have read the same.

        ``reports``: what each slot's :meth:`Follower.reached` returned, by slot; empty = nothing was read.
        """

    def allowances(self) -> Sequence[Sequence[int]]:
        """Return what each slot's follower may read from the next cut to the one after it; empty = no limit. Called
        once for each cut."""
        return ()

    def outgrown(self, assigned: Document) -> bool:
        """Return whether there is input that no staying task reads, such as a new partition."""
        return False

    def observe_held(self, seconds: float, held: float) -> None:
        """Report for how many of the last ``seconds`` the readers of staying tasks were held back."""


@runtime_checkable
class HasWholeRecords(Protocol):
    """A source whose records have more columns than it was asked for."""

    def with_whole_records(self) -> tuple[Source, Sequence[str]]:
        """Return a source that also reads what is not in :attr:`Source.schema`, as the last columns of its batches, and
        the names of these. Called before :meth:`Source.open`."""


@runtime_checkable
class Rereads(Protocol):
    """A source that knows whether its input can be read again. Without it, a loss halts the job."""

    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None:
        """Check that every record in ``splits`` of the checkpoint with ``positions`` can be read again.

        Raises ReplayRefusedError when it cannot, CheckpointFailedError when this cannot be determined now.
        """


class Sink(ABC):
    """Where a program writes: what it constructs, and hands to one job or several. It holds no connection."""

    participant: Participant

    @abstractmethod
    def connect(self, context: JobContext) -> "SinkSession":
        """Connect for one run of a job. Closes what it has opened if it raises."""

    def named(self, name: ParticipantName) -> Self:
        """Return the same sink under ``name``."""
        if name == self.participant.name:
            return self
        other = copy(self)
        other.participant = replace(self.participant, name=name)
        return other


class SinkSession(ABC):
    """A sink for one run of a job, on the driver. Nothing of a checkpoint is visible before the decision if
    :meth:`hides_until_decided` is true.

    A session that can do more has the methods of :class:`Stays`, :class:`Replays` or :class:`ReusesIds`, too.
    """

    participant: Participant

    @abstractmethod
    def preflight(self) -> Sequence[Finding]:
        """Find everything that would make this sink unsafe. May create where the sink keeps its own records, nothing
        else."""

    @abstractmethod
    def writes(self) -> Collection[Resource]:
        """Return every resource that this sink may write to. Called after :meth:`preflight`."""

    @abstractmethod
    def begin_generation(self, generation: Generation) -> None:
        """Called once a generation is granted, before anything is written or swept."""

    @abstractmethod
    def choose(self, columns: Sequence[tuple[str, str]]) -> Sequence[Chosen]:
        """Return what the writer takes of records with these ``columns``: names, and Spark's types as text, such as
        ``decimal(10,2)``. Asks no one. Raises ConfigurationError that names everything that is missing or wrong."""

    @abstractmethod
    def write(self) -> SlotWriter:
        """Return the writer that runs on executors."""

    def explain(self, cause: str) -> Refusal | None:
        """Explain why the sink's system refused what was written, in enough detail to act, when ``cause`` says that it
        did; None for every other failure."""
        return None

    def hides_until_decided(self) -> bool:
        """True when nothing written is visible before the decision: then parts of a failed checkpoint may run again to
        find the input at fault."""
        return False

    @abstractmethod
    def pre_commit(
        self, checkpoint: CheckpointId, votes: Sequence[Vote], origins: Sequence[Origin], *, leftovers: bool
    ) -> PreCommitted:
        """Turn votes (already checked for completeness, ordered by slot) into committables. Aborts nothing.

        ``origins``: one per slot. ``leftovers``: :meth:`System.sweep` follows with the result, and what it must know
        may be asked here. Raises CheckpointFailedError when the transaction of a vote is no longer open.
        """

    @abstractmethod
    def on_settled(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        """Called once all committables of ``checkpoint`` are proved committed."""

    @abstractmethod
    def system(self) -> System:
        """Return the system that this sink writes to, on this sink's connections."""

    @abstractmethod
    def close(self) -> None:
        """Release clients. Must not abort a pre-committed transaction."""


@runtime_checkable
class Stays(Protocol):
    """A sink that tasks which stay can write to."""

    def stay(self) -> StayingWriter:
        """Return the writer of staying tasks."""


@runtime_checkable
class Replays(Protocol):
    """A sink whose lost slots can be written again. Without it, a loss halts the job."""

    def origin(self, committable: Committable) -> Origin:
        """Return the origin that :meth:`SinkSession.pre_commit` stored in ``committable``, or :meth:`Origin.of_all` of
        them."""

    def check_destination(self, lost: Sequence[Committable]) -> None:
        """Check that ``lost`` can be written again to the same place. Raises ReplayRefusedError when it has changed."""


@runtime_checkable
class ReusesIds(Protocol):
    """A sink whose writers may reuse what earlier ones have used."""

    def offer(self, after: CheckpointId = NO_CHECKPOINT) -> JsonObject:
        """Return options for writers. ``after``: they write this checkpoint without them, and use them from then on;
        by default, from the beginning."""


@runtime_checkable
class Partitioned(Protocol):
    """A sink whose records may have a ``partition`` column."""

    def partitions(self) -> int:
        """Return the number of partitions that any of its topics has at least. Asked after
        :meth:`SinkSession.preflight`."""


def partitions_of(sink: SinkSession) -> int | None:
    """Return how many partitions ``sink`` has; None if its records have none."""
    return sink.partitions() if isinstance(sink, Partitioned) else None


def writer_options(sink: SinkSession, after: CheckpointId = NO_CHECKPOINT) -> JsonObject:
    """Return the options for writers of ``sink``. See :meth:`ReusesIds.offer`."""
    return sink.offer(after) if isinstance(sink, ReusesIds) else {}
