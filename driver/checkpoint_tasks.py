"""A way to run the tasks of checkpoints: a job chooses one, and its loop knows no other difference between them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from onceward.connectors.interfaces import Plan
from onceward.driver.mailbox import Mailbox
from onceward.driver.outputs import Inputs, Votes
from onceward.protocol.phases import Phase
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, Document, Generation

__all__ = ["CheckpointTasks", "Nothing", "Turn", "Written"]

_IDLE_WAIT = 1.0
"""Seconds after which a checkpoint without new data is acknowledged unchanged, or a quarter of the checkpoint timeout
if that is less."""


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """Nothing was read and written."""

    positions: Document
    """Where reading continues."""
    finished: bool
    """Nothing is left to read."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A checkpoint whose slots are written. All times are the runtime's monotonic ones."""

    plan: Plan
    """What they have read."""
    votes: Votes
    """Those of the tasks, or those that are coming."""
    inputs: Inputs
    planning: float
    """Seconds that the plan took."""
    began: float
    """When the tasks were ordered to write, or to cut."""
    open_since: float
    """No transaction is older."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What the tasks of a generation use of it."""

    generation: Generation
    mailbox: Mailbox
    settings: CheckpointSettings
    begin: Callable[[CheckpointId], None]
    """Called once the tasks of a checkpoint are about to write, or to cut."""
    sweep: Callable[[], None]
    """Aborts every open transaction of the job that is not decided."""
    phases: dict[Phase, timedelta] = field(default_factory=dict)
    """Those of the running checkpoint that are over."""

    @property
    def patience(self) -> float:
        """Seconds that a checkpoint waits for new data."""
        return min(_IDLE_WAIT, self.settings.seconds("timeout") / 4)

    def disturbed(self, checkpoint: CheckpointId) -> bool:
        """True when waiting for data in ``checkpoint`` must end."""
        return self.mailbox.stopping or self.mailbox.aborted(checkpoint) or self.mailbox.hurried(checkpoint)

    def measured(self, seconds: Mapping[str, float]) -> None:
        """Record phases of the running checkpoint that are over."""
        self.phases.update({phase: timedelta(seconds=seconds[phase]) for phase in Phase if phase in seconds})


class CheckpointTasks(Protocol):
    """Runs the tasks of a generation's checkpoints, one checkpoint at a time, on the driver's main thread."""

    def alive(self) -> bool:
        """Return False when tasks can never run again in this process."""

    def write(self, checkpoint: CheckpointId, positions: Document) -> Written | Nothing:
        """Read from ``positions`` on, and write. Waits briefly for new data; a stop, an abort or a person who waits for
        the checkpoint ends the wait. Raises what the tasks raise."""

    def votes(self, checkpoint: CheckpointId, written: Written) -> tuple[Votes, float]:
        """Return the votes of ``written``, and when all had voted, on the runtime's monotonic clock. Called after the
        pre-commit. Raises CheckpointFailedError if they are not those that were coming, and what broke the tasks."""

    def pre_committed(self, written: Written, votes: Votes) -> None:
        """Report to the source how well its input was read."""

    def failed(self, checkpoint: CheckpointId, positions: Document) -> Plan | None:
        """Clean up after a checkpoint that failed here. Return what it was to read; None if its tasks had not begun."""

    @property
    def marks(self) -> Collection[str]:
        """The marks of tasks that write the next checkpoint already: what they have open is not a leftover."""

    def end(self) -> None:
        """End the tasks that read on from a checkpoint that came to nothing. Raises GenerationFailedError if one may
        still write."""

    def leave(self) -> None:
        """End the tasks; the generation ends, too."""
