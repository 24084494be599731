"""The durable state of a job: what the store keeps and the protocol needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onceward.protocol.facts import AbortReason
from onceward.protocol.requests import Ending, Request, RequestState, Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    COORDINATOR,
    NO_CHECKPOINT,
    NO_GENERATION,
    CheckpointId,
    CheckpointKind,
    Claim,
    CompletedCheckpoint,
    Generation,
    JobName,
    Outcome,
    Participant,
    ParticipantName,
    RequestId,
)

__all__ = ["MAX_GONE", "AbortedCheckpoint", "Durable", "Loss", "Resolution", "RestoreOrder", "UndecidedCheckpoint"]

MAX_GONE = 16
"""Outputs that a job no longer has and that are remembered."""


@dataclass(frozen=True, kw_only=True)
class UndecidedCheckpoint:
    """A checkpoint that is triggered and undecided."""

    id: CheckpointId
    base: CheckpointId
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    request: RequestId | None = None
    """The person's request that it serves."""


@dataclass(frozen=True, kw_only=True)
class AbortedCheckpoint:
    """The last checkpoint that was aborted."""

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
    """A person's last ruling on slots; identifies a repeated call."""

    checkpoint: CheckpointId
    participant: ParticipantName
    slots: frozenset[int]
    ruling: Ruling


@dataclass(frozen=True, kw_only=True)
class Durable:
    """The durable state of a job: what the store keeps and the protocol needs."""

    job: JobName
    store_id: str
    status: JobStatus = JobStatus.CREATED
    status_detail: str = ""
    generation: Generation = NO_GENERATION
    driver: str | None = None
    """Owner of the current generation: a driver token, or COORDINATOR. None once the driver left or was given up."""
    holders: Mapping[Generation, str] = field(default_factory=dict)
    """The holders of the newest generations. A claim on one of these generations by another holder comes from a copy of
    this store."""
    participants: tuple[Participant, ...] = ()
    gone: tuple[Participant, ...] = ()
    """Outputs that a former driver had and the last one lacks, until a person closes them; the newest :data:`MAX_GONE`.
    All that was decided for them is settled."""
    settings: CheckpointSettings = field(default_factory=CheckpointSettings)
    last_id: CheckpointId = NO_CHECKPOINT
    """The last id burnt."""
    completed: CompletedCheckpoint | None = None
    """The newest completed checkpoint: the base of the next one."""
    finished: CheckpointId = NO_CHECKPOINT
    """The newest completed checkpoint when the job last finished."""
    unreadable: str = ""
    """Why the newest completed checkpoint cannot be read; ``completed`` is None then. Set while loading the store."""
    record_damaged: bool = False
    """The job's own record cannot be read: only its name is known, and ``unreadable`` says why."""
    pending: UndecidedCheckpoint | None = None
    aborted: AbortedCheckpoint | None = None
    failures: int = 0
    """Consecutive counted failures of checkpoints in this generation."""
    former_failures: int = 0
    """Failures of the generations before, since a checkpoint was completed."""
    failure: str = ""
    """The last failure, until a checkpoint is completed."""
    ending: Ending | None = None
    """The ending that a person requested, until it is reached."""
    requests: tuple[Request, ...] = ()
    """In order of arrival: the queued and running requests, and the most recent ended ones."""
    replaying: Mapping[ParticipantName, frozenset[int]] = field(default_factory=dict)
    """Slots of the newest completed checkpoint that are proved lost and not yet written again. Contains no empty
    sets."""
    lost: bool = False
    """True when a committable of the newest completed checkpoint is proved lost and the job needs a person to
    continue."""
    restore: RestoreOrder | None = None
    takeover: Generation = NO_GENERATION
    """A person permits the next driver to replace the live driver of this generation. The grant that uses it ends this
    generation, so a permission cannot be used twice."""
    adoption: Claim | None = None
    """The claim, without its holder, that a person permits to adopt. It is kept after the grant until the driver has
    replaced that claim by its own: a driver that dies before can be started again."""
    outcomes: Mapping[ParticipantName, Mapping[int, Outcome]] = field(default_factory=dict)
    """What was known of slots of the newest completed checkpoint when the job halted. Contains no empty mappings."""
    resolution: Resolution | None = None
    losses: tuple[Loss, ...] = ()
    """Slots of any checkpoint that were given up, until a person acknowledges the loss. One entry per checkpoint and
    sink."""

    @property
    def base(self) -> CheckpointId:
        return self.completed.id if self.completed else NO_CHECKPOINT

    @property
    def amendment(self) -> int:
        """Of the newest completed checkpoint."""
        return self.completed.amendment if self.completed else 0

    @property
    def settled(self) -> bool:
        """True when no completed checkpoint waits for its commits. False when the newest completed checkpoint cannot be
        read."""
        return not self.unreadable and (self.completed is None or self.completed.settled)

    @property
    def driven(self) -> bool:
        """True when a driver owns the current generation."""
        return self.driver is not None and not self.orphaned

    @property
    def orphaned(self) -> bool:
        """True when the coordinator has taken the current generation, to settle what a lost driver left behind."""
        return self.driver == COORDINATOR

    @property
    def instructed_abort(self) -> AbortedCheckpoint | None:
        """The abort that the current driver has to carry out or has carried out: the last one since the base."""
        aborted = self.aborted
        if aborted is None or aborted.generation != self.generation or aborted.id <= self.base:
            return None
        return aborted

    @property
    def unresolved(self) -> Mapping[ParticipantName, Mapping[int, Outcome]]:
        """Slots that need a person's decision: lost or in doubt."""
        open_slots = {
            name: {slot: outcome for slot, outcome in slots.items() if outcome is not Outcome.COMMITTED}
            for name, slots in self.outcomes.items()
        }
        return {name: slots for name, slots in open_slots.items() if slots}

    @property
    def awaits_driver(self) -> bool:
        """True when the driver ended its generation and announced that it would return."""
        return self.status is JobStatus.RESTARTING and self.driver is None

    @property
    def failures_in_row(self) -> int:
        """Failures since a checkpoint was completed. A new generation alone does not show that their cause is gone."""
        return self.former_failures + self.failures

    @property
    def shown_status(self) -> JobStatus:
        """RESTARTING also while a driver has the job again, if the generations before failed one after the other."""
        looping = self.status is JobStatus.RUNNING and self.former_failures > 1
        return JobStatus.RESTARTING if looping else self.status

    @property
    def open_requests(self) -> tuple[Request, ...]:
        """The queued and running requests, oldest first."""
        return tuple(request for request in self.requests if not request.state.ended)

    @property
    def next_request(self) -> Request | None:
        """The oldest queued request."""
        return next((request for request in self.requests if request.state is RequestState.QUEUED), None)
