"""What a coordinator shows to what measures it. The engine and the server call an observer if they have one, and depend
on nothing that it needs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias

from onceward.protocol.answers import Note
from onceward.protocol.committing import Age
from onceward.protocol.durable import Durable
from onceward.protocol.facts import Fact
from onceward.protocol.state import JobState
from onceward.protocol.values import JobName
from onceward.wire.rows import CheckpointSummary

__all__ = ["Observer", "Unfinished", "View", "observers"]

Unfinished: TypeAlias = Sequence[tuple[JobName, CheckpointSummary]]
"""Checkpoints that are undecided, or completed and not settled, each with its job."""


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

    def attached(
        self, view: View, completed_at: Mapping[JobName, datetime], term: int = 0, unfinished: Unfinished = ()
    ) -> None:
        """A coordinator has read its store and begins to serve. It replaces the one before, if any.

        :param completed_at: when each job's newest completed checkpoint was completed.
        :param term: grows with each leader of the store; 0 where only one coordinator can lead.
        :param unfinished: of all jobs.
        """

    def detached(self) -> None:
        """The coordinator serves no more."""

    def published(self, durable: Durable, facts: Sequence[Fact], at: datetime, stored_s: float = 0.0) -> None:
        """These facts of one job are on disk; ``durable`` is its state after them.

        :param stored_s: how long their write took; it ended just before ``at``.
        """

    def refused(self, note: Note) -> None:
        """A call of a job was answered with another verdict than accepted."""

    def rejected(self, call: str, reason: str) -> None:
        """A call was ended with a gRPC status, of that name in lower case, before or instead of an answer."""

    def committed(self, seconds: float) -> None:
        """The store has written a batch of facts. Called in the disk's thread."""


def observers(*each: Observer | None) -> Observer | None:
    """One observer for all that are there; None for none."""
    there = [one for one in each if one is not None]
    return _Several(there) if len(there) > 1 else there[0] if there else None


class _Several:
    def __init__(self, each: Sequence[Observer]) -> None:
        self._each = each

    def attached(
        self, view: View, completed_at: Mapping[JobName, datetime], term: int = 0, unfinished: Unfinished = ()
    ) -> None:
        for one in self._each:
            one.attached(view, completed_at, term, unfinished)

    def detached(self) -> None:
        for one in self._each:
            one.detached()

    def published(self, durable: Durable, facts: Sequence[Fact], at: datetime, stored_s: float = 0.0) -> None:
        for one in self._each:
            one.published(durable, facts, at, stored_s)

    def refused(self, note: Note) -> None:
        for one in self._each:
            one.refused(note)

    def rejected(self, call: str, reason: str) -> None:
        for one in self._each:
            one.rejected(call, reason)

    def committed(self, seconds: float) -> None:
        for one in self._each:
            one.committed(seconds)
