"""Spreads partitions over staying tasks with what each may read, and turns what they have read into plans. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Assignment, Plan
from onceward.connectors.tasks import ranges_of
from onceward.protocol.read_progress import PartitionLag
from onceward.protocol.values import Document, JsonObject
from onceward.sources.kafka.driver.arguments import SourceArguments
from onceward.sources.kafka.driver.limits import share
from onceward.sources.kafka.executor.following import KafkaFollowing
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition

__all__ = ["Shares", "assign", "follower", "reached", "shares", "suspects"]

_RESERVE = 10
"""Idle partitions get one record each of a limit that is this many times as large, and nothing of a smaller one while
others lag behind."""


def follower(arguments: SourceArguments, reader: KafkaSplitReader) -> KafkaFollowing:
    """Return the reader of staying tasks. Raises ConfigurationError for options that need tasks per checkpoint."""
    if arguments.min_partitions is not None:
        raise ConfigurationError(
            "min_partitions cuts the ranges of a checkpoint, and tasks that stay read whole partitions as they grow. "
            'Nothing was started. Leave it out, or leave out Pipeline(tasks="staying").'
        )
    return KafkaFollowing(reader=reader, rate=arguments.max_rate_per_partition)


def shares(lags: Mapping[Partition, int], limit: int, *, rotation: int = 0) -> dict[Partition, int]:
    """Divide all of ``limit`` over partitions: by their lags, as a plan does (limits.py), then the rest evenly, for the
    records that come until the next cut. ``rotation`` grows with each cut: what is too little for all goes around.
    """
    if limit >= _RESERVE * len(lags):  # the first record of an idle partition need not wait for a cut
        lags = {partition: max(1, lag) for partition, lag in lags.items()}
    given = share(lags, limit, rotation=rotation)
    names = sorted(given)
    even, over = divmod(limit - sum(given.values()), max(1, len(names)))
    for number in range(len(names)):
        given[names[(number + rotation) % len(names)]] += even + (number < over)
    return given


class Shares:
    """What each staying task may read in a checkpoint, from what partitions lag behind."""

    def __init__(self, limit: int, assignment: Assignment, lags: Mapping[Partition, int], *, most: int | None) -> None:
        """``lags``: of the assigned partitions. ``most``: records of a partition that its rate permits in an interval;
        None = any number."""
        self._limit, self._most = limit, most
        self._hands = [list(_splits([split])) for split in assignment.splits]
        self._lags = {partition: lags.get(partition, 0) for hand in self._hands for partition in hand}
        self._cuts = 0

    def next(self) -> Sequence[Sequence[int]]:
        """Return the records of the next checkpoint, for each slot's ranges."""
        lags = {p: lag if self._most is None else min(lag, self._most) for p, lag in self._lags.items()}
        given = shares(lags, self._limit, rotation=self._cuts)
        self._cuts += 1
        return [[given[partition] for partition in hand] for hand in self._hands]

    def reached(self, reports: Sequence[JsonObject]) -> None:
        """Note the lags that tasks report. An unknown one keeps its last value."""
        found = zip(_splits(reports), (lag for report in reports for lag in report["lags"]), strict=True)
        self._lags |= {partition: lag for partition, lag in found if lag is not None}


def assign(positions: KafkaPositions, read: Collection[Partition], most: int) -> Assignment:
    """Deal the partitions of ``read`` that are not done to at most ``most`` slots, one after the other."""
    cursors = {partition: cursor for partition, cursor in positions if partition in read}
    left = [_begun(partition, cursor) for partition, cursor in cursors.items() if not cursor.done]
    hands = [left[first::most] for first in range(min(most, len(left)))]
    return Assignment(
        splits=tuple({"ranges": ranges} for ranges in hands),
        positions=positions.to_document(),
        finished=bool(cursors) and not left,
    )


def suspects(positions: KafkaPositions, reports: Sequence[JsonObject]) -> dict[Partition, Cursor]:
    """Return the cursors of partitions whose leader epoch has grown: an election may have replaced what was read."""
    known = dict(positions)
    return {
        partition: known[partition]
        for partition, split in _splits(reports).items()
        if (older := known[partition].epoch) is not None and split.get("epoch", older) != older
    }


def reached(positions: KafkaPositions, read: Collection[Partition], reports: Sequence[JsonObject]) -> Plan:
    """Return the plan that reads from ``positions`` to where the slots of ``reports`` have come."""
    found = _splits(reports)
    cursors = {partition: cursor for partition, cursor in positions if partition in read}
    moved = {
        partition: replace(cursor, next=int(split["end"]), epoch=split.get("epoch"))
        for partition, cursor in cursors.items()
        if (split := found.get(partition)) is not None and int(split["end"]) > cursor.next
    }
    after: Mapping[Partition, Cursor] = {**cursors, **moved}
    lags = dict(zip(found, (lag for report in reports for lag in report["lags"]), strict=True))

    def partitions() -> Iterator[PartitionLag]:
        for partition, cursor in after.items():
            lag = 0 if cursor.done else lags.get(partition)
            yield PartitionLag(partition=str(partition), position=cursor.next, lag=lag)

    return Plan(
        splits=tuple(_joined(report["ranges"]) for report in reports),
        positions=_document(positions, moved),
        records=sum(moved[partition].next - cursors[partition].next for partition in moved),
        lag=None if None in lags.values() else sum(lag for lag in lags.values() if lag),
        finished=bool(after) and all(cursor.done for cursor in after.values()),
        partitions=partitions,
    )


def _document(positions: KafkaPositions, moved: Mapping[Partition, Cursor]) -> Document:
    return positions.moved(moved, bound=positions.bound).to_document()


def _begun(partition: Partition, cursor: Cursor) -> JsonObject:
    split = {"topic": partition.topic, "partition": partition.number, "start": cursor.next}
    return split if cursor.end is None else {**split, "end": cursor.end}


def _joined(ranges: Sequence[JsonObject]) -> JsonObject:
    """Return one split: without the ranges in which nothing was read, unless all are empty."""
    filled = [each for each in ranges if each["end"] > each["start"]] or list(ranges[:1])
    return filled[0] if len(filled) == 1 else {"ranges": filled}


def _splits(reports: Sequence[JsonObject]) -> dict[Partition, JsonObject]:
    return {
        Partition(str(split["topic"]), int(split["partition"])): split
        for report in reports
        for split in ranges_of(report)
    }
