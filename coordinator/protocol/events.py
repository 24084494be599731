"""What can happen to a job. Time comes in every event: ``now`` is a monotonic clock in seconds."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from coordinator.protocol.settings import CheckpointSettings
from coordinator.protocol.values import (
    CheckpointId,
    Claim,
    Generation,
    Participant,
    ParticipantName,
    Settlement,
    Snapshot,
)


class CloseReason(StrEnum):
    """Why a driver leaves."""

    FINISHED = "finished"
    """A bounded source has reached its end and everything is settled."""
    STOPPED = "stopped"
    """A person or a signal asked for it."""
    FAILED = "failed"
    """The driver failed; it may come back as the next generation."""


@dataclass(frozen=True, kw_only=True)
class OpenJob:
    """A driver asks for the next generation."""

    now: float
    driver: str
    """Random token of this attempt to open: makes a repeated call recognisable."""
    participants: tuple[Participant, ...]
    settings: CheckpointSettings
    claim: Claim | None
    """What the sink's cluster says about who owns the job."""
    takeover: bool = False
    """Replace a living driver."""
    adopt: bool = False
    """Go on although the claim names another store or is ahead of this one."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The driver's instruction stream is there."""

    now: float
    generation: Generation


@dataclass(frozen=True, kw_only=True)
class StreamLost:
    """The driver's instruction stream broke."""

    now: float
    generation: Generation


@dataclass(frozen=True, kw_only=True)
class Renew:
    """The driver is alive."""

    now: float
    generation: Generation


@dataclass(frozen=True, kw_only=True)
class Acknowledge:
    """A participant has done its part of a checkpoint."""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    base: CheckpointId
    snapshot: Snapshot


@dataclass(frozen=True, kw_only=True)
class Decline:
    """A participant cannot do its part; its transactions are or will be aborted."""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    reason: str


@dataclass(frozen=True, kw_only=True)
class Settle:
    """What became of a sink's committables of a completed checkpoint."""

    now: float
    generation: Generation
    checkpoint: CheckpointId
    participant: ParticipantName
    settlements: tuple[Settlement, ...]


@dataclass(frozen=True, kw_only=True)
class CloseJob:
    """The driver leaves; an undecided checkpoint is aborted."""

    now: float
    generation: Generation
    reason: CloseReason
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class StopJob:
    """A person asks the job to stop after settling."""

    now: float


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Time passed."""

    now: float


Event: TypeAlias = OpenJob | Watch | StreamLost | Renew | Acknowledge | Decline | Settle | CloseJob | StopJob | Tick
