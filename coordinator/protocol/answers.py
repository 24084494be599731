"""What a call is told, and what a driver is instructed to do."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from coordinator.protocol.facts import AbortReason, Fact
from coordinator.protocol.values import CheckpointId, CompletedCheckpoint, Generation, Participant


class Verdict(StrEnum):
    """The answer to a mutating call. Everything but ACCEPTED and CONFLICT left the state as it was."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """Said before with the same content; counted once."""
    CONFLICT = "conflict"
    """Said before with other content; the checkpoint is aborted."""
    TOO_LATE = "too_late"
    """The checkpoint is decided; ``decision`` says how."""
    FENCED = "fenced"
    """A newer generation owns the job, or this one was ended."""
    WRONG_BASE = "wrong_base"
    """Built on something else than the last completed checkpoint."""
    UNKNOWN_CHECKPOINT = "unknown_checkpoint"
    UNKNOWN_PARTICIPANT = "unknown_participant"
    INVALID = "invalid"
    """The content contradicts the participant's role or the checkpoint."""
    BUSY = "busy"
    """Another driver owns the job and is alive; ask again after ``retry_after``."""
    REFUSED = "refused"
    """Cannot be granted as asked; ``detail`` says what to change."""
    HALTED = "halted"
    """The job is halted until a person decides; ``detail`` says why."""


class Decision(StrEnum):
    """Made once per checkpoint, durable, never changed."""

    COMPLETED = "completed"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The reply to one event."""

    verdict: Verdict
    detail: str = ""
    decision: Decision | None = None
    """Of the checkpoint that the event names, where it is decided and still known."""
    retry_after: float = 0.0
    """Seconds, for BUSY."""
    grant: "Grant | None" = None
    """For an accepted OpenJob."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A generation, and all that its recovery needs."""

    store_id: str
    generation: Generation
    completed: CompletedCheckpoint | None
    """Restore its positions; commit its committables unless it is settled."""
    former_participants: tuple[Participant, ...]
    lease: float
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """Run this checkpoint from its base's positions, once; if it ran already, send the recorded answers again."""

    checkpoint: CheckpointId
    base: CheckpointId


@dataclass(frozen=True, kw_only=True)
class Complete:
    """Commit what was pre-committed for this checkpoint and report the outcomes."""

    checkpoint: CheckpointId


@dataclass(frozen=True, kw_only=True)
class Abort:
    """Abort what was pre-committed for this checkpoint; its records belong to the next one."""

    checkpoint: CheckpointId
    reason: AbortReason
    detail: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Leave after settling."""


@dataclass(frozen=True, kw_only=True)
class Fail:
    """Too many failed checkpoints: end this generation."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Halt:
    """A person must decide: end, and do not come back by yourself."""

    reason: str


Instruction: TypeAlias = Trigger | Complete | Abort | Stop | Fail | Halt


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The result of one step: first make ``facts`` durable in one store transaction, then answer and instruct.

    Instructions are not listed here: they are what :func:`coordinator.protocol.core.wanted` says of the new state.
    """

    answer: Answer
    facts: tuple[Fact, ...] = ()
