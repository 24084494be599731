"""The rows of listings, as the store reads them, the wire carries them and commands show them.

Times are wall clock, in whole milliseconds; None when the event has not happened, or the stored row is damaged.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from onceward.protocol.answers import Verdict
from onceward.protocol.committing import Age
from onceward.protocol.facts import AbortReason
from onceward.protocol.phases import Phases
from onceward.protocol.read_progress import PartitionLag
from onceward.protocol.requests import Ending, Request
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    Claim,
    Document,
    Generation,
    JobName,
    Outcome,
    Participant,
    ParticipantName,
    Settlement,
    Snapshot,
)

__all__ = [
    "Certificate",
    "CheckpointDescription",
    "CheckpointSummary",
    "CommitTimes",
    "CoordinatorDescription",
    "CoordinatorRole",
    "GenerationSummary",
    "HistoryEntry",
    "JobDescription",
    "JobProgress",
    "JobSummary",
    "JobWait",
    "Leader",
    "LossReport",
    "RecordedSettlement",
    "Setting",
    "Standby",
    "as_fields",
    "as_json",
]


@dataclass(frozen=True, kw_only=True)
class JobWait:
    """Something that must happen before a job continues."""

    what: str
    since: datetime | None
    """When the wait began; after a restart of the coordinator, the time of the restart."""


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """How far and how fast a job reads, as its driver reported with the renewals of its lease."""

    lag: int | None
    """Offsets that the newest checkpoint left unread; None if the source does not know: Spark reads a query's input."""
    measured_at: datetime | None
    """When that was determined."""
    records_per_second: float
    """Over the last seconds."""
    recent_lag: tuple[int, ...]
    """In the latest reports, oldest first."""
    recent_records_per_second: tuple[float, ...]
    """In the latest reports, oldest first."""


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    job: JobName
    status: JobStatus
    status_detail: str
    generation: Generation
    last_checkpoint: CheckpointId
    last_completed: CheckpointId
    """The newest completed checkpoint, even if it cannot be read."""
    last_completed_at: datetime | None
    settled: bool
    """True when every commit of the newest completed checkpoint is proved."""
    ending: Ending | None
    """What an operator requested, until it is reached."""
    failures: int
    """Failures in a row since a checkpoint was completed, also of generations before."""
    failure: str
    """The last of them; empty for none."""
    open_requests: tuple[Request, ...]
    """Oldest first."""
    unreadable: str
    """Why the newest completed checkpoint cannot be read; empty when it can be read."""
    restore_from: CheckpointId
    """The checkpoint from whose positions the next generation starts, by an operator's order."""
    restore_reason: str
    orphan: str
    """What the coordinator does or waits for in place of a driver; empty for nothing."""
    unacknowledged_losses: int
    """Slots whose records were given up and that no person has acknowledged."""
    waits: tuple[JobWait, ...]
    """Also filled in normal operation; the wait that ends first comes first."""
    oldest_transaction: Age | None
    """The pre-committed, unsettled transaction that has been open longest. None also when unknown: for a job without a
    driver, if the coordinator has no clusters."""
    takeover_permitted: bool
    """True when a person permits the next driver to replace the live one of this generation."""
    adoption_permitted: Claim | None
    """The claim, without its holder, that a person permits to adopt."""
    progress: JobProgress | None = None
    """None if unknown: without a driver, until it reports, and until it reports again after a restart of the
    coordinator."""
    machine: str = ""
    """Machine and process of the driver; empty if unknown, as above."""
    gone_outputs: tuple[Participant, ...] = ()
    """Those that a former driver had and the last one lacks, and that no person has closed."""

    @property
    def failing(self) -> str:
        """How often the job has failed in a row, and the last failure unless its status names it; empty for never."""
        if not self.failures:
            return ""
        times = "failed once" if self.failures == 1 else f"failed {self.failures} times in a row"
        last = f": {self.failure}" if self.failure and self.failure not in self.status_detail else ""
        return f"{times}, and has completed no checkpoint since{last}"


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
    partitions: tuple[PartitionLag, ...] = ()
    """Of the input, as the driver last reported them: those with the most lag first, at most 50."""
    other_partitions: int = 0
    """Number of partitions that are not among them."""
    unsettled: Mapping[ParticipantName, int] = field(default_factory=dict)
    """Transactions of the newest completed checkpoint that are not proved committed, by output; outputs without any are
    left out. A driver reports all outputs when the last one has committed."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary:
    """One checkpoint. A duration is None if that phase is not over, and zero if a restart has lost its start."""

    checkpoint: CheckpointId
    base: CheckpointId
    generation: Generation
    kind: CheckpointKind
    name: str
    """Name of a savepoint."""
    state: CheckpointState
    abort_reason: AbortReason | None
    detail: str
    triggered_at: datetime | None
    decided_at: datetime | None
    settled_at: datetime | None
    waited: timedelta
    """From when it was due or requested to its trigger."""
    ran: timedelta | None
    """From the trigger to the last acknowledgement, or to the abort."""
    decided: timedelta | None
    """From the last acknowledgement to the decision: waiting for its base to settle."""
    settled: timedelta | None
    """From the decision to the proof of the last commit."""
    records_read: int
    records_written: int
    bytes_read: int
    bytes_written: int
    committables: int
    amendment: int
    """How often replayed committables replaced lost ones."""
    phases: Phases = field(default_factory=dict)
    """What of ``ran`` its driver has measured and reported; a phase that is missing is unknown."""
    kept: Document | None = None
    """The state in the snapshot of the participant that the listing asks for; None if there is none."""


@dataclass(frozen=True, kw_only=True)
class RecordedSettlement:
    """An outcome that halted the job, or that was replayed; kept as evidence."""

    participant: ParticipantName
    settlement: Settlement
    recorded_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class CheckpointDescription:
    summary: CheckpointSummary
    snapshots: Mapping[ParticipantName, Snapshot]
    """Empty unless completed."""
    settlements: tuple[RecordedSettlement, ...]


@dataclass(frozen=True, kw_only=True)
class LossReport:
    """Records of one slot that were given up: they never become visible."""

    job: JobName
    checkpoint: CheckpointId
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


@dataclass(frozen=True, kw_only=True)
class GenerationSummary:
    generation: Generation
    driver: str
    granted_at: datetime | None
    ended_at: datetime | None
    detail: str
    """Why it ended or failed."""


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """A durable fact, or a call that was not accepted."""

    at: datetime | None
    event: str
    """The name of a fact, for example ``CheckpointCompleted``, or of a refused event, for example ``Acknowledge``."""
    verdict: Verdict | None
    """The verdict on a refused call; else None."""
    generation: Generation
    checkpoint: CheckpointId
    """0 if it concerns no checkpoint."""
    participant: str
    detail: str
    count: int
    """How often a refused call came within about a second."""


class CoordinatorRole(StrEnum):
    LEADS = "leads"
    STANDS_BY = "stands_by"
    """It would lead if it could."""


@dataclass(frozen=True, kw_only=True)
class Leader:
    """The coordinator that leads."""

    address: str
    """Where clients reach it; empty if that is only inside a driver."""
    term: int
    since: datetime | None
    """When its term began, by its own clock; None if unknown."""
    web: str
    """The address of its page; empty if it has none, or if browsers elsewhere may not reach it there."""


@dataclass(frozen=True, kw_only=True)
class Standby:
    """A coordinator that waits for the lead, as the store knows it."""

    name: str
    """What it calls itself at the store: its machine and process, unless the store's URL says otherwise."""
    address: str
    """From where it is connected to the store; empty for the store's own machine."""
    since: datetime | None
    """When it connected, by the store's clock."""


@dataclass(frozen=True, kw_only=True)
class CommitTimes:
    """How long the store took for the writes of decisions. The times are None without a write."""

    commits: int
    median: timedelta | None
    """Within 10 %."""
    p99: timedelta | None
    """Within 10 %."""
    worst: timedelta | None
    window: timedelta
    """In how much time the writes were, up to now."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A file of certificates that a coordinator uses."""

    option: str
    """That names it, without dashes."""
    expires_at: datetime | None
    """When the first of its certificates expires; None if that cannot be read now."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An option of a coordinator that is in force."""

    name: str
    """Without dashes."""
    value: str
    """With secrets hidden; empty if it is not given."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorDescription:
    """What a coordinator says of itself, and of the one that leads. None is unknown to it."""

    role: CoordinatorRole
    detail: str
    """Why it does not lead; empty if it leads."""
    leader: Leader | None
    standbys: tuple[Standby, ...] | None
    """Only the leader knows them. Empty for a store that cannot be shared."""
    store: str
    """Its kind: sqlite or postgresql."""
    shared: bool
    """Several coordinators can share the store."""
    store_id: str
    """Empty if it does not lead."""
    commits: CommitTimes | None
    calls: int
    """Open ones, without health checks."""
    most_calls: int
    connections: int | None
    """TCP connections with open calls, health checks included. None if it listens on a socket only."""
    drivers: int | None
    """Those that have their instruction stream."""
    jobs: int | None
    """That the caller may view."""
    certificates: tuple[Certificate, ...]
    settings: tuple[Setting, ...]
    """Empty inside a driver."""
    version: str
    """Of Onceward."""


def as_json(values: Any) -> str:
    """Return rows as JSON: dataclasses as objects, times as ISO 8601, durations in seconds."""
    return json.dumps(values, default=_plain, indent=2)


def as_fields(row: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by their names."""
    return {field.name: getattr(row, field.name) for field in fields(row)}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return dict(value)
        case _ if is_dataclass(value):
            return as_fields(value)
        case _:
            raise TypeError(f"{type(value).__name__} in a listing")
