"""Answers to calls, and instructions to the driver."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from onceward.protocol.facts import AbortReason, Fact
from onceward.protocol.requests import Request
from onceward.protocol.values import (
    NO_GENERATION,
    CheckpointId,
    CompletedCheckpoint,
    Generation,
    Participant,
    ParticipantName,
)


class Verdict(StrEnum):
    """The answer to a mutating call. Every verdict except ACCEPTED and CONFLICT leaves the state unchanged."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """Received before with the same content; counted once."""
    CONFLICT = "conflict"
    """Received before with different content; the checkpoint is aborted."""
    TOO_LATE = "too_late"
    """The checkpoint is already decided; ``decision`` says how."""
    EXPIRED = "expired"
    """The checkpoint was aborted because it was not acknowledged in time."""
    FENCED = "fenced"
    """A newer generation owns the job, or this one was ended. ``may_return`` says whether the driver may return."""
    WRONG_BASE = "wrong_base"
    """Built on something other than the last completed checkpoint."""
    UNKNOWN_CHECKPOINT = "unknown_checkpoint"
    UNKNOWN_PARTICIPANT = "unknown_participant"
    INVALID = "invalid"
    """The content contradicts the participant's role or the checkpoint."""
    BUSY = "busy"
    """Another driver owns the job and is alive; retry after ``retry_after_s``."""
    REFUSED = "refused"
    """Cannot be granted in this form; ``detail`` says what to change."""
    HALTED = "halted"
    """The job is halted until a person decides; ``detail`` says why."""
    QUEUE_FULL = "queue_full"
    """Too many requests are queued for this job; retry when some have ended."""


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
    """The decision on the checkpoint that the event names, if it is decided and still known."""
    retry_after_s: float = 0.0
    """For BUSY."""
    generation: Generation = NO_GENERATION
    """For BUSY: the generation whose driver is alive."""
    may_return: bool = False
    """For FENCED: True when only the coordinator has held the job since. The driver may open the next generation."""
    grant: "Grant | None" = None
    """For an accepted OpenJob."""
    request: Request | None = None
    """For a RequestCheckpoint that is known: the request and its state so far."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A generation, and everything that its recovery needs."""

    store_id: str
    generation: Generation
    completed: CompletedCheckpoint | None
    """Restore its positions. Commit its committables unless it is settled."""
    lost: Mapping[ParticipantName, frozenset[int]]
    """Slots of ``completed`` that are proved lost. Do not commit them: a :class:`Replay` follows."""
    new_run: bool
    """True when the job finished at ``completed``: this is a new run, not the continuation of an interrupted one."""
    former_participants: tuple[Participant, ...]
    lease_s: float


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """Run this checkpoint once, from the positions of its base. If it ran already, repeat the recorded answers."""

    checkpoint: CheckpointId
    base: CheckpointId
    at_once: bool = False
    """True when a person waits for this checkpoint or the next one: do not wait for data."""


@dataclass(frozen=True, kw_only=True)
class Complete:
    """Commit what was pre-committed for this checkpoint, and report the outcomes."""

    checkpoint: CheckpointId
    amendment: int = 0
    """Which committables: 0 for those acknowledged, otherwise those of the last amendment."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Write these lost slots again from the same ranges and report it with Amend, or decline the checkpoint.

    This instruction follows the abort of every later checkpoint. That abort must be confirmed before the first record
    is written.
    """

    checkpoint: CheckpointId
    participant: ParticipantName
    slots: frozenset[int]
    amendment: int
    """The checkpoint's current amendment."""


@dataclass(frozen=True, kw_only=True)
class Abort:
    """Abort what was pre-committed for this checkpoint; its records belong to the next one.

    Also applies to every earlier checkpoint after ``base``: of several aborts in a row only the last is sent.
    """

    checkpoint: CheckpointId
    base: CheckpointId
    """The last completed checkpoint."""
    reason: AbortReason
    detail: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Finish the running checkpoint, settle and leave."""


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Abort the running checkpoint, settle what is decided, and leave."""


@dataclass(frozen=True, kw_only=True)
class Fail:
    """Too many checkpoints failed: end this generation."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Halt:
    """A person must decide: leave, and do not return automatically."""

    reason: str


Instruction: TypeAlias = Trigger | Complete | Abort | Replay | Stop | Cancel | Fail | Halt


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The result of one step. Make ``facts`` durable in one store transaction first, then answer and instruct.

    Instructions are not listed here: :func:`.core.wanted` derives them from the new state.
    """

    answer: Answer
    facts: tuple[Fact, ...] = ()
    note: "Note | None" = None
    """For the history: a call that changed nothing. It need not be durable before the answer is sent."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """A call that was not accepted, for the history. The protocol never reads it."""

    what: str
    """The event's name, for example ``Acknowledge``."""
    verdict: Verdict
    generation: Generation
    """The generation that the caller named; 0 if none."""
    checkpoint: CheckpointId
    """0 if the call names none."""
    participant: str
    detail: str
