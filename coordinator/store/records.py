"""What listings show of jobs, checkpoints, generations and their history. Times are wall clock, for people."""

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
    """What memory does not have of a job."""

    completed: CheckpointId | None = None
    """The newest completed checkpoint, also one that cannot be read."""
    completed_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """Durations are seconds; None where that part is not over, or its beginning was forgotten by a restart."""

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
    """From when it was due or asked for to its trigger."""
    ran: float | None
    """To the last acknowledgement, or to the abort."""
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
    """An outcome of a checkpoint that is not committed: kept as evidence."""

    participant: ParticipantName
    settlement: Settlement
    recorded_at: datetime


@dataclass(frozen=True, kw_only=True)
class LossRecord:
    """Records of one slot that were given up: they never become visible."""

    job: JobName
    checkpoint: CheckpointId
    participant: ParticipantName
    settlement: Settlement
    """Slot, outcome, and the proof or what was seen."""
    document: Document
    """The lost committable: which input its records came from, and how many they were."""
    reason: str
    """The policy, or who decided so, and why."""
    recorded_at: datetime
    acknowledged_at: datetime | None
    acknowledgement: str
    """Who acknowledged it, and why; empty while nobody has."""


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
    """One thing that happened to a job, or a call that was not accepted."""

    at: datetime
    event: str
    """The name of a fact, for example ``CheckpointCompleted``, or of a refused event, for example ``Acknowledge``."""
    verdict: Verdict | None
    """Of a refused call; None for a fact."""
    generation: Generation
    checkpoint: CheckpointId
    """0 where it is about none."""
    participant: str
    detail: str
    count: int
    """How often a refused call came within about a second."""
