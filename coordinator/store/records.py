"""What listings show of jobs and checkpoints. Times are wall clock, for people."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from coordinator.protocol.facts import AbortReason, JobStatus
from coordinator.protocol.values import CheckpointId, Generation, JobName, ParticipantName, Settlement, Snapshot

__all__ = ["CheckpointDetails", "CheckpointRecord", "CheckpointState", "JobRecord", "RecordedSettlement"]


class CheckpointState(StrEnum):
    """A checkpoint as stored."""

    TRIGGERED = "triggered"
    COMPLETED = "completed"
    SETTLED = "settled"
    """Completed, and every commit is proved."""
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    job: JobName
    status: JobStatus
    status_detail: str
    generation: Generation
    last_id: CheckpointId
    completed: CheckpointId | None
    completed_at: datetime | None
    settled: bool
    stop_requested: bool


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    id: CheckpointId
    base: CheckpointId
    generation: Generation
    state: CheckpointState
    abort_reason: AbortReason | None
    detail: str
    triggered_at: datetime
    decided_at: datetime | None
    settled_at: datetime | None
    records_read: int
    records_written: int
    committables: int


@dataclass(frozen=True, kw_only=True)
class RecordedSettlement:
    """An outcome of a checkpoint that halted its job: kept as evidence."""

    participant: ParticipantName
    settlement: Settlement
    recorded_at: datetime


@dataclass(frozen=True, kw_only=True)
class CheckpointDetails:
    record: CheckpointRecord
    snapshots: Mapping[ParticipantName, Snapshot]
    settlements: tuple[RecordedSettlement, ...]
