"""``spark.readStream.format("onceward")``: plans the batches of a streaming query.

Spark's offsets are documents of positions (positions.py), so a query that continues knows the cluster, the topics and
the leader epochs of what it has read, and finds out when its input was deleted, recreated or replaced.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from onceward.common.backoff import Backoff
from onceward.common.errors import CheckpointFailedError, HaltedError
from onceward.common.printable import logger
from onceward.connectors.interfaces import Plan
from onceward.protocol.values import Document
from onceward.sources.kafka.control.metadata import insist
from onceward.sources.kafka.driver.offsets import Limits
from onceward.sources.kafka.driver.options import ReadOptions
from onceward.sources.kafka.driver.planner import Planner, halts_queries
from onceward.sources.kafka.positions import KIND, Cursor, KafkaPositions, Partition

__all__ = ["KafkaStreamReader"]

_PATIENCE_SECONDS: Final = 60.0
"""A query with availableNow waits this long for partitions whose leaders do not answer."""

_log = logger("onceward.source.kafka")


class KafkaStreamReader(Planner, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives as long as a run of the query."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        self._checked = False
        self._targets: Mapping[Partition, int] | None = None
        """With availableNow: the ends when the query started."""
        self._ends: dict[str, Any] | None = None
        self._last_batch = float("-inf")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as below
        [start] = self._resolved(self._options.start)
        self._checked = True
        return _json(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        return ReadAllAvailable() if options.min_offsets is None else ReadMinRows(options.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        subscription = self._subscription
        partitions = subscription.partitions(subscription.found())
        self._targets = insist(subscription.view.committed_ends, partitions)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; ``start`` if there is nothing to read, or while brokers do not answer."""
        positions = _positions(start)
        if self._targets is not None:
            return _json(self._towards(self._targets, positions, limit))
        try:
            return _json(self._next(positions, limit))
        except CheckpointFailedError as error:
            _log.warning("no batch is planned now: %s", error)
            return start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends that the last plan found."""
        return self._ends

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = _positions(start), _positions(end)
        with halts_queries():
            self._check(first, last)
        return self._splits(first, last)

    def _check(self, *positions: KafkaPositions) -> None:
        """Check that a query that continues still has the input it has read; once, since plans notice changes."""
        if not self._checked:
            for each in positions:
                self._subscription.check(each)
            self._checked = True

    def _next(self, start: KafkaPositions, limit: ReadLimit) -> KafkaPositions:
        """Plan a batch. Partitions that were found since are part of its end, and are read from the next batch on: a
        batch reads only between positions that Spark has logged."""
        subscription = self._subscription
        with halts_queries():
            self._check(start)
            subscription.look_for_partitions(start)
            found = subscription.with_found(start)
            read = {partition for partition, _ in start if subscription.reads(partition)}
            available = subscription.available(found, read)
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            plan = subscription.plan(self._bounded(found), available, read=read, limits=Limits(offsets=most))
            new = {split["topic"] for split in plan.splits if split["end"] > split["start"]}
            subscription.refuse_other_topics(start, new)
        self._ends = _json(found.moved({p: Cursor(next=end.offset) for p, end in available.items()}, bound=None))
        if self._waits(plan, limit):
            return start
        end = KafkaPositions.from_document(plan.positions)
        return end.moved({p: replace(cursor, end=None) for p, cursor in end}, bound=None)

    def _bounded(self, positions: KafkaPositions) -> KafkaPositions:
        if self._targets is None:
            return positions
        ends = {p: max(cursor.next, self._targets.get(p, 0)) for p, cursor in positions}
        return positions.moved({p: replace(cursor, end=ends[p]) for p, cursor in positions}, bound=None)

    def _waits(self, plan: Plan, limit: ReadLimit) -> bool:
        """True while fewer than ``minOffsetsPerTrigger`` offsets wait, for at most ``maxTriggerDelay``."""
        least, now = self._options.min_offsets, time.monotonic()
        if least is None or self._targets is not None or isinstance(limit, ReadAllAvailable):
            return False
        few = plan.records + (plan.lag or 0) < least
        if few and now - self._last_batch < self._options.max_delay.total_seconds():
            return True
        self._last_batch = now
        return False

    def _towards(self, targets: Mapping[Partition, int], start: KafkaPositions, limit: ReadLimit) -> KafkaPositions:
        """Plan a batch up to ``targets``. Waits for progress: Spark ends the query at the first batch without any.

        Raises CheckpointFailedError if brokers do not answer for long.
        """
        cursors = dict(start)
        missing = sorted(p for p, target in targets.items() if p not in cursors or cursors[p].next < target)
        backoff = Backoff(first=0.1, longest=2.0)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while missing:
            try:
                end = self._next(start, limit)
                if end != start:
                    return end
                if time.monotonic() > deadline:
                    raise CheckpointFailedError(
                        f"Kafka did not report the ends of {', '.join(map(str, missing[:10]))} ({len(missing)} "
                        f"partitions) for {_PATIENCE_SECONDS:g} s: their leaders are unavailable. The query with "
                        "availableNow is not finished; start it again to continue."
                    )
            except CheckpointFailedError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(backoff.next())
        with halts_queries():
            self._check(start)
        return start


def _json(positions: KafkaPositions) -> dict[str, Any]:
    document = positions.to_document()
    return {"kind": document.kind, "version": document.version, **document.body}


def _positions(offset: dict[str, Any]) -> KafkaPositions:
    body = dict(offset)
    kind, version = body.pop("kind", None), body.pop("version", None)
    if kind != KIND:
        raise HaltedError(
            'The offsets in the query\'s checkpointLocation were not written by format("onceward"). Nothing was read. '
            "Start the query with a new checkpointLocation, and with startingOffsets= where it is to continue."
        )
    return KafkaPositions.from_document(Document(kind=kind, version=version, body=body))
