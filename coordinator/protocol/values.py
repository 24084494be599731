"""The protocol's vocabulary as types (docs/protocol.md#words). Values only: nothing here does anything."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType, Self, TypeAlias

JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object: only what ``json.dumps`` writes and ``json.loads`` gives back."""

CheckpointId = NewType("CheckpointId", int)
"""Strictly increasing within a job for ever; gaps are normal; 0 is no checkpoint."""

Generation = NewType("Generation", int)
"""One run of a job; a higher one fences all lower ones; 0 is before the first run."""

RequestId = NewType("RequestId", str)
"""Random token of one request of a person: makes a repeated call recognisable."""

NO_CHECKPOINT = CheckpointId(0)
NO_GENERATION = Generation(0)

COORDINATOR = "the coordinator"
"""Stands where a driver's token stands, for a generation that the coordinator holds itself. No token has a space."""

MAX_ID = 2**53 - 1
"""Ids stay exact in JSON readers that know only doubles."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class Name(str):
    """A name that is safe inside a transactional id: ``.`` cannot occur, so it separates."""

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
    """Why a checkpoint was taken, which also says how long it is kept."""

    CHECKPOINT = "checkpoint"
    """By the interval or on demand; removed when enough newer ones are completed."""
    SAVEPOINT = "savepoint"
    """Asked for and perhaps named by a person; kept until deleted."""
    RESTORE = "restore"
    """Repeats the positions of an earlier checkpoint: the history forks here."""
    SKIP = "skip"
    """Its base's positions, moved by a person past input that is gone."""


class CheckpointState(StrEnum):
    """A checkpoint as stored and listed."""

    TRIGGERED = "triggered"
    COMPLETED = "completed"
    """Decided; its commits are not all proved."""
    SETTLED = "settled"
    """Completed, and every commit is proved."""
    ABORTED = "aborted"
    UNREADABLE = "unreadable"
    """What is stored is not what was written; nothing else that is said of it can be believed."""


class OnLost(StrEnum):
    """What happens when a committable of a completed checkpoint is proved lost."""

    HALT = "halt"
    """The job halts until a person decides."""
    REPLAY = "replay"
    """The driver writes the lost slots again from the same ranges, before anything later is written."""
    SKIP = "skip"
    """The lost slots are given up. A report of the loss is kept, and shown until a person acknowledges it."""


class Role(StrEnum):
    """What a participant does in a checkpoint."""

    SOURCE = "source"
    SINK = "sink"


@dataclass(frozen=True, kw_only=True)
class Document:
    """A position or a committable as JSON. The coordinator keeps it and never looks inside."""

    kind: str
    """Who can read it, for example ``kafka-positions``."""
    version: int
    """Of the kind's body, from 1. A reader refuses versions that it does not know."""
    body: JsonObject


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A member of a job; membership is durable before the job's first checkpoint."""

    name: ParticipantName
    role: Role
    kind: str
    """Which committer or planner serves it, for example ``kafka``."""
    on_lost: OnLost = OnLost.HALT
    """For a sink."""


@dataclass(frozen=True, kw_only=True)
class Committable:
    """The handle of one pre-committed slot: enough for any process to commit or abort it."""

    slot: int
    document: Document


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one participant contributes to a checkpoint."""

    positions: Document | None = None
    """A source's next positions; None for a sink."""
    committables: tuple[Committable, ...] = ()
    """A sink's pre-committed slots; empty for a source, and for a sink that had nothing to write."""
    records: int = 0
    """Records read (source) or written (sink) for this checkpoint."""
    bytes: int = 0
    """Bytes of keys and values of those records."""
    unchanged: bool = False
    """True when the participant has nothing new since the base. A checkpoint unchanged everywhere leaves no row."""
    next_at_once: bool = field(default=False, compare=False)
    """True when the next checkpoint need not wait for the interval. No part of what is stored: a coordinator that
    starts again lets one interval pass."""


class Outcome(StrEnum):
    """What is known about a committable of a completed checkpoint."""

    COMMITTED = "committed"
    LOST = "lost"
    """Proved: not committed, and never to be."""
    IN_DOUBT = "in_doubt"
    """Not proved either way. Never treated as one of the others."""


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """The outcome of one committable with what proves it, in words for people."""

    slot: int
    outcome: Outcome
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Says on the sink's cluster which store and generation own a job."""

    store_id: str
    generation: Generation
    completed: CheckpointId
    """The newest completed checkpoint when the claim was written. Nothing newer was committed by then."""
    holder: str = ""
    """Random token of its writer: two copies of one store may grant the same generation."""


@dataclass(frozen=True, kw_only=True)
class CompletedCheckpoint:
    """A completed checkpoint as a recovery needs it."""

    id: CheckpointId
    base: CheckpointId
    generation: Generation
    snapshots: Mapping[ParticipantName, Snapshot] = field(default_factory=dict)
    settled: bool = False
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    amendment: int = 0
    """How often lost committables were replaced by replayed ones."""
