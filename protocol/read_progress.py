"""How far and how fast a driver reads its input. For listings only: the core does not know of it."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

__all__ = ["PartitionLag", "ReadProgress"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionLag:
    """How far one partition of the input is read."""

    partition: str
    """Its name for display."""
    position: int
    """The offset to read next."""
    lag: int | None
    """Offsets left unread; None when the end of the partition is unknown."""


@dataclass(frozen=True, kw_only=True)
class ReadProgress:
    lag: int | None
    """Offsets that the newest checkpoint left unread; None when the source does not know."""
    measured_ago: timedelta
    """Since that was determined."""
    records_per_second: float
    """Over the last seconds; finite."""
    partitions: Sequence[PartitionLag] = ()
    other_partitions: int = 0
    """Number of partitions that are not listed."""

    def with_most_lag(self, most: int) -> "ReadProgress":
        """List at most ``most`` partitions: first those of unknown lag, then those with the most."""
        shown = heapq.nsmallest(most, self.partitions, key=_place)
        left_out = len(self.partitions) - len(shown)
        return replace(self, partitions=tuple(shown), other_partitions=self.other_partitions + left_out)


def _place(one: PartitionLag) -> float:
    return float("-inf") if one.lag is None else -one.lag
