"""Cuts the ranges of a checkpoint into more, for those who give up the order within a partition. Pure."""

import heapq
from collections.abc import Sequence

from coordinator.protocol.values import JsonObject

__all__ = ["MOST_RANGES", "split_ranges"]

MOST_RANGES = 10_000
"""Each range is a task, a transaction and a committable."""


def split_ranges(splits: Sequence[JsonObject], least: int | None) -> tuple[JsonObject, ...]:
    """At least ``least`` ranges that together are ``splits``, in their order.

    As with Spark's ``minPartitions`` long ranges are cut into more parts than short ones. How many parts there are
    depends on the number of ranges only, never on what they hold: Spark's plan is built once for a number. So with
    few records some parts are empty.
    """
    if least is None or not splits:
        return tuple(splits)
    parts = [1] * len(splits)
    sizes = [int(split["end"]) - int(split["start"]) for split in splits]
    longest = [(-float(size), index) for index, size in enumerate(sizes)]
    heapq.heapify(longest)
    for _ in range(least - len(splits)):
        _, index = longest[0]
        parts[index] += 1
        heapq.heapreplace(longest, (-sizes[index] / parts[index], index))
    return tuple(part for split, count in zip(splits, parts, strict=True) for part in _cut(split, count))


def _cut(split: JsonObject, count: int) -> list[JsonObject]:
    start, end = int(split["start"]), int(split["end"])
    cuts = [start + (end - start) * part // count for part in range(count + 1)]
    return [{**split, "start": cuts[part], "end": cuts[part + 1]} for part in range(count)]
