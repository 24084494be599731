"""The records of a partition in one answer, before they are decoded."""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["Epochs", "Piece", "Room", "Scan", "scan"]

_HEADER = struct.Struct(">qiib4xhi")
"""First offset, length, leader epoch, format, checksum, attributes, and the last offset less the first."""
_BEFORE_LENGTH: Final = 12
"""Bytes of a batch that its length does not count."""
_LEAST: Final = 61
"""Bytes of a batch without records."""
_FORMAT: Final = 2


@dataclass
class Epochs:
    """The leader epochs of consecutive batches."""

    firsts: list[int] = field(default_factory=list)
    """The offsets where the epoch changes, ascending."""
    epochs: list[int] = field(default_factory=list)

    def add(self, first: int, epoch: int) -> None:
        if not self.epochs or self.epochs[-1] != epoch:
            self.firsts.append(first)
            self.epochs.append(epoch)

    def of(self, offset: int) -> int:
        """Return the epoch of the batch with ``offset``; -1 if unknown."""
        number = bisect_right(self.firsts, offset)
        return self.epochs[number - 1] if number else -1


class Scan(NamedTuple):
    next: int
    """The offset after the last whole batch, where the next fetch begins; the given start without one."""
    epochs: Epochs


def scan(data: memoryview, start: int) -> Scan:
    """Look at the headers of all whole batches. Stops before one that is wrong, which the decoder will refuse."""
    at, next_, epochs = 0, start, Epochs()
    while len(data) - at >= _LEAST:
        first, length, epoch, format_, _, last = _HEADER.unpack_from(data, at)
        size = _BEFORE_LENGTH + length
        if format_ != _FORMAT or size < _LEAST or at + size > len(data) or last < 0:
            break
        next_ = max(next_, first + last + 1)
        epochs.add(first, epoch)
        at += size
    return Scan(next_, epochs)


@dataclass
class Room:
    """Memory for the answers of one broker. It is used again when no piece in it waits."""

    memory: memoryview
    pieces: int = 0


@dataclass
class Piece:
    """What an answer has of one partition."""

    records: memoryview | bytes
    start: int
    """The first offset that is wanted."""
    aborted: Sequence[tuple[int, int]]
    stable: int
    """The end of what was committed when the broker answered."""
    next: int
    epochs: Epochs
    """As of :func:`scan`."""
    room: Room | None = None
    """Where the records are; None: they are its own."""

    def release(self) -> None:
        if self.room is not None:
            self.room.pieces -= 1
            self.room = None
