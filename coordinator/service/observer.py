"""What a coordinator shows to what measures it. The engine and the server call an observer if they have one, and depend
on nothing that it needs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from onceward.coordinator.protocol.answers import Note
from onceward.coordinator.protocol.committing import Age
from onceward.coordinator.protocol.durable import Durable
from onceward.coordinator.protocol.facts import Fact
from onceward.coordinator.protocol.state import JobState
from onceward.coordinator.protocol.values import JobName

__all__ = ["Observer", "View"]


class View(Protocol):
    """A coordinator's published state. Its methods may be called in any thread, need no store and no event loop."""

    def states(self) -> Sequence[JobState]:
        """Every known job."""

    def now(self) -> float:
        """Monotonic seconds, on the clock of the states."""

    def oldest(self, state: JobState) -> Age | None:
        """The pre-committed, unsettled transaction of the job that has been open longest; None if none is known."""


class Observer(Protocol):
    """Is called as events pass. Must be quick and must not raise."""

    def attached(self, view: View, completed_at: Mapping[JobName, datetime], term: int = 0) -> None:
        """A coordinator has read its store and begins to serve. It replaces the one before, if any.

        :param completed_at: when each job's newest completed checkpoint was completed.
        :param term: grows with each leader of the store; 0 where only one coordinator can lead.
        """

    def detached(self) -> None:
        """The coordinator serves no more."""

    def published(self, durable: Durable, facts: Sequence[Fact], at: datetime) -> None:
        """These facts of one job are on disk; ``durable`` is its state after them."""

    def refused(self, note: Note) -> None:
        """A call of a job was answered with another verdict than accepted."""

    def rejected(self, call: str, reason: str) -> None:
        """A call was ended with a gRPC status, of that name in lower case, before or instead of an answer."""

    def committed(self, seconds: float) -> None:
        """The store has written a batch of facts. Called in the disk's thread."""
