"""What a checkpoint stores of a job's dead letters: how many of each class, and where the newest were in the input.

Also loaded on executors: standard library only.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

from onceward.protocol.encoded import decoded
from onceward.protocol.values import NO_CHECKPOINT, CheckpointId, Document

__all__ = ["CLASSES", "NEWEST", "OTHERS", "LetterCounts", "LettersOfClass", "Place", "letters_in"]

CLASSES: Final = 20
"""Classes that are counted apart."""
OTHERS: Final = "others"
"""The class of letters beyond these."""
NEWEST: Final = 3
"""Letters of each class whose places are kept."""
_KIND: Final = "dead-letters"
_VERSION: Final = 2
_WITHOUT_CLASSES: Final = 1
_LONGEST = 100
"""Characters of a class that are kept."""
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NUMBER = re.compile(r"[0-9]{1,19}")


class Place(NamedTuple):
    """A record of the input."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic} {self.partition}, offset {self.offset}"

    @classmethod
    def of(cls, topic: object, partition: object, offset: object) -> Self | None:
        """Return None for values, or texts of them, that name no record of Kafka: a DataFrame may have any columns."""
        numbers = str(partition), str(offset)
        if _TOPIC.fullmatch(str(topic)) and all(map(_NUMBER.fullmatch, numbers)):
            return cls(str(topic), *map(int, numbers))
        return None


@dataclass(frozen=True, kw_only=True)
class LettersOfClass:
    """The letters with one class of reason."""

    kind: str
    letters: int = 0
    here: int = 0
    """Those of this checkpoint."""
    checkpoint: CheckpointId = NO_CHECKPOINT
    """The newest one that has such a letter."""
    newest: Sequence[Place] = ()
    """The newest first."""


@dataclass(frozen=True, kw_only=True)
class LetterCounts:
    """The letters of a job up to one checkpoint. It quotes no record."""

    letters: int = 0
    window: Sequence[tuple[int, int]] = ()
    """Of the last records: how many, and how many of them are letters."""
    classes: Sequence[LettersOfClass] | None = ()
    """In the order in which they came, without the letters that an earlier version counted, which knew no classes. None
    in a document of such a version."""

    def followed(
        self,
        checkpoint: CheckpointId,
        letters: int,
        window: Sequence[tuple[int, int]],
        found: Mapping[str, tuple[int, Sequence[Place]]],
    ) -> "LetterCounts":
        """Return the counts up to ``checkpoint``, which has ``letters``.

        :param found: how many of each class, and the places of the newest, the newest first.
        """
        classes = {one.kind: replace(one, here=0) for one in self.classes or ()}
        for kind, (count, places) in found.items():
            name = kind[:_LONGEST]
            if name not in classes and len(classes) >= CLASSES:
                name = OTHERS
            known = classes.get(name, LettersOfClass(kind=name))
            classes[name] = LettersOfClass(
                kind=name,
                letters=known.letters + count,
                here=known.here + count,
                checkpoint=checkpoint,
                newest=(*places, *known.newest)[:NEWEST],
            )
        return LetterCounts(letters=self.letters + letters, window=window, classes=tuple(classes.values()))

    def to_document(self) -> Document:
        classes = [
            {
                "class": one.kind,
                "letters": one.letters,
                "here": one.here,
                "checkpoint": one.checkpoint,
                "newest": [list(place) for place in one.newest],
            }
            for one in self.classes or ()
        ]
        body = {"letters": self.letters, "window": [list(entry) for entry in self.window], "classes": classes}
        return Document(kind=_KIND, version=_VERSION, body=body)

    @classmethod
    def of(cls, document: Document) -> Self:
        """Raises ValueError for a document that this program does not know."""
        if document.kind != _KIND or document.version not in (_WITHOUT_CLASSES, _VERSION):
            raise ValueError(
                f"{document.kind} in version {document.version}, and this program knows {_KIND} up to version "
                f"{_VERSION}"
            )
        body = decoded(document).body
        try:
            return cls(
                letters=int(body["letters"]),
                window=[(int(records), int(letters)) for records, letters in body["window"]],
                classes=tuple(map(_of_class, body["classes"])) if document.version == _VERSION else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{_KIND} that cannot be read ({error!r})") from error


def letters_in(kept: Document | None) -> Mapping[str, int] | None:
    """How many letters of each class a checkpoint has that keeps this document; None if it does not say so."""
    try:
        classes = None if kept is None else LetterCounts.of(kept).classes
    except ValueError:
        return None
    return None if classes is None else {one.kind: one.here for one in classes if one.here}


def _of_class(raw: Mapping[str, Any]) -> LettersOfClass:
    return LettersOfClass(
        kind=str(raw["class"]),
        letters=int(raw["letters"]),
        here=int(raw["here"]),
        checkpoint=CheckpointId(int(raw["checkpoint"])),
        newest=tuple(Place(str(topic), int(partition), int(offset)) for topic, partition, offset in raw["newest"]),
    )
