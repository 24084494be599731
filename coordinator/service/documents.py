"""Checks documents with plug-ins; the coordinator itself never reads their content.

Entry-point group ``onceward.documents``: the name is a document kind, the value a callable ``(document, base, author)
-> None``. It raises ValueError for an unknown version, for a meaningless body, for positions that go backwards from
``base``, the same participant's positions in the last completed checkpoint, and for a committable that names a
transaction of anyone but ``author``: this coordinator may end it with rights that its driver does not have. Documents
of other kinds are stored unchecked.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Self, TypeAlias

from onceward.coordinator.errors import ConfigurationError
from onceward.coordinator.printable import printable
from onceward.coordinator.protocol.encoded import decoded, decoded_all
from onceward.coordinator.protocol.events import Acknowledge, Amend, Event
from onceward.coordinator.protocol.state import JobState
from onceward.coordinator.protocol.values import Author, Committable, Document

__all__ = ["DOCUMENT_CHECKERS", "Checkers", "DocumentChecker"]

DOCUMENT_CHECKERS = "onceward.documents"

DocumentChecker: TypeAlias = Callable[[Document, Document | None, Author], None]


class Checkers:
    """The installed checkers by document kind."""

    def __init__(self, checkers: Mapping[str, DocumentChecker]) -> None:
        self._checkers = dict(checkers)

    @classmethod
    def installed(cls) -> Self:
        """The checkers of installed distributions. Raises ConfigurationError for one that cannot be loaded."""
        checkers: dict[str, DocumentChecker] = {}
        for point in entry_points(group=DOCUMENT_CHECKERS):
            try:
                checkers[point.name] = point.load()
            except (ImportError, AttributeError) as error:
                raise ConfigurationError(
                    f"The checker for documents of kind {point.name} ({point.value}) cannot be loaded: {error}. "
                    "Without it wrong positions would be taken for right; nothing was started. Repair the installation."
                ) from error
        return cls(checkers)

    def problem(self, state: JobState, event: Event) -> str | None:
        """Why the event's documents must be rejected; None if they are valid, or if the protocol rejects them
        anyway."""
        match event:
            case Acknowledge():
                return self._acknowledged(state, event)
            case Amend():
                return self._committables(event.committables, _author(state, event))
            case _:
                return None

    def _acknowledged(self, state: JobState, event: Acknowledge) -> str | None:
        durable = state.durable
        if (
            durable.driver is None
            or durable.generation != event.generation
            or durable.pending is None
            or durable.pending.id != event.checkpoint
            or durable.pending.base != event.base
        ):
            return None
        author = _author(state, event)
        if event.snapshot.positions is not None:
            before = durable.completed.snapshots.get(event.participant) if durable.completed is not None else None
            base = before.positions if before is not None else None
            problem = self._check(
                decoded(event.snapshot.positions), decoded(base) if base is not None else None, author
            )
            if problem is not None:
                return f"positions of {event.participant}: {problem}"
        return self._committables(event.snapshot.committables, author)

    def _committables(self, committables: Iterable[Committable], author: Author) -> str | None:
        for committable in decoded_all(one for one in committables if one.document.kind in self._checkers):
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


def _author(state: JobState, event: Acknowledge | Amend) -> Author:
    """Only the driver's own generation: its workers write for no other."""
    only = range(event.generation, event.generation + 1)
    return Author(job=state.durable.job, participant=event.participant, generations=only)
