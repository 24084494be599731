"""How much of the backlog one checkpoint takes: shares of a total. Pure."""

from collections.abc import Mapping

from onceward.sources.kafka.positions import Partition

__all__ = ["level", "share"]


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
