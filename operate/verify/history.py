"""A recorded history: the input, what a reader saw, what the coordinator reported, what was open. Values only.

Records are identified by digests of key and value, so a history stays small and shows no long content.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "CheckpointReport",
    "Content",
    "Fed",
    "History",
    "Lane",
    "Part",
    "PartitionEnd",
    "Visible",
    "digest",
    "shown",
]

_READABLE = 48
"""Printable content of at most this many bytes is stored as text."""


def digest(part: bytes | None, readable: int = _READABLE) -> str | None:
    """Return printable ASCII of at most ``readable`` bytes as ``=text``, anything else as ``#`` and 128 bits of
    BLAKE2b; None for null."""
    if part is None:
        return None
    if len(part) <= readable and part.isascii() and (text := part.decode("ascii")).isprintable():
        return "=" + text
    return "#" + hashlib.blake2b(part, digest_size=16).hexdigest()


class Lane(NamedTuple):
    """A partition. Records of one lane have an order."""

    topic: str
    """Or the name of a table."""
    partition: int
    """-1: a table, whose rows have no numbers."""

    def __str__(self) -> str:
        return self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"


class Content(NamedTuple):
    """A record of an output topic, as :func:`digest` represents it."""

    topic: str
    key: str | None
    value: str | None

    def __str__(self) -> str:
        return f"{shown(self.key)} {shown(self.value)}".strip()


def shown(part: str | None) -> str:
    """Return a digest as shown to people."""
    return "null" if part is None else part.removeprefix("=")


class Fed(NamedTuple):
    """One input record and its required effect."""

    lane: Lane
    offset: int
    outputs: tuple[Content, ...]
    """Its effect, in order. Empty: it is filtered out."""


class Visible(NamedTuple):
    """One record as a ``read_committed`` reader received it."""

    lane: Lane
    offset: int
    content: Content
    at: float = 0.0
    """Unix seconds, taken after the reader received it. 0: not recorded."""

    def __str__(self) -> str:
        return f"{self.lane}{f' offset {self.offset}' if self.lane.partition >= 0 else ''}: {self.content}"


class CheckpointReport(NamedTuple):
    """What the coordinator reported about one checkpoint at one time."""

    checkpoint: int
    base: int
    generation: int
    kind: str
    """``checkpoint``, ``savepoint``, ``restore`` or ``skip``."""
    state: str
    """``triggered``, ``completed``, ``settled``, ``aborted`` or ``unreadable``."""
    ends: Mapping[Lane, int] | None = None
    """For a completed one: input partition -> the offset to read next. None: not reported."""
    decided_at: float = 0.0
    """Unix seconds on the coordinator's clock, taken before the decision was written. 0: not decided or not known."""
    last: bool = False
    """Reported after the end of the run."""


class PartitionEnd(NamedTuple):
    """The end of an output partition after the run."""

    lane: Lane
    high: int
    """High watermark."""
    stable: int
    """Last stable offset: how far a ``read_committed`` reader can read."""


class Part(StrEnum):
    """The parts of a history."""

    FED = "what was fed"
    SEEN = "what a concurrent reader saw"
    REST = "what was visible at rest"
    COORDINATOR = "what the coordinator says at the end"
    PAST = "all checkpoints since the first"
    END = "what was open at the end"


@dataclass(frozen=True, kw_only=True)
class History:
    """One recorded run of one job. Sequences are in the order of recording."""

    job: str
    fed: Sequence[Fed]
    """Each input partition by offset."""
    rest: Sequence[Visible]
    """The output, read again after the run."""
    seen: Sequence[Visible] = ()
    """Records of a reader that read while the job ran."""
    reports: Sequence[CheckpointReport] = ()
    ends: Sequence[PartitionEnd] = ()
    open: Mapping[str, str] = field(default_factory=dict)
    """Transactional ids of the job that are not at rest -> their state at the broker."""
    whole_input: bool = False
    """The job was to process the whole input; else only what completed checkpoints cover."""
    by_key: bool = True
    """A key keeps its output partition; without that, no order per key is visible."""
    gaps: Mapping[Part, Sequence[str]] = field(default_factory=dict)
    """What was not recorded, and why."""
