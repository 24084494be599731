"""Everything about a job that the store remembers and the protocol needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onceward.coordinator.protocol.facts import AbortReason
from onceward.coordinator.protocol.requests import Ending, Request, RequestState, Ruling
from onceward.coordinator.protocol.settings import CheckpointSettings
from onceward.coordinator.protocol.status import JobStatus
from onceward.coordinator.protocol.values import (
    COORDINATOR,
    NO_CHECKPOINT,
    NO_GENERATION,
    CheckpointId,
    CheckpointKind,
    CompletedCheckpoint,
    Generation,
    JobName,
    Outcome,
    Participant,
    ParticipantName,
    RequestId,
)

__all__ = ["AbortedCheckpoint", "Durable", "Loss", "Resolution", "RestoreOrder", "UndecidedCheckpoint"]


@dataclass(frozen=True, kw_only=True)
class UndecidedCheckpoint:
    """Triggered and not decided."""

    id: CheckpointId
    base: CheckpointId
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    request: RequestId | None = None
    """The person's request that it serves."""


@dataclass(frozen=True, kw_only=True)
class AbortedCheckpoint:
    """The last one that was decided against."""

    id: CheckpointId
    generation: Generation
    reason: AbortReason
    detail: str


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Slots of one checkpoint that were given up."""

    checkpoint: CheckpointId
    participant: ParticipantName
    slots: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class RestoreOrder:
    """A person's order to begin the next generation with older positions."""

    source: CompletedCheckpoint
    reason: str


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The last decision of a person about slots: makes a repeated call recognisable."""

    checkpoint: CheckpointId
    participant: ParticipantName
    slots: frozenset[int]
    ruling: Ruling


@dataclass(frozen=True, kw_only=True)
class Durable:
    """Everything about a job that the store remembers and the protocol needs."""

    job: JobName
    store_id: str
    status: JobStatus = JobStatus.CREATED
    status_detail: str = ""
    generation: Generation = NO_GENERATION
    driver: str | None = None
    """Who has the current generation: a driver, or COORDINATOR. None once the driver closed or was given up."""
    holders: Mapping[Generation, str] = field(default_factory=dict)
    """The drivers of the newest generations. Another driver that claims one got it from a copy of this store."""
    participants: tuple[Participant, ...] = ()
    settings: CheckpointSettings = field(default_factory=CheckpointSettings)
    last_id: CheckpointId = NO_CHECKPOINT
    """The last id burnt."""
    completed: CompletedCheckpoint | None = None
    """The newest completed checkpoint: the base of everything that follows."""
    finished: CheckpointId = NO_CHECKPOINT
    """The newest completed checkpoint when the job last finished."""
    unreadable: str = ""
    """Why the newest completed checkpoint cannot be read; ``completed`` is None then. Found when the store is read."""
    record_damaged: bool = False
    """The job's own record cannot be read: its name is all that is known, and ``unreadable`` says why."""
    pending: UndecidedCheckpoint | None = None
    aborted: AbortedCheckpoint | None = None
    failures: int = 0
    """Consecutive failed checkpoints that count, in this generation."""
    ending: Ending | None = None
    """What a person asked for, until it is reached."""
    requests: tuple[Request, ...] = ()
    """In the order in which they came: what waits or runs, and the last that ended."""
    replaying: Mapping[ParticipantName, frozenset[int]] = field(default_factory=dict)
    """Slots of the newest completed checkpoint that are proved lost and not yet written again; no empty sets."""
    lost: bool = False
    """A committable of the newest completed checkpoint is proved lost, and only a person can go on."""
    restore: RestoreOrder | None = None
    outcomes: Mapping[ParticipantName, Mapping[int, Outcome]] = field(default_factory=dict)
    """What was known of slots of the newest completed checkpoint when the job halted; no empty mappings."""
    resolution: Resolution | None = None
    losses: tuple[Loss, ...] = ()
    """Slots of any checkpoint that were given up, until a person acknowledges it; one entry per checkpoint and sink."""

    @property
    def base(self) -> CheckpointId:
        return self.completed.id if self.completed else NO_CHECKPOINT

    @property
    def settled(self) -> bool:
        """True when no completed checkpoint waits for its commits. Not known of one that cannot be read."""
        return not self.unreadable and (self.completed is None or self.completed.settled)

    @property
    def driven(self) -> bool:
        """A driver has the current generation."""
        return self.driver is not None and not self.orphaned

    @property
    def orphaned(self) -> bool:
        """The coordinator has taken the current generation, to settle what a driver that is gone has left."""
        return self.driver == COORDINATOR

    @property
    def told_abort(self) -> AbortedCheckpoint | None:
        """What the current driver has to abort, or has aborted: the last one decided against since the base."""
        aborted = self.aborted
        if aborted is None or aborted.generation != self.generation or aborted.id <= self.base:
            return None
        return aborted

    @property
    def unresolved(self) -> Mapping[ParticipantName, Mapping[int, Outcome]]:
        """Slots about which a person must decide: lost or in doubt."""
        open_slots = {
            name: {slot: outcome for slot, outcome in slots.items() if outcome is not Outcome.COMMITTED}
            for name, slots in self.outcomes.items()
        }
        return {name: slots for name, slots in open_slots.items() if slots}

    @property
    def awaits_driver(self) -> bool:
        """The driver ended its generation and said that it would come back."""
        return self.status is JobStatus.RESTARTING and self.driver is None

    @property
    def open_requests(self) -> tuple[Request, ...]:
        """Those that wait or run, oldest first."""
        return tuple(request for request in self.requests if not request.state.ended)

    @property
    def next_request(self) -> Request | None:
        """The one that waits longest."""
        return next((request for request in self.requests if request.state is RequestState.QUEUED), None)
