"""A job's state, rebuilt from durable facts at every start."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from onceward.coordinator.protocol.durable import Durable
from onceward.coordinator.protocol.evolve import evolve
from onceward.coordinator.protocol.facts import Fact
from onceward.coordinator.protocol.values import NO_CHECKPOINT, CheckpointId, ParticipantName, RequestId, Snapshot

__all__ = ["JobState", "PendingCheckpoint", "Session", "record", "restart"]


@dataclass(frozen=True, kw_only=True)
class Session:
    """The driver that owns the current generation, as long as it is believed to be alive."""

    driver: str
    lease_ends: float
    stream_lost_at: float | None
    """None while the instruction stream is there."""
    watched: bool
    """False for a driver that has had no stream yet, or none since the coordinator started: only its lease counts."""


@dataclass(frozen=True, kw_only=True)
class PendingCheckpoint:
    """What is known only now about the undecided checkpoint. After a restart the answers are asked for again."""

    started: float
    answers: Mapping[ParticipantName, Snapshot] = field(default_factory=dict)
    answered: float = 0.0
    """When the last participant acknowledged."""
    good_until: float | None = None
    """From then on it must be aborted, because its transactions may time out before they are committed."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """Durable facts plus what is known only now: session, answers, timers. All times are monotonic seconds."""

    durable: Durable
    session: Session | None = None
    pending: PendingCheckpoint | None = None
    """There exactly when ``durable.pending`` is."""
    settled_slots: Mapping[ParticipantName, frozenset[int]] = field(default_factory=dict)
    """Slots of the unsettled checkpoint that are reported committed."""
    asked: Mapping[RequestId, float] = field(default_factory=dict)
    """When requests came in."""
    next_trigger: float = 0.0
    """The next checkpoint by the interval is due then."""
    completed_at: float | None = None
    """When the last checkpoint completed; after a restart the time of the restart, so that no pause is too short."""
    restart_due: float | None = None
    """Until when a driver that said it would come back may do so."""
    carried_out: CheckpointId = NO_CHECKPOINT
    """The newest abort that the driver has carried out, as it says with its renewals."""
    owing_since: float | None = None
    """Since when the driver's main loop owes what it was told to do, or its last sign of life after that."""
    driverless_since: float | None = None
    """When the last driver left or was given up; after a restart the time of the restart. None while there is one."""

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
    """The state after ``facts``: the only way in which its durable part changes."""
    durable = state.durable
    for fact in facts:
        durable = evolve(durable, fact)
    return replace(state, durable=durable)


_RETURN_S = 5.0
"""Seconds that a driver has at least to come back to a coordinator that was started again. While it was away drivers
tried once a second, over a channel that itself rests for up to a second before it connects again: a lease of 1 s, the
least there is, would be over before a living driver can say anything."""


def restart(durable: Durable, now: float) -> JobState:
    """State after a start of the coordinator: undecided stays undecided, the driver gets a full lease to come back."""
    session = None
    lease_ends = now + max(durable.settings.seconds("lease"), _RETURN_S)
    if durable.driver is not None and not durable.orphaned:
        session = Session(driver=durable.driver, lease_ends=lease_ends, stream_lost_at=now, watched=False)
    return JobState(
        durable=durable,
        session=session,
        pending=PendingCheckpoint(started=now) if durable.pending is not None else None,
        next_trigger=now,
        completed_at=now if durable.base != NO_CHECKPOINT else None,
        restart_due=lease_ends if durable.awaits_driver else None,
        driverless_since=None if durable.driven else now,
    )
