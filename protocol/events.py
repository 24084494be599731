"""The events of a job. Every event carries the time: ``now``, a monotonic clock in seconds."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from onceward.protocol.phases import Phases
from onceward.protocol.requests import Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
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
    """A bounded source has reached its end, and everything is settled."""
    STOPPED = "stopped"
    """A person or a signal stopped it."""
    CANCELLED = "cancelled"
    """A person cancelled the job, and everything decided is settled."""
    FAILED = "failed"
    """The driver failed and does not restart by itself."""
    RESTARTING = "restarting"
    """The generation failed; the driver returns with the next one."""
    HALTED = "halted"
    """The driver cannot continue without a person, for example because input is gone."""


@dataclass(frozen=True, kw_only=True)
class OpenJob:
    """A driver requests the next generation."""

    now: float
    driver: str
    """The fingerprint of the driver's secret for this attempt to open; identifies a repeated call."""
    participants: tuple[Participant, ...]
    settings: CheckpointSettings
    claim: Claim | None
    """The newest claim found on the systems of the job's sinks."""
    more_claims: tuple[Claim, ...] = ()
    """The others, without repetition."""
    instead_of: Generation = NO_GENERATION
    """Do not wait for the driver of this generation: the caller knows that it is gone. A call that arrives late names a
    generation that has already ended, and so replaces no newer driver."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        return () if self.claim is None else (self.claim, *self.more_claims)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The driver's instruction stream is connected."""

    now: float
    generation: Generation
    driver: str | None = None
    """See :data:`Call`."""


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
    """The newest checkpoint whose abort the driver's main loop has carried out."""
    driver: str | None = None
    """See :data:`Call`."""


@dataclass(frozen=True, kw_only=True)
class Acknowledge:
    """A participant has done its part of a checkpoint."""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    base: CheckpointId
    snapshot: Snapshot
    good_for_s: float | None = None
    """For how long the pre-committed transactions can still be committed; None means no limit."""
    driver: str | None = None
    """See :data:`Call`."""
    phases: Phases = field(default_factory=dict)
    """Of the whole checkpoint, for listings."""


@dataclass(frozen=True, kw_only=True)
class Decline:
    """A participant cannot do its part. Its transactions are aborted, now or later."""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    reason: str
    driver: str | None = None
    """See :data:`Call`."""
    phases: Phases = field(default_factory=dict)
    """Those that were over, for listings."""


@dataclass(frozen=True, kw_only=True)
class Settle:
    """The outcomes of a sink's committables of a completed checkpoint."""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    settlements: tuple[Settlement, ...]
    amendment: int = 0
    """Which committables the outcomes belong to: the amendment from the Complete instruction."""
    driver: str | None = None
    """See :data:`Call`."""


@dataclass(frozen=True, kw_only=True)
class Amend:
    """A sink has written lost slots of a completed checkpoint again. (To decline the replay it sends
    :class:`Decline`.)"""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    amendment: int
    """The amendment from the Replay instruction."""
    slots: frozenset[int]
    committables: tuple[Committable, ...]
    """New committables of ``slots``. A slot without one had nothing to write."""
    driver: str | None = None
    """See :data:`Call`."""


@dataclass(frozen=True, kw_only=True)
class CloseJob:
    """The driver leaves. An undecided checkpoint is aborted."""

    now: float
    generation: Generation
    reason: CloseReason
    detail: str = ""
    back_within_s: float = 0.0
    """For RESTARTING: within which time the driver returns."""
    completed: CheckpointId = NO_CHECKPOINT
    """The newest completed checkpoint that the driver knows."""
    driver: str | None = None
    """See :data:`Call`."""


@dataclass(frozen=True, kw_only=True)
class RequestCheckpoint:
    """A person requests a checkpoint or a savepoint now; with ``stop``, the job ends after it."""

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
    """A person asks the job to end at once. The running checkpoint is aborted, what is decided is settled."""

    now: float


@dataclass(frozen=True, kw_only=True)
class RequestRestore:
    """A person orders the next generation to begin with the positions of an older checkpoint."""

    now: float
    source: CompletedCheckpoint
    reason: str


@dataclass(frozen=True, kw_only=True)
class PermitTakeover:
    """A person permits the next driver to replace a live one."""

    now: float
    generation: Generation
    """The generation of the live driver, as the person saw it."""
    reason: str
    """Who permits it and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class PermitAdoption:
    """A person permits the job to continue from this store although ``claim`` rules it out."""

    now: float
    claim: Claim
    """The claim as the refusal named it; its holder does not count."""
    reason: str
    """Who permits it and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class CloseOutput:
    """A person has removed what an output that the job no longer has kept outside the store."""

    now: float
    participant: ParticipantName
    reason: str
    """Who closes it and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class ReleaseSavepoint:
    """A person no longer needs a savepoint."""

    now: float
    checkpoint: CheckpointId


@dataclass(frozen=True, kw_only=True)
class ForgetJob:
    """A person deletes the job."""

    now: float
    reason: str
    """Who deletes it and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class AcknowledgeLoss:
    """A person acknowledges that records were given up."""

    now: float
    checkpoint: CheckpointId
    participant: ParticipantName
    slots: frozenset[int]
    """Empty means all slots of that checkpoint and participant."""
    reason: str
    """Who acknowledges it and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class TakeOrphan:
    """The coordinator requests the next generation of a job without a driver, to settle its remaining transactions."""

    now: float
    holder: str
    """Random: the holder of its claims, if the generation is granted now."""
    claims: tuple[Claim, ...] = ()
    """The claims found on the job's clusters."""


@dataclass(frozen=True, kw_only=True)
class Resolve:
    """A person decides about slots of a completed checkpoint that are lost or in doubt."""

    now: float
    checkpoint: CheckpointId
    """The checkpoint that the person inspected."""
    participant: ParticipantName
    slots: frozenset[int]
    ruling: Ruling
    reason: str
    """Who decides and why, for the audit."""
    evidence: tuple[Settlement, ...] = ()
    """What was known of ``slots`` when the person decided. Has no entry for a slot whose outcome could not be
    checked."""
    forced: bool = False
    """True to override contradicting evidence, or to decide about slots that are not unresolved."""


@dataclass(frozen=True, kw_only=True)
class SkipInput:
    """A person moves positions past deleted input."""

    now: float
    base: CheckpointId
    """The checkpoint whose positions were moved."""
    participant: ParticipantName
    positions: Document
    """Replaces the base's positions of ``participant``."""
    skipped: str
    """Description of the skipped input, for display."""
    reason: str
    """Who skips it and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Time passed."""

    now: float


Call: TypeAlias = Watch | Renew | Acknowledge | Decline | Settle | Amend | CloseJob
"""What the driver of a generation sends. ``driver`` is the fingerprint of the secret that the call carried; None when
the coordinator itself reports. The number of a generation is easy to guess, the secret is not."""

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
    | PermitTakeover
    | PermitAdoption
    | ReleaseSavepoint
    | AcknowledgeLoss
    | CloseOutput
    | ForgetJob
    | TakeOrphan
    | Resolve
    | SkipInput
    | Tick
)
