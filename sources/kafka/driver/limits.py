"""How much of the backlog one checkpoint takes: shares of a total, and a rate per partition. Pure."""

from collections.abc import Mapping

from onceward.sources.kafka.positions import Partition

__all__ = ["RateLimit", "level", "share"]

BURST_SECONDS = 60.0
"""An idle partition may save up tokens for at least this long."""


def share(backlog: Mapping[Partition, int], limit: int, *, rotation: int = 0) -> dict[Partition, int]:
    """Spread ``limit`` offsets, or the whole backlog if it is smaller, over partitions in proportion to their backlog.

    No partition with a backlog waits forever: each gets at least one offset; if there are fewer offsets than
    partitions, they take turns as ``rotation`` grows.
    """
    waiting = [partition for partition in sorted(backlog) if backlog[partition] > 0]
    total = sum(backlog[partition] for partition in waiting)
    taken = dict.fromkeys(backlog, 0)
    if total <= limit:
        return {**taken, **{partition: backlog[partition] for partition in waiting}}
    if limit < len(waiting):
        first = rotation % len(waiting)
        for partition in (waiting[first:] + waiting[:first])[:limit]:
            taken[partition] = 1
        return taken
    spare = limit - len(waiting)
    rest = total - len(waiting)
    for partition in waiting:
        taken[partition] = 1 + (backlog[partition] - 1) * spare // rest
    left = limit - sum(taken.values())
    # Rounding leaves fewer offsets than partitions; the longest backlogs take one more each.
    for partition in sorted(waiting, key=lambda p: (-backlog[p], p))[:left]:
        taken[partition] += 1
    return taken


def level(backlog: Mapping[Partition, int], limit: int, *, rotation: int = 0) -> dict[Partition, int]:
    """Spread ``limit`` offsets, or the whole backlog if smaller, evenly: others get what a partition does not need.

    A partition with a long backlog therefore takes nothing from one that keeps up. ``rotation`` as in :func:`share`.
    """
    waiting = sorted((partition for partition in backlog if backlog[partition] > 0), key=lambda p: (backlog[p], p))
    if limit < len(waiting):
        return share(backlog, limit, rotation=rotation)
    taken = dict.fromkeys(backlog, 0)
    for served, partition in enumerate(waiting):
        taken[partition] = min(backlog[partition], limit // (len(waiting) - served))
        limit -= taken[partition]
    return taken


class RateLimit:
    """A token bucket per partition. The caller passes the time (monotonic seconds)."""

    def __init__(self, offsets_per_second: float, *, interval: float = 0.0) -> None:
        """``interval``: seconds between two checkpoints. An idle partition always saves up enough for two."""
        self._rate = offsets_per_second
        self._most = offsets_per_second * max(BURST_SECONDS, 2 * interval)
        self._tokens: dict[Partition, tuple[float, float]] = {}

    def allowed(self, partition: Partition, now: float) -> int:
        """Return the offsets that may be taken now; a partition begins with one second's worth."""
        tokens, since = self._tokens.get(partition, (self._rate, now))
        tokens = min(tokens + (now - since) * self._rate, self._most)
        self._tokens[partition] = (tokens, now)
        return int(tokens)

    def took(self, partition: Partition, offsets: int) -> None:
        """Subtract the offsets taken after :meth:`allowed`."""
        tokens, since = self._tokens[partition]
        self._tokens[partition] = (tokens - offsets, since)
