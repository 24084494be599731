"""Observations of a run from outside, and its rate. Pure."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.topics import Ends

__all__ = ["Look", "Pauses", "look_every", "steady_rate"]

_LOOK_S = 0.2
"""More frequent looks would be a load themselves: with 20 looks a second a cycle took 5 % more."""
_PARTITIONS = 32
"""Up to this many partitions, requesting the ends costs next to nothing; with more, looks are rarer in proportion."""
_FROM, _TO = 0.25, 0.9
"""The rate is measured between these shares of the output."""


def look_every(partitions: int) -> float:
    """Return the seconds between two looks at a topic with this many partitions."""
    return _LOOK_S * max(1.0, partitions / _PARTITIONS)


@dataclass(frozen=True, kw_only=True)
class Look:
    """An observation at one moment."""

    at: float
    """Seconds since the system was started."""
    ends: Ends


@dataclass(kw_only=True)
class Pauses:
    """The time since the last addition, and the longest pause between additions."""

    longest: float = 0.0
    """Seconds between two additions; the time before the first one, when a system starts, does not count."""
    _ends: Ends | None = None
    _changed: float = 0.0

    def seen(self, look: Look) -> float:
        """Return the seconds since the ends changed, or since the first look."""
        if self._ends is None:
            self._changed = look.at
        elif look.ends != self._ends:
            if self._ends.appended:
                self.longest = max(self.longest, look.at - self._changed)
            self._changed = look.at
        self._ends = look.ends
        return look.at - self._changed


def steady_rate(looks: Sequence[Look], records: int) -> float:
    """Return input records/s between a quarter and nine tenths of the output.

    This excludes the cost of a start, and the time that a system needs to find its pace: compiled code, checkpoints
    that begin small. The last look gives the whole output. It includes the markers of transactions, many if many
    partitions are written, so they count equally at the end and on the way.
    """
    whole = looks[-1].ends.appended
    began, ended = (_reached(looks, whole * share) for share in (_FROM, _TO))
    return (_TO - _FROM) * records / max(ended - began, _LOOK_S)


def _reached(looks: Sequence[Look], offsets: float) -> float:
    """Return when this many offsets were appended, interpolated linearly between two looks."""
    for before, after in itertools.pairwise(looks):
        if before.ends.appended < offsets <= after.ends.appended:
            share = (offsets - before.ends.appended) / (after.ends.appended - before.ends.appended)
            return before.at + share * (after.at - before.at)
    return looks[0].at
