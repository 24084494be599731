"""What must be durable. All facts of one step go into one store transaction, in order, before anything is sent.

Facts are the only way to change the durable state of a job (:func:`onceward.protocol.evolve.evolve`).
Durations are seconds on the coordinator's monotonic clock; 0 when the start is unknown after a restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from onceward.protocol.phases import Phases
from onceward.protocol.requests import Ending, Request, Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus, Transition
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    Claim,
    Committable,
    CompletedCheckpoint,
    Generation,
    Participant,
    ParticipantName,
    RequestId,
    Settlement,
    Snapshot,
)


class AbortReason(StrEnum):
    """Why a checkpoint was aborted. The text is fixed; details are stored separately."""

    DECLINED = "a participant declined it"
    EXPIRED = "it was not acknowledged in time"
    CONFLICT = "a participant acknowledged it twice with different content"
    DRIVER_LOST = "the driver was lost"
    REPLACED = "a new generation began"
    CLOSED = "the job was closed"
    CANCELLED = "the job was cancelled"
    LOST_BASE = "a transaction of its base is lost and is replayed first"
    HALTED = "the job was halted"
    TOO_OLD = "its transactions might time out before they are committed"

    @property
    def counted(self) -> bool:
        """True when it counts as a failed checkpoint (Flink: tolerable failed checkpoints). Savepoints never count."""
        return self in (AbortReason.DECLINED, AbortReason.EXPIRED, AbortReason.CONFLICT)


@dataclass(frozen=True, kw_only=True)
class GenerationGranted:
    generation: Generation
    driver: str
    """A driver's token, or COORDINATOR."""
    holder: str = ""
    """The holder in the coordinator's claims; empty for a driver, which is the holder of its own."""
    participants: tuple[Participant, ...]
    settings: CheckpointSettings
    first_id: CheckpointId
    """Ids up to and including this one are used. Higher than the last one burnt only when a claim was adopted."""
    adopted: Claim | None = None
    """The claim that a person permitted to adopt, if the driver found that one."""


@dataclass(frozen=True, kw_only=True)
class GenerationFailed:
    """The generation must end because of its failures."""

    generation: Generation
    reason: str


@dataclass(frozen=True, kw_only=True)
class GenerationEnded:
    """The job no longer has a driver."""

    generation: Generation
    detail: str
    failed: bool = False
    """True when the generation ended by a failure, or its driver without a word."""


@dataclass(frozen=True, kw_only=True)
class StatusChanged:
    transition: Transition
    status: JobStatus
    """The status after the transition."""
    detail: str


@dataclass(frozen=True, kw_only=True)
class CheckpointTriggered:
    """Burns the id."""

    checkpoint: CheckpointId
    base: CheckpointId
    generation: Generation
    kind: CheckpointKind
    request: RequestId | None
    """The person's request that it serves; None when it is due by the interval."""
    waited_s: float
    """Time since it was due or requested."""


@dataclass(frozen=True, kw_only=True)
class CheckpointCompleted:
    """The commit point."""

    checkpoint: CheckpointId
    snapshots: Mapping[ParticipantName, Snapshot]
    settled: bool
    """True when there is nothing to commit."""
    ran_s: float
    """From the trigger to the last acknowledgement."""
    decided_s: float
    """From the last acknowledgement to the decision: waiting for the base to settle."""
    phases: Phases = field(default_factory=dict)
    """What of ``ran_s`` the driver has measured."""


@dataclass(frozen=True, kw_only=True)
class CheckpointAborted:
    checkpoint: CheckpointId
    generation: Generation
    """The generation that ran it."""
    reason: AbortReason
    detail: str
    counted: bool
    """True when the abort counts as a failure."""
    ran_s: float
    """From the trigger to the decision."""
    phases: Phases = field(default_factory=dict)
    """What of ``ran_s`` the driver has measured until then, if it could report it."""

    @property
    def why(self) -> str:
        """What to show of it where its checkpoint is not named."""
        return f"checkpoint {self.checkpoint} was aborted: {self.reason.value}: {self.detail}"


@dataclass(frozen=True, kw_only=True)
class CheckpointUnchanged:
    """Nothing is new since the base: the checkpoint leaves no row; its id stays burnt."""

    checkpoint: CheckpointId


@dataclass(frozen=True, kw_only=True)
class CheckpointSettled:
    checkpoint: CheckpointId
    took_s: float
    """Time since the decision."""


@dataclass(frozen=True, kw_only=True)
class LossRecorded:
    """Committables of the newest completed checkpoint are proved lost and will be replayed."""

    checkpoint: CheckpointId
    participant: ParticipantName
    settlements: tuple[Settlement, ...]
    """The lost slots, each with its proof."""


@dataclass(frozen=True, kw_only=True)
class LossSkipped:
    """Lost slots of the newest completed checkpoint are given up: their records never become visible.

    Each slot leaves a loss report that is listed until a person acknowledges it.
    """

    checkpoint: CheckpointId
    participant: ParticipantName
    settlements: tuple[Settlement, ...]
    """One per slot that is given up, with the proof or what was observed."""
    committables: tuple[Committable, ...]
    """Of the same slots: the input ranges and counts of their records."""
    reason: str
    """The policy, or the person who decided and why."""


@dataclass(frozen=True, kw_only=True)
class LossAcknowledged:
    """A person has acknowledged a loss."""

    checkpoint: CheckpointId
    participant: ParticipantName
    slots: frozenset[int]
    reason: str
    """Who acknowledges it and why."""


@dataclass(frozen=True, kw_only=True)
class JobForgotten:
    """A person deleted the job: its checkpoints, generations, losses and history are gone."""

    reason: str
    """Who deleted it and why."""


@dataclass(frozen=True, kw_only=True)
class CheckpointAmended:
    """Lost slots were written again: their new committables replace the lost ones."""

    checkpoint: CheckpointId
    participant: ParticipantName
    amendment: int
    """The checkpoint's amendment number, from 1."""
    slots: frozenset[int]
    committables: tuple[Committable, ...]
    """New committables of ``slots``. A slot without one had nothing to write."""


@dataclass(frozen=True, kw_only=True)
class JobHalted:
    """Committables are not proved committed, and a person must decide."""

    checkpoint: CheckpointId
    participant: ParticipantName
    settlements: tuple[Settlement, ...]
    """Empty when a replay was declined."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class SlotsResolved:
    """A person has decided about slots of the newest completed checkpoint."""

    checkpoint: CheckpointId
    participant: ParticipantName
    slots: frozenset[int]
    ruling: Ruling
    settled: frozenset[int]
    """Slots that need no commit any more: settled by the ruling, or proved committed before."""
    reason: str
    evidence: tuple[Settlement, ...]
    """What was known when the person decided."""
    forced: bool


@dataclass(frozen=True, kw_only=True)
class RequestQueued:
    request: Request


@dataclass(frozen=True, kw_only=True)
class RequestEnded:
    """The request completed or failed; it ends exactly once."""

    request: Request


@dataclass(frozen=True, kw_only=True)
class EndingRequested:
    ending: Ending


@dataclass(frozen=True, kw_only=True)
class RestoreRequested:
    """The next generation begins with the positions of ``source``."""

    source: CompletedCheckpoint
    reason: str
    """Who requested it and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class TakeoverPermitted:
    """The next driver may replace the live driver of ``generation``."""

    generation: Generation
    reason: str
    """Who permitted it and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class AdoptionPermitted:
    """A driver that finds ``claim`` may open the job."""

    claim: Claim
    reason: str
    """Who permitted it and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class OutputClosed:
    """A person has closed an output that the job no longer has."""

    participant: ParticipantName
    reason: str
    """Who closed it and why, for the audit."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRestored:
    """A new completed checkpoint with the positions of an older one, which is its base: the history forks."""

    checkpoint: CheckpointId
    source: CheckpointId
    former: CheckpointId
    """The newest completed checkpoint until now. Output after ``source`` up to ``former`` repeats."""
    generation: Generation
    snapshots: Mapping[ParticipantName, Snapshot]
    reason: str


@dataclass(frozen=True, kw_only=True)
class InputSkipped:
    """A new completed checkpoint with the positions of its base, moved past deleted input."""

    checkpoint: CheckpointId
    base: CheckpointId
    generation: Generation
    participant: ParticipantName
    snapshots: Mapping[ParticipantName, Snapshot]
    skipped: str
    """Description of the skipped input, for display."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class SavepointReleased:
    """A savepoint becomes an ordinary checkpoint: retention may remove it."""

    checkpoint: CheckpointId


Fact: TypeAlias = (
    GenerationGranted
    | GenerationFailed
    | GenerationEnded
    | StatusChanged
    | CheckpointTriggered
    | CheckpointCompleted
    | CheckpointAborted
    | CheckpointUnchanged
    | CheckpointSettled
    | LossRecorded
    | LossSkipped
    | LossAcknowledged
    | OutputClosed
    | CheckpointAmended
    | JobHalted
    | RequestQueued
    | RequestEnded
    | EndingRequested
    | RestoreRequested
    | TakeoverPermitted
    | AdoptionPermitted
    | CheckpointRestored
    | SavepointReleased
    | SlotsResolved
    | InputSkipped
    | JobForgotten
)
