"""What must be durable. All facts of one step go into one store transaction, in order, before anything is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from coordinator.protocol.settings import CheckpointSettings
from coordinator.protocol.values import CheckpointId, Generation, Participant, ParticipantName, Settlement, Snapshot


class JobStatus(StrEnum):
    """A job's state between and during its runs."""

    CREATED = "created"
    RUNNING = "running"
    SUSPENDED = "suspended"
    """No driver; the next one continues."""
    FINISHED = "finished"
    STOPPED = "stopped"
    HALTED = "halted"
    """Needs a person."""


class AbortReason(StrEnum):
    """Why a checkpoint was aborted. The text is fixed; details are kept beside it."""

    DECLINED = "a participant declined it"
    EXPIRED = "it was not acknowledged in time"
    CONFLICT = "a participant acknowledged it twice with different content"
    DRIVER_LOST = "the driver was lost"
    REPLACED = "a new generation began"
    CLOSED = "the job was closed"
    HALTED = "the job was halted"

    @property
    def counted(self) -> bool:
        """True when it counts as a failed checkpoint (Flink: tolerable failed checkpoints)."""
        return self in (AbortReason.DECLINED, AbortReason.EXPIRED, AbortReason.CONFLICT)


@dataclass(frozen=True, kw_only=True)
class GenerationGranted:
    generation: Generation
    driver: str
    participants: tuple[Participant, ...]
    settings: CheckpointSettings
    first_id: CheckpointId
    """Ids up to here are taken; higher than the last one burnt only when a claim was adopted."""


@dataclass(frozen=True, kw_only=True)
class CheckpointTriggered:
    """Burns the id."""

    checkpoint: CheckpointId
    base: CheckpointId
    generation: Generation


@dataclass(frozen=True, kw_only=True)
class CheckpointCompleted:
    """The commit point."""

    checkpoint: CheckpointId
    snapshots: Mapping[ParticipantName, Snapshot]
    settled: bool
    """True when there is nothing to commit."""
    keep: int
    """Completed checkpoints to retain, this one included."""


@dataclass(frozen=True, kw_only=True)
class CheckpointAborted:
    checkpoint: CheckpointId
    reason: AbortReason
    detail: str


@dataclass(frozen=True, kw_only=True)
class CheckpointUnchanged:
    """Nothing new since the base: the checkpoint leaves no row behind; its id stays burnt."""

    checkpoint: CheckpointId


@dataclass(frozen=True, kw_only=True)
class CheckpointSettled:
    checkpoint: CheckpointId


@dataclass(frozen=True, kw_only=True)
class JobHalted:
    """Committables that are not proved committed: a person must decide."""

    checkpoint: CheckpointId
    participant: ParticipantName
    settlements: tuple[Settlement, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class StopRequested:
    pass


@dataclass(frozen=True, kw_only=True)
class JobClosed:
    generation: Generation
    status: JobStatus
    detail: str


Fact: TypeAlias = (
    GenerationGranted
    | CheckpointTriggered
    | CheckpointCompleted
    | CheckpointAborted
    | CheckpointUnchanged
    | CheckpointSettled
    | JobHalted
    | StopRequested
    | JobClosed
)
