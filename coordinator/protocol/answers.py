"""What a call is told, and what a driver is instructed to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from onceward.coordinator.protocol.facts import AbortReason, Fact
from onceward.coordinator.protocol.requests import Request
from onceward.coordinator.protocol.values import (
    NO_GENERATION,
    CheckpointId,
    CompletedCheckpoint,
    Generation,
    Participant,
    ParticipantName,
)


class Verdict(StrEnum):
    """The answer to a mutating call. Everything but ACCEPTED and CONFLICT left the state as it was."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """Said before with the same content; counted once."""
    CONFLICT = "conflict"
    """Said before with other content; the checkpoint is aborted."""
    TOO_LATE = "too_late"
    """The checkpoint is decided; ``decision`` says how."""
    EXPIRED = "expired"
    """The checkpoint was aborted because it was not acknowledged in time."""
    FENCED = "fenced"
    """A newer generation owns the job, or this one was ended; ``may_return`` says whether the driver may come back."""
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
    QUEUE_FULL = "queue_full"
    """Too many requests of people wait for this job; ask again when some have ended."""


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
    generation: Generation = NO_GENERATION
    """For BUSY: the one whose driver is alive."""
    may_return: bool = False
    """For FENCED: nobody but the coordinator had the job since; its driver may open the next generation."""
    grant: "Grant | None" = None
    """For an accepted OpenJob."""
    request: Request | None = None
    """For a RequestCheckpoint that is known: what became of it so far."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A generation, and all that its recovery needs."""

    store_id: str
    generation: Generation
    completed: CompletedCheckpoint | None
    """Restore its positions; commit its committables unless it is settled."""
    lost: Mapping[ParticipantName, frozenset[int]]
    """Slots of ``completed`` that are proved lost: not to be committed, a :class:`Replay` will be wanted."""
    new_run: bool
    """The job finished at ``completed``: this is no run that broke off and goes on."""
    former_participants: tuple[Participant, ...]
    lease: float
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """Run this checkpoint from its base's positions, once; if it ran already, send the recorded answers again."""

    checkpoint: CheckpointId
    base: CheckpointId
    at_once: bool = False
    """A person waits for it or for the next one: do not wait for data."""


@dataclass(frozen=True, kw_only=True)
class Complete:
    """Commit what was pre-committed for this checkpoint and report the outcomes."""

    checkpoint: CheckpointId
    amendment: int = 0
    """Which committables: those of the acknowledgement, or the last that replaced them."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Write these lost slots again from the same ranges and say so with Amend, or decline the checkpoint.

    Comes after the abort of every later checkpoint, which must be confirmed before the first record is written.
    """

    checkpoint: CheckpointId
    participant: ParticipantName
    slots: frozenset[int]
    amendment: int
    """The checkpoint's amendment now."""


@dataclass(frozen=True, kw_only=True)
class Abort:
    """Abort what was pre-committed for this checkpoint; its records belong to the next one.

    So does every earlier one after ``base``: of several aborts in a row only the last is told.
    """

    checkpoint: CheckpointId
    base: CheckpointId
    """The last completed checkpoint."""
    reason: AbortReason
    detail: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Finish what runs and leave after settling."""


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Stop what runs and leave after settling what is decided."""


@dataclass(frozen=True, kw_only=True)
class Fail:
    """Too many failed checkpoints: end this generation."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Halt:
    """A person must decide: end, and do not come back by yourself."""

    reason: str


Instruction: TypeAlias = Trigger | Complete | Abort | Replay | Stop | Cancel | Fail | Halt


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The result of one step: first make ``facts`` durable in one store transaction, then answer and instruct.

    Instructions are not listed here: they are what :func:`.core.wanted` says of the new state.
    """

    answer: Answer
    facts: tuple[Fact, ...] = ()
    note: "Note | None" = None
    """For the history: a call that changed nothing. It need not be durable before the answer."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """A call that was not accepted, for people. Never read by the protocol."""

    what: str
    """The event's name, for example ``Acknowledge``."""
    verdict: Verdict
    generation: Generation
    """The one that the caller named; 0 where none is named."""
    checkpoint: CheckpointId
    """0 where none is named."""
    participant: str
    detail: str
