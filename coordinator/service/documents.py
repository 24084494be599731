"""Checks documents with plug-ins; the coordinator itself never reads their content.

Those of installed kinds of systems (``protocol/kinds.py``). Documents of other kinds are stored unchecked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from onceward.common.printable import printable
from onceward.coordinator.service.kinds import installed_kinds, part
from onceward.protocol.durable import Durable
from onceward.protocol.encoded import decoded, decoding
from onceward.protocol.events import Acknowledge, Amend, Event
from onceward.protocol.kinds import DocumentChecker
from onceward.protocol.state import JobState
from onceward.protocol.values import Author, CheckpointId, Committable, Document, ParticipantName

__all__ = ["Checkers", "Vetted"]


@dataclass(frozen=True, kw_only=True)
class Vetted:
    """What the checkers said of an event's documents."""

    problem: str | None
    base: CheckpointId
    """The completed checkpoint with whose positions they were compared."""


class Checkers:
    """The installed checkers by document kind."""

    def __init__(self, checkers: Mapping[str, DocumentChecker]) -> None:
        self._checkers = dict(checkers)

    @classmethod
    def installed(cls) -> Self:
        """The checkers of installed kinds. Raises ConfigurationError for one that cannot be loaded: without it, wrong
        positions would be taken for right."""
        checkers: dict[str, DocumentChecker] = {}
        for name, kind in installed_kinds("started").items():
            checkers |= {document: part(name, where, "started") for document, where in kind.documents.items()}
        return cls(checkers)

    def vet(self, durable: Durable, event: Event) -> Vetted:
        """Check the event's documents, whether the protocol takes them or not. Takes long for many; safe in any
        thread."""
        problem = None
        match event:
            case Acknowledge(snapshot=snapshot):
                author = _author(durable, event)
                if snapshot.positions is not None:
                    problem = self._positions(durable, event.participant, snapshot.positions, author)
                problem = problem or self._committables(snapshot.committables, author)
            case Amend(committables=committables):
                problem = self._committables(committables, _author(durable, event))
        return Vetted(problem=problem, base=durable.base)

    def problem(self, state: JobState, event: Event, vetted: Vetted | None = None) -> str | None:
        """Why the event's documents must be rejected; None if they are valid, or if the protocol rejects them
        anyway.

        :param vetted: what :meth:`vet` found.
        """
        durable = state.durable
        if isinstance(event, Acknowledge) and not _awaited(durable, event):
            return None
        if vetted is None or vetted.base != durable.base:
            vetted = self.vet(durable, event)
        return vetted.problem

    def _positions(
        self, durable: Durable, participant: ParticipantName, positions: Document, author: Author
    ) -> str | None:
        completed = durable.completed
        before = completed.snapshots.get(participant) if completed is not None else None
        base = before.positions if before is not None else None
        problem = self._check(decoded(positions), decoded(base) if base is not None else None, author)
        return f"positions of {participant}: {problem}" if problem is not None else None

    def _committables(self, committables: Iterable[Committable], author: Author) -> str | None:
        for committable in decoding(one for one in committables if one.document.kind in self._checkers):
            problem = self._check(committable.document, None, author)
            if problem is not None:
                return f"slot {committable.slot} of {author.participant}: {problem}"
        return None

    def _check(self, document: Document, base: Document | None, author: Author) -> str | None:
        checker = self._checkers.get(document.kind)
        if checker is None:
            return None
        try:
            checker(document, base, author)
        except ValueError as error:
            return printable(str(error))  # it may quote the document
        except Exception as error:  # noqa: BLE001 - a document that breaks its checker cannot be trusted
            return printable(f"its checker failed: {type(error).__name__}: {error}")
        return None


def _awaited(durable: Durable, event: Acknowledge) -> bool:
    pending = durable.pending
    return (
        durable.driver is not None
        and durable.generation == event.generation
        and pending is not None
        and (pending.id, pending.base) == (event.checkpoint, event.base)
    )


def _author(durable: Durable, event: Acknowledge | Amend) -> Author:
    """Only the driver's own generation: its workers write for no other."""
    only = range(event.generation, event.generation + 1)
    return Author(job=durable.job, participant=event.participant, generations=only)
