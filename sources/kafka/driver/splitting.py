"""How the ranges of a checkpoint become splits: one each, cut into more, or several joined in one. Pure.

A split is a range, ``{"topic", "partition", "start", "end"}``, or ``{"ranges": [...]}``.
"""

import heapq
from collections.abc import Sequence

from onceward.connectors.tasks import ranges_of
from onceward.protocol.values import JsonObject

__all__ = ["MOST_RANGES", "describe_ranges", "halve_ranges", "join_ranges", "split_ranges"]

MOST_RANGES = 10_000
"""Each range is a task, a transaction and a committable."""

_SAID = 5
"""Number of ranges that a message names."""


def join_ranges(splits: Sequence[JsonObject], most: int) -> tuple[JsonObject, ...]:
    """Join the ranges ``splits`` into at most ``most`` splits of about equal size.

    Each range stays whole, which keeps the order within a partition.
    """
    if len(splits) <= most:
        return tuple(splits)
    sizes = [int(split["end"]) - int(split["start"]) for split in splits]
    joined: list[list[int]] = [[] for _ in range(most)]
    filled = [(0, number) for number in range(most)]
    for index in sorted(range(len(splits)), key=lambda index: -sizes[index]):
        size, number = filled[0]
        joined[number].append(index)
        heapq.heapreplace(filled, (size + max(1, sizes[index]), number))
    return tuple(
        splits[indices[0]] if len(indices) == 1 else {"ranges": [splits[index] for index in sorted(indices)]}
        for indices in joined
    )


def split_ranges(splits: Sequence[JsonObject], least: int | None) -> tuple[JsonObject, ...]:
    """Cut ``splits`` into at least ``least`` ranges, in order.

    As with Spark's ``minPartitions``, long ranges are cut into more parts than short ones. The number of parts depends
    only on ``least`` and the number of ranges, never on their size, because Spark's plan is built once per number. With
    few records some parts are therefore empty.
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


def halve_ranges(splits: Sequence[JsonObject]) -> tuple[Sequence[JsonObject], Sequence[JsonObject]] | None:
    """Divide ``splits`` into two parts with equally many offsets; None if they hold at most one offset."""
    ranges = _filled(splits)
    size = sum(int(each["end"]) - int(each["start"]) for each in ranges)
    if size < 2:
        return None
    first: list[JsonObject] = []
    second: list[JsonObject] = []
    left = size // 2
    for each in ranges:
        start, end = int(each["start"]), int(each["end"])
        middle = min(end, start + left)
        left -= middle - start
        first += [{**each, "end": middle}] if middle > start else []
        second += [{**each, "start": middle}] if end > middle else []
    return first, second


def describe_ranges(splits: Sequence[JsonObject]) -> str:
    """Describe the ranges for display; only the first ones if there are many."""
    ranges = _filled(splits)
    said = [f"{each['topic']}-{each['partition']} offsets [{each['start']}, {each['end']})" for each in ranges]
    return ", ".join(said[:_SAID]) + (f" and {len(said) - _SAID} more ranges" if len(said) > _SAID else "")


def _filled(splits: Sequence[JsonObject]) -> list[JsonObject]:
    return [dict(each) for split in splits for each in ranges_of(split) if int(each["end"]) > int(each["start"])]


def _cut(split: JsonObject, count: int) -> list[JsonObject]:
    start, end = int(split["start"]), int(split["end"])
    cuts = [start + (end - start) * part // count for part in range(count + 1)]
    return [{**split, "start": cuts[part], "end": cuts[part + 1]} for part in range(count)]
