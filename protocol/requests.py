"""Requests of people: checkpoints on demand, savepoints, an ending, and rulings on what halted a job."""

from dataclasses import dataclass
from enum import StrEnum

from onceward.protocol.values import NO_CHECKPOINT, CheckpointId, CheckpointKind, RequestId

__all__ = ["MAX_KEPT", "MAX_QUEUED", "Ending", "Request", "RequestState", "Ruling"]

MAX_QUEUED = 16
"""Upper bound on the queued and running requests of one job. Further requests are rejected."""

MAX_KEPT = 32
"""Requests of one job that are remembered, so that a repeated call gets the same answer."""


class Ending(StrEnum):
    """How a person wants a job to end. Durable; every generation keeps it until it is reached."""

    STOP = "stop"
    """Finish and settle the running checkpoint; trigger no other."""
    CANCEL = "cancel"
    """Abort the running checkpoint; settle what is decided."""


class Ruling(StrEnum):
    """A person's decision about slots of a completed checkpoint that are not proved committed."""

    COMMITTED = "committed"
    """The slots count as committed."""
    GIVEN_UP = "given_up"
    """The slots count as not committed. Their records are given up: a loss."""
    REPLAY = "replay"
    """The slots count as not committed. The next driver writes them again."""


class RequestState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    """Its checkpoint is triggered and undecided."""
    COMPLETED = "completed"
    """Durably completed. The commits may still be under way."""
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (RequestState.COMPLETED, RequestState.FAILED)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checkpoint that a person requested, with the result."""

    id: RequestId
    kind: CheckpointKind
    """CHECKPOINT or SAVEPOINT."""
    name: str = ""
    """A label for display; savepoints only."""
    stop: bool = False
    """Stop the job once the savepoint is completed (Flink: stop-with-savepoint)."""
    state: RequestState = RequestState.QUEUED
    checkpoint: CheckpointId = NO_CHECKPOINT
    """The checkpoint taken for this request. For a CHECKPOINT with nothing new, the last completed one."""
    detail: str = ""
    """Why it failed."""

    def same_content(self, other: "Request") -> bool:
        """True when both requests ask for the same thing."""
        return (self.kind, self.name, self.stop) == (other.kind, other.name, other.stop)
