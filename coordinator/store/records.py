"""Rows of the listings: jobs, checkpoints, generations and their history. Times are wall clock, for display."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from onceward.coordinator.protocol.answers import Verdict
from onceward.coordinator.protocol.facts import AbortReason
from onceward.coordinator.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    Document,
    Generation,
    JobName,
    ParticipantName,
    Settlement,
    Snapshot,
)

__all__ = [
    "CheckpointDetails",
    "CheckpointRecord",
    "CheckpointState",
    "GenerationRecord",
    "HistoryRecord",
    "JobRecord",
    "LossRecord",
    "RecordedSettlement",
]


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The part of a job's listing that is not kept in memory."""

    completed: CheckpointId | None = None
    """The newest completed checkpoint, even if it cannot be read."""
    completed_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """One checkpoint. Durations are seconds; None if that phase is not over, or its start is unknown after a
    restart."""

    id: CheckpointId
    base: CheckpointId
    generation: Generation
    kind: CheckpointKind
    name: str
    state: CheckpointState
    abort_reason: AbortReason | None
    detail: str
    triggered_at: datetime
    decided_at: datetime | None
    settled_at: datetime | None
    waited: float
    """From when it was due or requested to its trigger."""
    ran: float | None
    """From the trigger to the last acknowledgement, or to the abort."""
    decided: float | None
    """From the last acknowledgement to the decision."""
    settled: float | None
    """From the decision to the proof of the last commit."""
    records_read: int
    records_written: int
    bytes_read: int
    bytes_written: int
    committables: int
    amendment: int


@dataclass(frozen=True, kw_only=True)
class RecordedSettlement:
    """An outcome of a checkpoint other than committed, kept as evidence."""

    participant: ParticipantName
    settlement: Settlement
    recorded_at: datetime


@dataclass(frozen=True, kw_only=True)
class LossRecord:
    """A loss report: the records of one slot that were given up and never become visible."""

    job: JobName
    checkpoint: CheckpointId
    participant: ParticipantName
    settlement: Settlement
    """Slot and outcome, with the proof or what was observed."""
    document: Document
    """The lost committable: the input ranges and counts of its records."""
    reason: str
    """The policy, or the person who decided and why."""
    recorded_at: datetime
    acknowledged_at: datetime | None
    acknowledgement: str
    """Who acknowledged it and why; empty until it is acknowledged."""


@dataclass(frozen=True, kw_only=True)
class CheckpointDetails:
    record: CheckpointRecord
    snapshots: Mapping[ParticipantName, Snapshot]
    settlements: tuple[RecordedSettlement, ...]


@dataclass(frozen=True, kw_only=True)
class GenerationRecord:
    generation: Generation
    driver: str
    granted_at: datetime
    ended_at: datetime | None
    detail: str
    """How it ended."""


@dataclass(frozen=True, kw_only=True)
class HistoryRecord:
    """One event in the history of a job, or a call that was not accepted."""

    at: datetime
    event: str
    """The name of a fact, for example ``CheckpointCompleted``, or of a refused event, for example ``Acknowledge``."""
    verdict: Verdict | None
    """The verdict on a rejected call; None for a fact."""
    generation: Generation
    checkpoint: CheckpointId
    """0 if it concerns no checkpoint."""
    participant: str
    detail: str
    count: int
    """How often a rejected call came within about a second."""
