"""How many records of each partition a staying task may take now. Pure: the caller passes the time.

Two limits: a share of what one checkpoint may hold, which the driver gives with each cut, and a rate per partition.
Only records count; other offsets, such as those of the markers of transactions, cost nothing.
"""

import sys
from collections.abc import Mapping

from onceward.sources.kafka.positions import Partition
from onceward.sources.kafka.rates import RateLimit

__all__ = ["DRY_S", "Allowances"]

DRY_S = 0.02
"""A partition that has used up its rate waits for this long at least: otherwise each record would be a batch."""


class Allowances:
    """The allowances of one task's partitions."""

    def __init__(self, shares: Mapping[Partition, int] | None, rate: RateLimit | None) -> None:
        """``shares``: records of each partition until the first cut; None = no such limit."""
        self._shares = None if shares is None else dict(shares)
        self._rate = rate
        self._dry: dict[Partition, float] = {}
        """Until when partitions wait for their rate."""

    def begin(self, shares: Mapping[Partition, int]) -> None:
        """Begin the next checkpoint, which may hold ``shares``."""
        self._shares = dict(shares)

    def shared_out(self, partition: Partition) -> bool:
        """Return whether the partition waits for the next cut."""
        return self._shares is not None and self._shares.get(partition, 0) <= 0

    def of(self, partition: Partition, now: float) -> int:
        """Return the records of the partition that may be taken now."""
        if self.shared_out(partition) or now < self._dry.get(partition, now):
            return 0
        allowed = sys.maxsize if self._shares is None else self._shares[partition]
        if self._rate is None:
            return allowed
        tokens = self._rate.allowed(partition, now)
        if tokens < 1:
            self._dry[partition] = now + max(DRY_S, self._rate.wait(partition))
        return max(0, min(allowed, tokens))

    def took(self, partition: Partition, records: int) -> None:
        """Subtract the records taken after :meth:`of`."""
        if self._shares is not None:
            self._shares[partition] -= records
        if self._rate is not None:
            self._rate.took(partition, records)

    def wait(self, now: float) -> float:
        """Return the seconds until a partition that waits for its rate may be read again; infinite without one."""
        return min((until - now for until in self._dry.values() if until > now), default=float("inf"))
