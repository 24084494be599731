"""A job's state, rebuilt from its durable state at every start."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from onceward.protocol.durable import Durable
from onceward.protocol.evolve import evolve
from onceward.protocol.facts import Fact
from onceward.protocol.phases import Phases
from onceward.protocol.values import NO_CHECKPOINT, CheckpointId, ParticipantName, RequestId, Snapshot

__all__ = ["JobState", "LiveDriver", "PendingCheckpoint", "record", "restart"]


@dataclass(frozen=True, kw_only=True)
class LiveDriver:
    """The driver that owns the current generation, while it is considered alive."""

    driver: str
    lease_ends: float
    stream_lost_at: float | None
    """None while the instruction stream is connected."""
    watched: bool
    """False for a driver without a stream since it opened the job, or since the coordinator started: only its lease
    counts."""


@dataclass(frozen=True, kw_only=True)
class PendingCheckpoint:
    """The volatile part of the undecided checkpoint. After a restart the driver is asked for the answers again."""

    started: float
    answers: Mapping[ParticipantName, Snapshot] = field(default_factory=dict)
    answered: float = 0.0
    """When the last participant acknowledged."""
    good_until: float | None = None
    """The checkpoint must be aborted from then on: its transactions may time out before they are committed."""
    phases: Phases = field(default_factory=dict)
    """As the driver has measured them."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The durable state plus volatile parts: session, answers, timers. All times are monotonic seconds."""

    durable: Durable
    session: LiveDriver | None = None
    pending: PendingCheckpoint | None = None
    """Set exactly when ``durable.pending`` is."""
    settled_slots: Mapping[ParticipantName, frozenset[int]] = field(default_factory=dict)
    """Slots of the unsettled checkpoint that are reported committed."""
    asked: Mapping[RequestId, float] = field(default_factory=dict)
    """Arrival times of requests."""
    next_trigger: float = 0.0
    """When the next checkpoint by the interval is due."""
    completed_at: float | None = None
    """When the last checkpoint completed. After a restart, the time of the restart, so that no pause is too short."""
    restart_due: float | None = None
    """Deadline for the return of a driver that announced it."""
    carried_out: CheckpointId = NO_CHECKPOINT
    """The newest abort that the driver reports as carried out in its renewals."""
    owing_since: float | None = None
    """Since when the driver's main loop has an instruction outstanding, or its last sign of life after that."""
    driverless_since: float | None = None
    """When the last driver left or was given up; after a restart, the time of the restart. None while there is a
    driver."""

    @property
    def base(self) -> CheckpointId:
        return self.durable.base

    @property
    def settled(self) -> bool:
        """True when no completed checkpoint waits for its commits."""
        return self.durable.settled

    @property
    def all_answered(self) -> bool:
        return self.pending is not None and all(p.name in self.pending.answers for p in self.durable.participants)


def record(state: JobState, facts: Iterable[Fact]) -> JobState:
    """The state after ``facts``: the only way to change its durable part."""
    durable = state.durable
    for fact in facts:
        durable = evolve(durable, fact)
    return replace(state, durable=durable)


_RETURN_S = 5.0
"""The shortest time in seconds that a driver gets to return after a restart of the coordinator. While it is away,
drivers retry once a second, over a channel that itself waits up to a second before it reconnects. A lease of 1 s, the
minimum, would expire before a live driver could call."""


def restart(durable: Durable, now: float) -> JobState:
    """The state after a start of the coordinator: an undecided checkpoint stays undecided, and the driver gets a full
    lease to return."""
    session = None
    lease_ends = now + max(durable.settings.seconds("lease"), _RETURN_S)
    if durable.driver is not None and not durable.orphaned:
        session = LiveDriver(driver=durable.driver, lease_ends=lease_ends, stream_lost_at=now, watched=False)
    return JobState(
        durable=durable,
        session=session,
        pending=PendingCheckpoint(started=now) if durable.pending is not None else None,
        next_trigger=now,
        completed_at=now if durable.base != NO_CHECKPOINT else None,
        restart_due=lease_ends if durable.awaits_driver else None,
        driverless_since=None if durable.driven else now,
    )
