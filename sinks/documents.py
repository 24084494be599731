"""What committables of sinks have in common as documents: kind, version, and an author whose own they must be.

Loads without any client.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from onceward.common.errors import HaltedError
from onceward.protocol.values import Author, Committable, Document

__all__ = ["SinkDocument"]

_DAMAGED = (AttributeError, KeyError, TypeError, ValueError, OverflowError)


class SinkDocument(ABC):
    """A committable that was parsed."""

    KIND: ClassVar[str]
    VERSION: ClassVar[int]

    @classmethod
    @abstractmethod
    def read(cls, slot: int, body: Mapping[str, Any]) -> Self:
        """Parse the body of a document. Raises any of AttributeError, KeyError, TypeError, ValueError and
        OverflowError if it is damaged."""

    @abstractmethod
    def require_own(self, author: Author) -> None:
        """Raises ValueError if this names anything that ``author`` has not written: the process that commits it may
        have the rights of many jobs."""

    @classmethod
    def document(cls, body: Mapping[str, Any]) -> Document:
        return Document(kind=cls.KIND, version=cls.VERSION, body=body)

    @classmethod
    def of(cls, committable: Committable) -> Self:
        """Parse a committable. Raises HaltedError for a kind, version or content that this release does not know."""
        document = committable.document
        why = f"this release reads {cls.KIND} version {cls.VERSION}"
        if (document.kind, document.version) == (cls.KIND, cls.VERSION):
            try:
                return cls.read(committable.slot, document.body)
            except _DAMAGED as error:
                why = f"its content is damaged ({error!r})"
        raise HaltedError(
            f"The committable of slot {committable.slot} is a {document.kind!r} document of version "
            f"{document.version}: {why}. Nothing was committed or deleted for it. Use the release that wrote it, or a "
            "newer one."
        )

    @classmethod
    def own(cls, committable: Committable, author: Author) -> Self:
        """Parse what is to be committed or aborted. Raises HaltedError like :meth:`of`, and if it names anything that
        is not ``author``'s."""
        parsed = cls.of(committable)
        try:
            parsed.require_own(author)
        except ValueError as error:
            raise HaltedError(
                f"The committable of slot {committable.slot} is not to be trusted: {error}. Nothing was committed or "
                "deleted for it. Find out which process acknowledged it: it acts for this job. If the store was "
                "damaged, put back a copy of it."
            ) from None
        return parsed

    @classmethod
    def check(cls, document: Document, base: Document | None, author: Author) -> None:
        """Validate a committable before the coordinator accepts it. Raises ValueError for an unknown version, for a
        document that lacks what is needed to commit it, and for one that names what is another's."""
        if document.version != cls.VERSION:
            raise ValueError(f"it has version {document.version}, and this program knows only version {cls.VERSION}")
        try:
            parsed = cls.read(0, document.body)
        except _DAMAGED as error:
            raise ValueError(f"it lacks what is needed to commit it ({error!r})") from error
        parsed.require_own(author)
