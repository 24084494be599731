"""A recorded history: what was fed, what a reader saw, what the coordinator said, what was open. Values only.

Records are known by digests of key and value, so a history stays small and shows no long content.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

__all__ = ["Content", "Fed", "History", "Lane", "Part", "PartitionEnd", "Told", "Visible", "digest", "shown"]

_READABLE = 48
"""Bytes up to which printable content stands for itself."""


def digest(part: bytes | None, readable: int = _READABLE) -> str | None:
    """Printable ASCII of at most ``readable`` bytes as ``=text``, anything else as ``#`` and 128 bits of BLAKE2b; None
    for null."""
    if part is None:
        return None
    if len(part) <= readable and part.isascii() and (text := part.decode("ascii")).isprintable():
        return "=" + text
    return "#" + hashlib.blake2b(part, digest_size=16).hexdigest()


class Lane(NamedTuple):
    """A partition. Records of one lane have an order."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Content(NamedTuple):
    """A record of an output topic as :func:`digest` knows it."""

    topic: str
    key: str | None
    value: str | None

    def __str__(self) -> str:
        return f"{shown(self.key)} {shown(self.value)}"


def shown(part: str | None) -> str:
    """A digest for people."""
    return "null" if part is None else part.removeprefix("=")


class Fed(NamedTuple):
    """One input record, and what must become of it."""

    lane: Lane
    offset: int
    outputs: tuple[Content, ...]
    """Its effect, in order. Empty: it is filtered out."""


class Visible(NamedTuple):
    """One record as a ``read_committed`` reader got it."""

    lane: Lane
    offset: int
    content: Content
    at: float = 0.0
    """Unix seconds, taken after the reader had it. 0: not noted."""

    def __str__(self) -> str:
        return f"{self.lane} offset {self.offset}: {self.content}"


class Told(NamedTuple):
    """What the coordinator said of one checkpoint when it was asked."""

    checkpoint: int
    base: int
    generation: int
    kind: str
    """``checkpoint``, ``savepoint``, ``restore`` or ``skip``."""
    state: str
    """``triggered``, ``completed``, ``settled``, ``aborted`` or ``unreadable``."""
    ends: Mapping[Lane, int] | None = None
    """Of a completed one: input partition -> the offset to read next. None: it did not say."""
    decided_at: float = 0.0
    """Unix seconds on the coordinator's clock, taken before the decision was written. 0: not decided or not known."""
    last: bool = False
    """Said when everything was over."""


class PartitionEnd(NamedTuple):
    """Of an output partition, when everything was over."""

    lane: Lane
    high: int
    """High watermark."""
    stable: int
    """Last stable offset: what a ``read_committed`` reader can reach."""


class Part(StrEnum):
    """What a history consists of."""

    FED = "what was fed"
    SEEN = "what a concurrent reader saw"
    REST = "what was visible at rest"
    COORDINATOR = "what the coordinator says at the end"
    PAST = "all checkpoints since the first"
    END = "what was open at the end"


@dataclass(frozen=True, kw_only=True)
class History:
    """One run of one job, recorded. Sequences are in the order in which things were noted."""

    job: str
    fed: Sequence[Fed]
    """Each input partition by offset."""
    rest: Sequence[Visible]
    """Read once more when everything was over."""
    seen: Sequence[Visible] = ()
    """By a reader that read while the job ran."""
    told: Sequence[Told] = ()
    ends: Sequence[PartitionEnd] = ()
    open: Mapping[str, str] = field(default_factory=dict)
    """Transactional ids of the job that are not at rest -> their state at the broker."""
    whole_input: bool = False
    """The job was to process all that was fed; else all that completed checkpoints cover."""
    by_key: bool = True
    """A key keeps its output partition; without that nobody could see an order per key."""
    gaps: Mapping[Part, Sequence[str]] = field(default_factory=dict)
    """What was not recorded, and why."""
