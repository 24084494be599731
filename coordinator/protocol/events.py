"""What can happen to a job. Time comes in every event: ``now`` is a monotonic clock in seconds."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from onceward.coordinator.protocol.requests import Ruling
from onceward.coordinator.protocol.settings import CheckpointSettings
from onceward.coordinator.protocol.values import (
    NO_CHECKPOINT,
    NO_GENERATION,
    CheckpointId,
    CheckpointKind,
    Claim,
    Committable,
    CompletedCheckpoint,
    Document,
    Generation,
    Participant,
    ParticipantName,
    RequestId,
    Settlement,
    Snapshot,
)


class CloseReason(StrEnum):
    """Why a driver leaves."""

    FINISHED = "finished"
    """A bounded source has reached its end and everything is settled."""
    STOPPED = "stopped"
    """A person or a signal asked for it."""
    CANCELLED = "cancelled"
    """A person asked for it, and everything decided is settled."""
    FAILED = "failed"
    """The driver failed, and does not come back by itself."""
    RESTARTING = "restarting"
    """The generation failed; the driver comes back as the next one."""
    HALTED = "halted"
    """The driver cannot go on without a person, for example because input is gone."""


@dataclass(frozen=True, kw_only=True)
class OpenJob:
    """A driver asks for the next generation."""

    now: float
    driver: str
    """Random token of this attempt to open: makes a repeated call recognisable."""
    participants: tuple[Participant, ...]
    settings: CheckpointSettings
    claim: Claim | None
    """What the sink's cluster says about who owns the job."""
    instead_of: Generation = NO_GENERATION
    """Replace the driver of this generation even if it lives. A call that arrives late names one that is over."""
    adopt: bool = False
    """Go on although the claim names another store or is ahead of this one."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The driver's instruction stream is there."""

    now: float
    generation: Generation


@dataclass(frozen=True, kw_only=True)
class StreamLost:
    """The driver's instruction stream broke."""

    now: float
    generation: Generation


@dataclass(frozen=True, kw_only=True)
class Renew:
    """The driver is alive."""

    now: float
    generation: Generation
    aborted: CheckpointId = NO_CHECKPOINT
    """The newest checkpoint whose abort its main loop has carried out."""


@dataclass(frozen=True, kw_only=True)
class Acknowledge:
    """A participant has done its part of a checkpoint."""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    base: CheckpointId
    snapshot: Snapshot
    good_for: float | None = None
    """Seconds for which what was pre-committed can still be committed; None: without limit."""


@dataclass(frozen=True, kw_only=True)
class Decline:
    """A participant cannot do its part; its transactions are or will be aborted."""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    reason: str


@dataclass(frozen=True, kw_only=True)
class Settle:
    """What became of a sink's committables of a completed checkpoint."""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    settlements: tuple[Settlement, ...]
    amendment: int = 0
    """Which committables were asked: the checkpoint's amendment in the instruction to complete it."""


@dataclass(frozen=True, kw_only=True)
class Amend:
    """A sink has written lost slots of a completed checkpoint again. (To decline it is a :class:`Decline`.)"""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    amendment: int
    """The checkpoint's amendment in the instruction to replay."""
    slots: frozenset[int]
    committables: tuple[Committable, ...]
    """Of ``slots``; a slot that has none had nothing to write."""


@dataclass(frozen=True, kw_only=True)
class CloseJob:
    """The driver leaves; an undecided checkpoint is aborted."""

    now: float
    generation: Generation
    reason: CloseReason
    detail: str = ""
    back_within: float = 0.0
    """For RESTARTING: seconds within which the driver comes back."""


@dataclass(frozen=True, kw_only=True)
class RequestCheckpoint:
    """A person asks for a checkpoint or a savepoint now; with ``stop``, for the job's end after it."""

    now: float
    request: RequestId
    kind: CheckpointKind
    name: str = ""
    stop: bool = False


@dataclass(frozen=True, kw_only=True)
class StopJob:
    """A person asks the job to finish the running checkpoint, settle it and stop."""

    now: float


@dataclass(frozen=True, kw_only=True)
class CancelJob:
    """A person asks the job to end at once: the running checkpoint is aborted, what is decided is settled."""

    now: float


@dataclass(frozen=True, kw_only=True)
class RequestRestore:
    """A person wants the next generation to begin with the positions of an older checkpoint."""

    now: float
    source: CompletedCheckpoint
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReleaseSavepoint:
    """A person needs a savepoint no longer."""

    now: float
    checkpoint: CheckpointId


@dataclass(frozen=True, kw_only=True)
class ForgetJob:
    """A person wants the job deleted."""

    now: float
    reason: str
    """Who, and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class AcknowledgeLoss:
    """A person knows that records were given up."""

    now: float
    checkpoint: CheckpointId
    participant: ParticipantName
    slots: frozenset[int]
    """Empty for all of that checkpoint and participant."""
    reason: str
    """Who acknowledges it, and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class TakeOrphan:
    """The coordinator wants the next generation of a job that nobody drives, to settle what is left of it."""

    now: float
    claims: tuple[Claim, ...] = ()
    """What its clusters say about who owns the job."""


@dataclass(frozen=True, kw_only=True)
class Resolve:
    """A person decides about slots of a completed checkpoint that are lost or in doubt."""

    now: float
    checkpoint: CheckpointId
    """The one that the person looked at."""
    participant: ParticipantName
    slots: frozenset[int]
    ruling: Ruling
    reason: str
    """Who decides, and why, for the audit."""
    evidence: tuple[Settlement, ...] = ()
    """What could be seen of ``slots`` when the person decided; none of a slot about which nobody could be asked."""
    forced: bool = False
    """Although it contradicts the evidence, or goes beyond what is unresolved."""


@dataclass(frozen=True, kw_only=True)
class SkipInput:
    """A person moves positions past input that is gone."""

    now: float
    base: CheckpointId
    """The checkpoint whose positions were moved."""
    participant: ParticipantName
    positions: Document
    """Instead of the base's."""
    skipped: str
    """What is left out, for people."""
    reason: str
    """Who wants it, and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Time passed."""

    now: float


Event: TypeAlias = (
    OpenJob
    | Watch
    | StreamLost
    | Renew
    | Acknowledge
    | Decline
    | Settle
    | Amend
    | CloseJob
    | RequestCheckpoint
    | StopJob
    | CancelJob
    | RequestRestore
    | ReleaseSavepoint
    | AcknowledgeLoss
    | ForgetJob
    | TakeOrphan
    | Resolve
    | SkipInput
    | Tick
)
