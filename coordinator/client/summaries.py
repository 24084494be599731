"""What a coordinator reports to operators, as plain values. A missing id is 0, a missing time or duration None.

Times are wall clock. Durations are seconds on the coordinator's clock; 0 when a restart has lost the start time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from onceward.coordinator.protocol.answers import Answer, Verdict
from onceward.coordinator.protocol.facts import AbortReason
from onceward.coordinator.protocol.requests import Ending, Request
from onceward.coordinator.protocol.settings import CheckpointSettings
from onceward.coordinator.protocol.status import JobStatus
from onceward.coordinator.protocol.values import (
    CheckpointKind,
    CheckpointState,
    Document,
    Outcome,
    Participant,
    ParticipantName,
    Settlement,
    Snapshot,
)
from onceward.coordinator.v1 import operators_pb2 as pb
from onceward.coordinator.v1.participants_pb2 import TransactionAge
from onceward.coordinator.wire.documents import document_from_wire
from onceward.coordinator.wire.enums import (
    ABORT_REASON,
    CHECKPOINT_KIND,
    CHECKPOINT_STATE,
    ENDING,
    JOB_STATUS,
    OUTCOME,
    VERDICT,
)
from onceward.coordinator.wire.malformed import as_participant
from onceward.coordinator.wire.people import request_from_wire
from onceward.coordinator.wire.values import (
    participant_from_wire,
    settings_from_wire,
    settlement_from_wire,
    snapshot_from_wire,
)

__all__ = [
    "CheckpointDescription",
    "CheckpointState",
    "CheckpointSummary",
    "GenerationSummary",
    "HistoryEntry",
    "InputSkip",
    "JobDescription",
    "JobSummary",
    "LossReport",
    "OldestTransaction",
    "Wait",
]


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Something that must happen before a job continues."""

    what: str
    since: datetime | None
    """When the wait began; after a restart of the coordinator, the time of the restart."""


@dataclass(frozen=True, kw_only=True)
class OldestTransaction:
    """The pre-committed, unsettled transaction of a job that has been open longest."""

    transaction: str
    open_for: float
    """Seconds."""
    timeout: float
    """Seconds after which the brokers abort it."""


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    job: str
    status: JobStatus
    status_detail: str
    generation: int
    last_checkpoint: int
    last_completed: int
    last_completed_at: datetime | None
    settled: bool
    """True when every commit of the newest completed checkpoint is proved."""
    ending: Ending | None
    """What an operator requested, until it is reached."""
    failures: int
    """Consecutive failed checkpoints that count, in this generation."""
    open_requests: tuple[Request, ...]
    """Oldest first."""
    unreadable: str
    """Why the newest completed checkpoint cannot be read; empty when it can be read."""
    restore_from: int
    """The checkpoint from whose positions the next generation starts, by an operator's order."""
    restore_reason: str
    orphan: str
    """What the coordinator does or waits for in place of a driver; empty for nothing."""
    unacknowledged_losses: int
    """Slots whose records were given up and that no person has acknowledged."""
    waits: tuple[Wait, ...]
    """Also filled in normal operation; the wait that ends first comes first."""
    oldest_transaction: OldestTransaction | None
    """None also when unknown: for a job without a driver, if the coordinator has no clusters."""

    @classmethod
    def from_wire(cls, message: pb.JobSummary) -> "JobSummary":
        return cls(
            job=message.job,
            status=JOB_STATUS.from_wire(message.status),
            status_detail=message.status_detail,
            generation=message.generation,
            last_checkpoint=message.last_checkpoint,
            last_completed=message.last_completed,
            last_completed_at=_time(message.last_completed_at_ms),
            settled=message.settled,
            ending=ENDING.from_wire(message.ending) if message.HasField("ending") else None,
            failures=message.failures,
            open_requests=tuple(request_from_wire(request) for request in message.open_requests),
            unreadable=message.unreadable,
            restore_from=message.restore_from,
            restore_reason=message.restore_reason,
            unacknowledged_losses=message.unacknowledged_losses,
            orphan=message.orphan,
            waits=tuple(Wait(what=wait.what, since=_time(wait.since_ms)) for wait in message.waits),
            oldest_transaction=_oldest(message.oldest_transaction) if message.HasField("oldest_transaction") else None,
        )


@dataclass(frozen=True, kw_only=True)
class JobDescription:
    summary: JobSummary
    participants: tuple[Participant, ...]
    """Of the latest generation."""
    settings: CheckpointSettings
    """Of the latest generation."""
    connected: bool
    """True while the driver has its instruction stream."""
    unresolved: Mapping[ParticipantName, Mapping[int, Outcome]]
    """Slots of the newest completed checkpoint about which a person must decide: lost or in doubt."""
    driven: bool
    """A driver owns the job, or is expected back: requests that need a job without a driver are refused."""

    @classmethod
    def from_wire(cls, message: pb.DescribeJobResponse) -> "JobDescription":
        return cls(
            summary=JobSummary.from_wire(message.summary),
            participants=tuple(participant_from_wire(one) for one in message.participants),
            settings=settings_from_wire(message.settings),
            connected=message.connected,
            unresolved=_unresolved(message.unresolved),
            driven=message.driven,
        )


def _unresolved(slots: Iterable[pb.UnresolvedSlot]) -> dict[ParticipantName, dict[int, Outcome]]:
    found: dict[ParticipantName, dict[int, Outcome]] = {}
    for one in slots:
        found.setdefault(as_participant(one.participant), {})[one.slot] = OUTCOME.from_wire(one.outcome)
    return found


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary:
    checkpoint: int
    base: int
    generation: int
    kind: CheckpointKind
    name: str
    """Name of a savepoint."""
    state: CheckpointState
    abort_reason: AbortReason | None
    detail: str
    triggered_at: datetime | None
    decided_at: datetime | None
    settled_at: datetime | None
    waited: float
    """Seconds since it was due or requested."""
    ran: float | None
    """Seconds from the trigger to the last acknowledgement, or to the abort."""
    decided: float | None
    """Seconds from the last acknowledgement to the decision: waiting for its base to settle."""
    settled: float | None
    """Seconds from the decision to the last proved commit."""
    records_read: int
    records_written: int
    bytes_read: int
    bytes_written: int
    committables: int
    amendment: int
    """How often replayed committables replaced lost ones."""

    @classmethod
    def from_wire(cls, message: pb.CheckpointSummary) -> "CheckpointSummary":
        return cls(
            checkpoint=message.checkpoint,
            base=message.base,
            generation=message.generation,
            kind=CHECKPOINT_KIND.from_wire(message.kind),
            name=message.name,
            state=CHECKPOINT_STATE.from_wire(message.state),
            abort_reason=ABORT_REASON.from_wire(message.abort_reason) if message.HasField("abort_reason") else None,
            detail=message.detail,
            triggered_at=_time(message.triggered_at_ms),
            decided_at=_time(message.decided_at_ms),
            settled_at=_time(message.settled_at_ms),
            waited=message.waited_us / 1e6,
            ran=message.ran_us / 1e6 if message.HasField("ran_us") else None,
            decided=message.decided_us / 1e6 if message.HasField("decided_us") else None,
            settled=message.settled_us / 1e6 if message.HasField("settled_us") else None,
            records_read=message.records_read,
            records_written=message.records_written,
            bytes_read=message.bytes_read,
            bytes_written=message.bytes_written,
            committables=message.committables,
            amendment=message.amendment,
        )


@dataclass(frozen=True, kw_only=True)
class CheckpointDescription:
    summary: CheckpointSummary
    snapshots: Mapping[ParticipantName, Snapshot]
    settlements: tuple[tuple[ParticipantName, Settlement], ...]
    """Outcomes that halted the job, or were replayed."""

    @classmethod
    def from_wire(cls, message: pb.DescribeCheckpointResponse) -> "CheckpointDescription":
        return cls(
            summary=CheckpointSummary.from_wire(message.summary),
            snapshots={as_participant(name): snapshot_from_wire(one) for name, one in message.snapshots.items()},
            settlements=tuple(
                (as_participant(one.participant), settlement_from_wire(one.settlement)) for one in message.settlements
            ),
        )


@dataclass(frozen=True, kw_only=True)
class LossReport:
    """Records of one slot that were given up: they never become visible."""

    job: str
    checkpoint: int
    participant: ParticipantName
    settlement: Settlement
    """Slot, outcome, and the proof or evidence; names the records."""
    document: Document
    """The lost committable, which only its sink can read. In Kafka's, ``inputs`` are the ranges and ``records`` counts
    the written records."""
    reason: str
    """The policy, or the person who decided, and why."""
    recorded_at: datetime | None
    acknowledged_at: datetime | None
    acknowledgement: str
    """Who acknowledged it, and why; empty before that."""

    @classmethod
    def from_wire(cls, message: pb.LossReport) -> "LossReport":
        return cls(
            job=message.job,
            checkpoint=message.checkpoint,
            participant=as_participant(message.participant),
            settlement=settlement_from_wire(message.settlement),
            document=document_from_wire(message.document),
            reason=message.reason,
            recorded_at=_time(message.recorded_at_ms),
            acknowledged_at=_time(message.acknowledged_at_ms),
            acknowledgement=message.acknowledgement,
        )


@dataclass(frozen=True, kw_only=True)
class InputSkip:
    """What moving a job past missing input does, or would do."""

    answer: Answer
    base: int
    """The checkpoint whose positions are moved; 0 when refused."""
    skipped: str
    """What is skipped: the partition and its offsets."""


@dataclass(frozen=True, kw_only=True)
class GenerationSummary:
    generation: int
    driver: str
    granted_at: datetime | None
    ended_at: datetime | None
    detail: str
    """Why it ended or failed."""

    @classmethod
    def from_wire(cls, message: pb.GenerationSummary) -> "GenerationSummary":
        return cls(
            generation=message.generation,
            driver=message.driver,
            granted_at=_time(message.granted_at_ms),
            ended_at=_time(message.ended_at_ms),
            detail=message.detail,
        )


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """A durable fact, or a call that was not accepted."""

    at: datetime | None
    event: str
    """The name of the fact or of the refused call."""
    verdict: Verdict | None
    """The verdict on a refused call; else None."""
    generation: int
    checkpoint: int
    participant: str
    detail: str
    count: int

    @classmethod
    def from_wire(cls, message: pb.HistoryEntry) -> "HistoryEntry":
        return cls(
            at=_time(message.at_ms),
            event=message.event,
            verdict=VERDICT.from_wire(message.verdict) if message.HasField("verdict") else None,
            generation=message.generation,
            checkpoint=message.checkpoint,
            participant=message.participant,
            detail=message.detail,
            count=message.count,
        )


def _oldest(message: TransactionAge) -> OldestTransaction:
    return OldestTransaction(
        transaction=message.transaction, open_for=message.open_for_us / 1e6, timeout=message.timeout_us / 1e6
    )


def _time(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
