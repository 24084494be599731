"""What was seen of a run from outside, and the rate that it makes. Pure."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.topics import Ends

__all__ = ["Look", "Pauses", "look_every", "steady_rate"]

_LOOK_S = 0.2
"""More often, and who measures is one of the loads: with 20 looks a second a cycle took 5 % more."""
_PARTITIONS = 32
"""Asking for the ends of so many partitions costs next to nothing; of more it is done less often, in proportion."""
_FROM, _TO = 0.25, 0.9
"""Shares of the output between which a rate is measured."""


def look_every(partitions: int) -> float:
    """Seconds between two looks at a topic with so many partitions."""
    return _LOOK_S * max(1.0, partitions / _PARTITIONS)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was seen at one moment."""

    at: float
    """Seconds since the system was started."""
    ends: Ends


@dataclass(kw_only=True)
class Pauses:
    """How long nothing has been added, and how long that takes at most while the system is at work."""

    longest: float = 0.0
    """Seconds between two additions; before the first one a system starts."""
    _ends: Ends | None = None
    _changed: float = 0.0

    def seen(self, look: Look) -> float:
        """Seconds since the ends changed, or since the first look."""
        if self._ends is None:
            self._changed = look.at
        elif look.ends != self._ends:
            if self._ends.appended:
                self.longest = max(self.longest, look.at - self._changed)
            self._changed = look.at
        self._ends = look.ends
        return look.at - self._changed


def steady_rate(looks: Sequence[Look], records: int) -> float:
    """Input records/s between a quarter and nine tenths of the output.

    What a start costs is not in it, nor what a system needs to find its pace: compiled code, checkpoints that begin
    small. The whole output is what the last look saw, so that the markers of transactions, of which there are many
    where many partitions are written, count for as much at its end as on the way.
    """
    whole = looks[-1].ends.appended
    began, ended = (_reached(looks, whole * share) for share in (_FROM, _TO))
    return (_TO - _FROM) * records / max(ended - began, _LOOK_S)


def _reached(looks: Sequence[Look], offsets: float) -> float:
    """When so many were appended, in a straight line between two looks."""
    for before, after in itertools.pairwise(looks):
        if before.ends.appended < offsets <= after.ends.appended:
            share = (offsets - before.ends.appended) / (after.ends.appended - before.ends.appended)
            return before.at + share * (after.at - before.at)
    return looks[0].at
