"""The protocol's vocabulary as types (docs/glossary.md). Values only, no behaviour."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType, Self, TypeAlias

JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object: only what ``json.dumps`` writes and ``json.loads`` returns."""

CheckpointId = NewType("CheckpointId", int)
"""Strictly increasing within a job, across all generations. Gaps are normal. 0 means no checkpoint."""

Generation = NewType("Generation", int)
"""One run of a job. A higher generation fences all lower ones. 0 means before the first run."""

RequestId = NewType("RequestId", str)
"""Random token of one request of a person: identifies a repeated call."""

NO_CHECKPOINT = CheckpointId(0)
NO_GENERATION = Generation(0)

COORDINATOR = "the coordinator"
SPARK_BATCH = "spark-batch"
"""The kind of a Structured Streaming query's positions, and of the source that has them: Spark reads, and does not say
how much."""
"""Replaces the driver's token while the coordinator itself holds a generation. No token contains a space."""

MAX_ID = 2**53 - 1
"""Up to this value ids stay exact in JSON readers that know only doubles."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class Name(str):
    """A name that is safe inside a transactional id: it cannot contain ``.``, the separator."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Raises ValueError when ``text`` is outside the pattern."""
        if not _NAME.fullmatch(text):
            raise ValueError(
                f"{text!r} is not a valid {cls.__name__}: use 1 to 63 characters of a-z, 0-9, _ and -, "
                "beginning with a letter or digit"
            )
        return super().__new__(cls, text)


class JobName(Name):
    """A named pipeline, for example ``orders-eur``."""

    __slots__ = ()


class ParticipantName(Name):
    """A source or sink, unique within its job."""

    __slots__ = ()


class CheckpointKind(StrEnum):
    """Why a checkpoint was taken. Also determines how long it is kept."""

    CHECKPOINT = "checkpoint"
    """Triggered by the interval or on demand. Removed once enough newer checkpoints are completed."""
    SAVEPOINT = "savepoint"
    """Requested, and optionally named, by a person. Kept until deleted."""
    RESTORE = "restore"
    """Repeats the positions of an earlier checkpoint; the history forks here."""
    SKIP = "skip"
    """The positions of its base, moved by a person past deleted input."""


class CheckpointState(StrEnum):
    """A checkpoint as stored and listed."""

    TRIGGERED = "triggered"
    COMPLETED = "completed"
    """Decided. Not all of its commits are proved."""
    SETTLED = "settled"
    """Completed, and every commit is proved."""
    ABORTED = "aborted"
    UNREADABLE = "unreadable"
    """The stored row is damaged; no other field of it can be trusted."""


class OnLost(StrEnum):
    """What happens when a committable of a completed checkpoint is proved lost."""

    HALT = "halt"
    """The job halts until a person decides."""
    REPLAY = "replay"
    """The driver writes the lost slots again from the same ranges, before it writes anything later."""
    SKIP = "skip"
    """The lost slots are given up. A loss report is kept, and listed until a person acknowledges it."""


class Role(StrEnum):
    """What a participant does in a checkpoint."""

    SOURCE = "source"
    SINK = "sink"


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A position or a committable as JSON. The coordinator stores it and never reads the body."""

    kind: str
    """Which code can read it, for example ``kafka-positions``."""
    version: int
    """Version of the kind's body, from 1. A reader rejects versions that it does not know."""
    body: JsonObject


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A member of a job. Membership is durable before the job's first checkpoint."""

    name: ParticipantName
    role: Role
    kind: str
    """Which committer or planner serves it, for example ``kafka``."""
    on_lost: OnLost = OnLost.HALT
    """For sinks only."""
    place: str = ""
    """Where it writes, for people, such as ``Kafka topic orders``; empty if unknown."""
    branch: bool | None = None
    """For sinks: whether a pass over the input of its own makes its records; all others share one. None if unknown."""


@dataclass(frozen=True, kw_only=True)
class Author:
    """The participant that acknowledges a document, or has acknowledged it. A document may name nothing of another."""

    job: JobName
    participant: ParticipantName
    generations: range
    """The generations in which it may have been made: when it is acknowledged, that of the driver alone. Later, those
    from its checkpoint's to the present one, because a later generation writes lost slots again."""

    def made(self, job: str, participant: str, generation: int) -> bool:
        """Return whether this author may have made what is named by these."""
        return (job, participant) == (self.job, self.participant) and generation in self.generations

    def __str__(self) -> str:
        first, last = self.generations[0], self.generations[-1]
        which = f"generation {first}" if first == last else f"generations {first} to {last}"
        return f"{self.participant} of job {self.job}, {which}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Committable:
    """The handle of one pre-committed slot: any process can commit or abort the slot with it."""

    slot: int
    document: Document


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one participant contributes to a checkpoint."""

    positions: Document | None = None
    """A source's next positions; None for a sink."""
    committables: tuple[Committable, ...] = ()
    """A sink's pre-committed slots. Empty for a source, and for a sink that had nothing to write."""
    records: int = 0
    """Records read (source) or written (sink) for this checkpoint."""
    bytes: int = 0
    """Bytes of keys and values of those records."""
    unchanged: bool = False
    """True when the participant has nothing new since the base. A checkpoint that is unchanged everywhere leaves no
    row."""
    state: Document | None = None
    """What the participant's driver wants back after a restart, besides positions. A restore of an older checkpoint
    begins without it."""
    next_at_once: bool = field(default=False, compare=False)
    """True when the next checkpoint need not wait for the interval. Not stored: after a restart of the coordinator the
    next checkpoint does not wait for the interval in any case."""


class Outcome(StrEnum):
    """What is known about a committable of a completed checkpoint."""

    COMMITTED = "committed"
    LOST = "lost"
    """Proved: it is not committed and never will be."""
    IN_DOUBT = "in_doubt"
    """Nothing is proved. Never treated as committed or lost."""


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """The outcome of one committable, and its proof as readable text."""

    slot: int
    outcome: Outcome
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A record on the sink's cluster of the store and generation that own a job."""

    store_id: str
    generation: Generation
    completed: CheckpointId
    """The newest completed checkpoint when the claim was written. No newer checkpoint was committed by then."""
    holder: str = ""
    """Random token of the writer. Needed because two copies of one store may grant the same generation."""
    amendment: int = 0
    """That checkpoint's. No later replacement of its lost slots was committed by then."""

    def is_older_than(self, held: "Claim") -> bool:
        """Return whether this claim cannot have replaced ``held`` lawfully: their store has gone further with that."""
        if self.store_id != held.store_id or self == held:
            return False
        own = self.generation == held.generation and self.holder == held.holder
        return (own or self.generation < held.generation) and (self.completed, self.amendment) <= (
            held.completed,
            held.amendment,
        )


@dataclass(frozen=True, kw_only=True)
class CompletedCheckpoint:
    """A completed checkpoint with everything that a recovery needs."""

    id: CheckpointId
    base: CheckpointId
    generation: Generation
    snapshots: Mapping[ParticipantName, Snapshot] = field(default_factory=dict)
    settled: bool = False
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    amendment: int = 0
    """How many times replayed committables have replaced lost ones."""
