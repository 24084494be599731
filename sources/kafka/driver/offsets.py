"""Plans half-open offset ranges from positions to the available ends. Pure: no client, no clock."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from onceward.connectors.interfaces import Plan
from onceward.protocol.read_progress import PartitionLag
from onceward.protocol.values import JsonObject
from onceward.sources.kafka.driver.limits import level, share
from onceward.sources.kafka.driver.sizing import Sizing
from onceward.sources.kafka.epochs import Lineage
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition
from onceward.sources.kafka.rates import RateLimit

__all__ = ["Limits", "gone_backwards", "plan_ranges", "ranges_between"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one checkpoint."""

    offsets: int | None = None
    """Over all partitions; None = no limit."""
    rate: RateLimit | None = None
    sizing: Sizing | None = None
    """How many offsets fit the duration that a checkpoint should have; None = not adaptive."""


def gone_backwards(positions: KafkaPositions, available: Mapping[Partition, int]) -> dict[Partition, tuple[int, int]]:
    """Return partitions whose log ends before the position, with (position, end): the log lost records already read."""
    return {
        partition: (cursor.next, available[partition])
        for partition, cursor in positions
        if partition in available and available[partition] < cursor.next
    }


def plan_ranges(
    positions: KafkaPositions,
    available: Mapping[Partition, int],
    *,
    read: Collection[Partition],
    limits: Limits,
    now: float,
    lineages: Mapping[Partition, Lineage] = MappingProxyType({}),
) -> Plan:
    """Plan one range per partition of ``read``, in the order of ``positions``; empty ranges keep the slots' meaning.

    ``available`` are the ends of what a ``read_committed`` reader may see now; a partition without an entry, because
    its leader did not answer, gets an empty range. ``lineages`` hold the epochs of the records there; without one the
    epoch is unknown. ``now`` is monotonic, in seconds. The caller must refuse an end before the position.
    """
    cursors = {partition: cursor for partition, cursor in positions if partition in read}
    waiting = {partition: _backlog(cursor, available.get(partition)) for partition, cursor in cursors.items()}
    wanted = waiting
    rotation = sum(cursor.next for cursor in cursors.values())
    cut_by = []
    if limits.rate is not None:
        rate = limits.rate
        wanted = {partition: min(backlog, rate.allowed(partition, now)) for partition, backlog in waiting.items()}
        cut_by += ["max_rate_per_partition"] * (wanted != waiting)
    if limits.offsets is not None:
        former, wanted = wanted, share(wanted, limits.offsets, rotation=rotation)
        cut_by += ["max_offsets_per_checkpoint"] * (wanted != former)
    if limits.sizing is not None:
        sizing, former = limits.sizing, wanted
        short = {partition: min(offsets, sizing.per_range) for partition, offsets in wanted.items()}
        wanted = level(short, sizing.total(sum(n > 0 for n in short.values())), rotation=rotation)
        cut_by += ["adaptive"] * (wanted != former)
    if limits.rate is not None:
        for partition, offsets in wanted.items():
            limits.rate.took(partition, offsets)
    moved = {p: _moved(cursor, wanted[p], lineages.get(p)) for p, cursor in cursors.items()}

    def partitions() -> Iterator[PartitionLag]:
        for partition, cursor in moved.items():
            left = waiting[partition] - wanted[partition] if cursor.done or partition in available else None
            yield PartitionLag(partition=str(partition), position=cursor.next, lag=left)

    return Plan(
        splits=tuple(_range(p, cursor.next, moved[p]) for p, cursor in cursors.items()),
        positions=positions.moved(moved, bound=positions.bound).to_document(),
        records=sum(wanted.values()),
        lag=sum(waiting.values()) - sum(wanted.values()),
        finished=bool(moved) and all(cursor.done for cursor in moved.values()),
        cut_for_time=cut_by == ["adaptive"],
        sizing=_reported(cut_by, limits, sum(backlog > 0 for backlog in waiting.values())),
        partitions=partitions,
    )


def ranges_between(start: KafkaPositions, end: KafkaPositions) -> tuple[JsonObject, ...]:
    """Return the ranges that hold records, from ``start`` to ``end``. Partitions that ``start`` does not have begin
    with their position in ``end``: they have no range yet."""
    begun = dict(start)
    return tuple(
        _range(partition, begun[partition].next, cursor)
        for partition, cursor in end
        if partition in begun and cursor.next > begun[partition].next
    )


def _range(partition: Partition, start: int, end: Cursor) -> JsonObject:
    made = {"topic": partition.topic, "partition": partition.number, "start": start, "end": end.next}
    return made | ({} if end.epoch is None else {"epoch": end.epoch})


def _moved(cursor: Cursor, offsets: int, lineage: Lineage | None) -> Cursor:
    if not offsets:
        return cursor
    end = cursor.next + offsets
    return replace(cursor, next=end, epoch=None if lineage is None else lineage.before(end, cursor.epoch))


def _reported(cut_by: list[str], limits: Limits, ranges: int) -> JsonObject:
    """Report the reason for the ranges' size: ``everything`` that was available, unless a limit cut something off."""
    reported = {"sized_by": "+".join(cut_by) or "everything"}
    if limits.sizing is None:
        return reported
    sizing = limits.sizing
    return {
        **reported,
        "limit": sizing.total(ranges),
        "range_limit": sizing.per_range,
        "aim_seconds": round(sizing.target, 3),
    }


def _backlog(cursor: Cursor, available: int | None) -> int:
    if available is None:
        return 0
    end = available if cursor.end is None else min(available, cursor.end)
    return max(0, end - cursor.next)
