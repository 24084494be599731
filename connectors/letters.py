"""What a dead letter says of itself: the names of its headers, and their values.

Also loaded on executors: standard library only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from onceward.protocol.values import ParticipantName

__all__ = ["DEAD_LETTERS", "PREFIX", "Letter"]

DEAD_LETTERS = ParticipantName("dead-letters")
"""The name of their output, in every job."""
PREFIX = "onceward.error."
"""Of the headers that say why a record is a letter."""


@dataclass(frozen=True, kw_only=True)
class Letter:
    """Why a record is a letter. A text is empty, and a number None, if no header says it."""

    job: str
    kind: str
    """The class of the exception; ``condition`` for a letter that a DataFrame has marked."""
    message: str = ""
    stage: str = ""
    output: str = ""
    """The output that refused the record."""
    topic: str = ""
    """Of the record, in the input; so are ``partition``, ``offset`` and ``timestamp``."""
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None
    """Milliseconds."""
    attempt: int = 1
    """How often the job has failed to process it."""

    @classmethod
    def of(cls, headers: Iterable[tuple[str, bytes | None]]) -> Self | None:
        """Read the headers of a record; None if they are not those of a letter."""
        said = {
            name.removeprefix(PREFIX): (value or b"").decode(errors="replace")
            for name, value in headers
            if name.startswith(PREFIX)
        }
        if not said.get("job") or not said.get("class"):
            return None
        return cls(
            job=said["job"],
            kind=said["class"],
            message=said.get("message", ""),
            stage=said.get("stage", ""),
            output=said.get("output", ""),
            topic=said.get("topic", ""),
            partition=_number(said.get("partition")),
            offset=_number(said.get("offset")),
            timestamp=_number(said.get("timestamp")),
            attempt=_number(said.get("attempt")) or 1,
        )

    @property
    def place(self) -> str:
        """The input that it was, such as ``orders-0 offset 17``."""
        if self.partition is None or self.offset is None:
            return self.topic or "unknown"
        return f"{self.topic}-{self.partition} offset {self.offset}"


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None
