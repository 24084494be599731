"""Compare multisets and orders of many millions of records in little memory: records go to files by key; the files are
compared one by one.

Each record becomes one line of fixed length, in reading order: digests of key and content, partition, offset. All
records of a key are in one file, and only one file at a time is in memory.
"""

import hashlib
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

from onceward.operate.verify.history import Content

__all__ = ["COVERED", "REPEATED", "Differing", "Entry", "ExternalSort", "Record", "Side", "digest_of"]

_FILES = 256
_ROW = struct.Struct("<8s16sHBBq")
_CHAIN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_BUFFER = 1 << 16


Record: TypeAlias = tuple[str, bytes | None, bytes | None]
"""Topic, key and value."""


class Side(StrEnum):
    """Which of the two multisets."""

    EXPECTED = "expected"
    VISIBLE = "visible"


class Entry(NamedTuple):
    """One record of one side."""

    group: bytes
    """Digest of topic and key; for a record without a key, which has no order, digest of topic and whole content."""
    content: bytes
    """Digest of topic, key and value."""
    lane: int
    """Index of its partition among all partitions of its side."""
    topic: int
    """Index of its output topic among the job's; one more than the last for any other topic."""
    flags: int
    offset: int


_KEYED = 1
COVERED = 2
"""It must be visible: a completed checkpoint covers it."""
REPEATED = 4
"""Covered again, after a restore."""


@dataclass(frozen=True, kw_only=True)
class Differing:
    """A group whose two sides differ: all its records, each side in reading order."""

    expected: list[Entry]
    visible: list[Entry]


@dataclass(kw_only=True)
class _Sum:
    """Summary of one group on one side."""

    count: int = 0
    total: int = 0
    """Sum of content digests: independent of the order."""
    chain: int = 0
    """Digest that depends on the order."""
    lane: int = -1
    """-2: several."""

    def add(self, entry: Entry) -> None:
        number = int.from_bytes(entry.content, "little")
        self.count += 1
        self.total += number
        self.chain = (self.chain * _CHAIN + (number & _MASK) + 1) & _MASK
        self.lane = entry.lane if self.lane in (-1, entry.lane) else -2


class ExternalSort:
    """Files in ``directory``, which must be empty; 36 bytes per record. ``topics``: the job's outputs, at most 255."""

    def __init__(self, directory: Path, topics: Sequence[str], *, files: int = _FILES) -> None:
        self._directory = directory
        self._topics = list(topics)
        self._number = files
        self._files: dict[Side, list[BinaryIO]] = {
            side: [(directory / f"{side}-{number}").open("wb", _BUFFER) for number in range(files)] for side in Side
        }
        self.counts: dict[Side, int] = defaultdict(int)
        """Records that count, by side."""
        self.unordered = 0
        """Keys whose records come from several input partitions, so their order was not compared."""
        self.differing = 0
        """Groups whose sides differ."""

    def add(self, side: Side, record: Record, *, lane: int, offset: int, flags: int = COVERED) -> None:
        """Add a record. ``lane``: index of its partition among those of this side, below 65,536."""
        topic, key, _ = record
        content = digest_of(record)
        if key is None:
            group = content[:8]
        else:
            group = hashlib.blake2b(topic.encode() + b"\0" + key, digest_size=8).digest()
            flags |= _KEYED
        place = self._topics.index(topic) if topic in self._topics else len(self._topics)
        self._files[side][group[0] % self._number].write(_ROW.pack(group, content, lane, place, flags, offset))
        if flags & COVERED:
            self.counts[side] += 1

    def compare(self) -> Iterator[Differing]:
        """Yield every group whose sides differ, in multiset or in order. Closes and removes the files."""
        for files in self._files.values():
            for file in files:
                file.close()
        for number in range(self._number):
            yield from self.differences(self._entries(Side.EXPECTED, number), self._entries(Side.VISIBLE, number))

    def content(self, entry: Entry) -> Content:
        """Return the content for the judge, which compares only digests."""
        topic = self._topics[entry.topic] if entry.topic < len(self._topics) else "another topic"
        return Content(topic, f"#{entry.group.hex()}" if entry.flags & _KEYED else None, f"#{entry.content.hex()}")

    def close(self) -> None:
        for files in self._files.values():
            for file in files:
                file.close()

    def _entries(self, side: Side, number: int) -> list[Entry]:
        path = self._directory / f"{side}-{number}"
        entries = [Entry(*row) for row in _ROW.iter_unpack(path.read_bytes())]
        path.unlink()
        return entries

    def differences(self, expected: list[Entry], visible: list[Entry]) -> Iterator[Differing]:
        """Yield the groups of one file whose sides differ."""
        wanted, got = _sums(expected), _sums(visible)
        different = {group for group in wanted.keys() | got.keys() if self._differs(group, wanted, got)}
        if not different:
            return
        self.differing += len(different)
        sides: dict[bytes, tuple[list[Entry], list[Entry]]] = {group: ([], []) for group in different}
        for place, entries in enumerate((expected, visible)):
            for entry in entries:
                if entry.group in different:
                    sides[entry.group][place].append(entry)
        for mine, theirs in sides.values():
            yield Differing(expected=mine, visible=theirs)

    def _differs(
        self, group: bytes, wanted: Mapping[bytes, tuple[_Sum, bool]], got: Mapping[bytes, tuple[_Sum, bool]]
    ) -> bool:
        want, keyed = wanted.get(group, (_NOTHING, False))
        have, _ = got.get(group, (_NOTHING, False))
        if (want.count, want.total) != (have.count, have.total):
            return True
        if not keyed or want.count < 2:
            return False
        if want.lane == -2:
            self.unordered += 1
            return False
        return have.lane == -2 or want.chain != have.chain


_NOTHING = _Sum()


def _sums(entries: list[Entry]) -> dict[bytes, tuple[_Sum, bool]]:
    found: dict[bytes, tuple[_Sum, bool]] = {}
    for entry in entries:
        if entry.flags & COVERED:
            known = found.get(entry.group)
            if known is None:
                known = found[entry.group] = (_Sum(), bool(entry.flags & _KEYED))
            known[0].add(entry)
    return found


def digest_of(record: Record) -> bytes:
    """Return 128 bits; null and empty differ, and different splits into parts never give the same input."""
    topic, *parts = record
    digest = hashlib.blake2b(topic.encode(), digest_size=16)
    for part in parts:
        digest.update(b"\0-" if part is None else b"\0+" + len(part).to_bytes(8, "little") + part)
    return digest.digest()
