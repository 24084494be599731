"""A job's state, rebuilt from durable facts at every start."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coordinator.protocol.facts import AbortReason, JobStatus
from coordinator.protocol.settings import CheckpointSettings
from coordinator.protocol.values import (
    NO_CHECKPOINT,
    NO_GENERATION,
    CheckpointId,
    CompletedCheckpoint,
    Generation,
    JobName,
    Participant,
    ParticipantName,
    Snapshot,
)


@dataclass(frozen=True, kw_only=True)
class Session:
    """The driver that owns the current generation, as long as it is believed to be alive."""

    driver: str
    lease_ends: float
    stream_lost_at: float | None
    """None while the instruction stream is there."""
    watched: bool
    """False for a driver that has had no stream yet: it recovers and starts Spark, so only its lease counts."""


@dataclass(frozen=True, kw_only=True)
class PendingCheckpoint:
    """Triggered and not decided. Answers live in memory only: after a restart they are asked for again."""

    id: CheckpointId
    base: CheckpointId
    started: float
    answers: Mapping[ParticipantName, Snapshot] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Durable:
    """Everything about a job that the store remembers and the protocol needs."""

    job: JobName
    store_id: str
    status: JobStatus = JobStatus.CREATED
    status_detail: str = ""
    generation: Generation = NO_GENERATION
    driver: str | None = None
    """The driver of the current generation; None once it closed or was given up."""
    participants: tuple[Participant, ...] = ()
    settings: CheckpointSettings = field(default_factory=CheckpointSettings)
    last_id: CheckpointId = NO_CHECKPOINT
    """The last id burnt."""
    completed: CompletedCheckpoint | None = None
    """The newest completed checkpoint: the base of everything that follows."""
    pending: tuple[CheckpointId, CheckpointId] | None = None
    """(id, base) of the undecided checkpoint."""
    stop_requested: bool = False
    lost: bool = False
    """A committable of the newest completed checkpoint is proved lost."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """Durable facts plus what is known only now: session, answers, timers."""

    durable: Durable
    session: Session | None = None
    pending: PendingCheckpoint | None = None
    settled_slots: Mapping[ParticipantName, frozenset[int]] = field(default_factory=dict)
    """Slots of the unsettled checkpoint that are reported committed."""
    aborted: tuple[CheckpointId, AbortReason, str] | None = None
    """The last checkpoint aborted in this generation, unless a later one completed."""
    failures: int = 0
    """Consecutive counted failures."""
    failed: str | None = None
    """Why this generation must end."""
    next_trigger: float = 0.0
    """Not before, on the monotonic clock."""

    def remember(self, **changes: object) -> "JobState":
        """A copy whose durable part has ``changes``."""
        return replace(self, durable=replace(self.durable, **changes))  # type: ignore[arg-type]

    @property
    def base(self) -> CheckpointId:
        return self.durable.completed.id if self.durable.completed else NO_CHECKPOINT

    @property
    def settled(self) -> bool:
        """True when no completed checkpoint waits for its commits."""
        return self.durable.completed is None or self.durable.completed.settled

    @property
    def all_answered(self) -> bool:
        return self.pending is not None and all(p.name in self.pending.answers for p in self.durable.participants)


def restart(durable: Durable, now: float) -> JobState:
    """State after a start of the coordinator: undecided stays undecided, the driver gets a full lease to come back."""
    session = pending = None
    if durable.driver is not None:
        session = Session(
            driver=durable.driver, lease_ends=now + durable.settings.seconds("lease"), stream_lost_at=now, watched=True
        )
    if durable.pending is not None:
        pending = PendingCheckpoint(id=durable.pending[0], base=durable.pending[1], started=now)
    return JobState(durable=durable, session=session, pending=pending)
