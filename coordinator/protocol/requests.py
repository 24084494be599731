"""What people ask of a job: checkpoints on demand, savepoints, an end, and decisions about what halted it."""

from dataclasses import dataclass
from enum import StrEnum

from onceward.coordinator.protocol.values import NO_CHECKPOINT, CheckpointId, CheckpointKind, RequestId

__all__ = ["MAX_KEPT", "MAX_QUEUED", "Ending", "Request", "RequestState", "Ruling"]

MAX_QUEUED = 16
"""Requests of one job that wait or run; more are refused."""

MAX_KEPT = 32
"""Requests of one job that are remembered, so that a repeated call finds its answer."""


class Ending(StrEnum):
    """How a person wants a job to end. Durable, and kept by every generation until it is reached."""

    STOP = "stop"
    """Finish and settle the running checkpoint, take no other."""
    CANCEL = "cancel"
    """Abort the running checkpoint, settle what is decided."""


class Ruling(StrEnum):
    """What a person decided about slots of a completed checkpoint that are not proved committed."""

    COMMITTED = "committed"
    """They count as committed."""
    GIVEN_UP = "given_up"
    """They count as not committed, and their records are given up: a loss."""
    REPLAY = "replay"
    """They count as not committed; the next driver writes them again."""


class RequestState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    """Its checkpoint is triggered and not decided."""
    COMPLETED = "completed"
    """Durably; the commits may still be on their way."""
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (RequestState.COMPLETED, RequestState.FAILED)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checkpoint that a person asked for, and what became of it."""

    id: RequestId
    kind: CheckpointKind
    """CHECKPOINT or SAVEPOINT."""
    name: str = ""
    """A label for people; savepoints only."""
    stop: bool = False
    """Stop the job once it is completed (Flink: stop-with-savepoint)."""
    state: RequestState = RequestState.QUEUED
    checkpoint: CheckpointId = NO_CHECKPOINT
    """The one taken for it. For a CHECKPOINT without anything new, the last completed one."""
    detail: str = ""
    """Why it failed."""

    def same_wish(self, other: "Request") -> bool:
        """True when both ask for the same."""
        return (self.kind, self.name, self.stop) == (other.kind, other.name, other.stop)
