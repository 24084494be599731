"""What a reader subscribes to, as the cluster has it now: topics, partitions, ends, and whether the input is still the
one that was read."""

import re
import time
from collections.abc import Collection, Mapping
from datetime import timedelta

from onceward.common.errors import CheckpointFailedError, ConfigurationError
from onceward.common.links import Links
from onceward.common.printable import logger
from onceward.connections.cluster import KafkaCluster
from onceward.connectors.interfaces import Plan
from onceward.sources.kafka.control.leaders import Leaders
from onceward.sources.kafka.control.metadata import BrokerView, LogEnd, TopicState, insist
from onceward.sources.kafka.driver.checks import (
    confirm_topics,
    refuse_gone,
    refuse_other_cluster,
    refuse_other_topics,
    refuse_outside,
)
from onceward.sources.kafka.driver.discovery import Discovery
from onceward.sources.kafka.driver.held_back import HeldBack
from onceward.sources.kafka.driver.offsets import Limits, gone_backwards, plan_ranges
from onceward.sources.kafka.epochs import refuse_differences
from onceward.sources.kafka.executor.offset_gone import OffsetGone
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition, TopicPosition

__all__ = ["Subscription"]

_CONFIRM_SECONDS = 1.0

_log = logger("onceward.source.kafka")


class Subscription:
    """Topics of one cluster, by name or by pattern. Methods raise CheckpointFailedError if brokers do not answer."""

    def __init__(
        self,
        cluster: KafkaCluster,
        topics: Collection[str],
        pattern: re.Pattern[str] | None,
        *,
        links: Links,
        discovery_interval: timedelta,
        assigned: Collection[Partition] | None = None,
    ) -> None:
        """
        pattern: matches whole names; ``topics`` is then empty.
        assigned: the only partitions to read; None = all, also those that are added later.
        """
        self.cluster = cluster
        self.view = BrokerView(cluster, links=links)
        self.leaders = Leaders(cluster, links)
        self._held_back = HeldBack(self.view, self.leaders, links)
        self._topics, self._pattern, self._assigned = frozenset(topics), pattern, assigned
        self._discovery = Discovery(self.view, discovery_interval)
        self._cluster_id = ""

    @property
    def cluster_id(self) -> str:
        """Requested from the brokers once."""
        if not self._cluster_id:
            self._cluster_id = self.view.cluster_id()
        return self._cluster_id

    def __str__(self) -> str:
        return ", ".join(sorted(self._topics)) if self._pattern is None else f"matching {self._pattern.pattern!r}"

    def wants(self, topic: str) -> bool:
        return topic in self._topics if self._pattern is None else self._pattern.fullmatch(topic) is not None

    def reads(self, partition: Partition) -> bool:
        """True if the partition is subscribed to, now or once it exists."""
        return self.wants(partition.topic) and (self._assigned is None or partition in self._assigned)

    def names(self) -> frozenset[str]:
        """Return the topics to read: those named, or those that match now."""
        return self._topics if self._pattern is None else self.view.names(self._pattern)

    def among(self, positions: KafkaPositions) -> frozenset[str]:
        """Return the topics with positions that are still subscribed to."""
        return frozenset(filter(self.wants, positions.topics))

    def found(self) -> dict[str, TopicState]:
        """Return the topics. Raises ConfigurationError if one is missing or none matches."""
        found = confirm_topics(self.view.visible_topics, self.names())
        missing = sorted(self._topics - found.keys())
        if missing or not found:
            raise ConfigurationError(
                f"There is no topic {', '.join(missing) or self} on cluster {self.cluster.name!r} for this user. "
                "Nothing was read. Create it, correct the topics or the pattern, or grant READ."
            )
        return found

    def partitions(self, found: Mapping[str, TopicState]) -> list[Partition]:
        """Return the partitions to read of topics that were ``found``. Raises ConfigurationError if an assigned one
        does not exist."""
        existing = [Partition(name, number) for name in sorted(found) for number in found[name].partitions]
        if self._assigned is None:
            return existing
        missing = sorted(set(self._assigned) - set(existing))
        if missing:
            raise ConfigurationError(
                f"There are no partitions {', '.join(map(str, missing))} on cluster {self.cluster.name!r}. Nothing was "
                "read. Correct the assigned partitions."
            )
        return sorted(self._assigned)

    def positions(
        self,
        found: Mapping[str, TopicState],
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int] | None = None,
        *,
        bound: str | None = None,
    ) -> KafkaPositions:
        """Return the positions before any record was read, with the leader epochs before them."""
        epochs = self.leaders.epochs_before(starts)
        self._discovery.looked()
        return KafkaPositions(
            cluster=self.cluster.name,
            cluster_id=self.cluster_id,
            bound=bound,
            topics={
                name: TopicPosition(
                    id=topic.id,
                    partitions={
                        p.number: Cursor(next=starts[p], end=None if ends is None else ends[p], epoch=epochs[p])
                        for p in starts
                        if p.topic == name
                    },
                )
                for name, topic in found.items()
            },
        )

    def check(self, stored: KafkaPositions, *, also_done: bool = False) -> None:
        """Raise HaltedError unless reading can continue from ``stored``. ``also_done``: also for partitions that are at
        their end."""
        refuse_other_cluster(stored, self.cluster, self.cluster_id)
        subscribed = self.among(stored)
        self.refuse_other_topics(stored, subscribed)
        read = [p for p, cursor in stored if self.reads(p) and (also_done or not cursor.done)]
        starts, ends = insist(self.view.log_starts, read), insist(self.view.high_watermarks, read)
        refuse_outside(stored, read, starts, ends)
        refuse_differences(self.leaders.differences({p: c for p, c in stored if p in starts}))
        dropped = sorted(stored.topics.keys() - subscribed)
        if dropped:
            _log.warning("topics %s have positions but are not read by this source: they stay where they are", dropped)

    def refuse_other_topics(self, positions: KafkaPositions, names: Collection[str]) -> None:
        """Raise HaltedError for topics of ``names`` that were deleted or recreated since ``positions``."""
        refuse_other_topics(positions, names, confirm_topics(self.view.topics, names))

    def look_for_partitions(self, base: KafkaPositions) -> None:
        """Look for new partitions, if that is due."""
        self._discovery.look_if_due(base, subscribed=self.among(base), names=self.names, reads=self.reads)

    def with_found(self, base: KafkaPositions) -> KafkaPositions:
        """Return ``base`` plus the partitions found since."""
        return self._discovery.added_to(base)

    def warn_of_left_out(self, ends: Mapping[Partition, int]) -> str:
        """Log which records a run to ``ends`` leaves out, because they are behind transactions that are open now;
        return the line, which is empty if there are none."""
        found = self._held_back.left_out(ends)
        if not found:
            return ""
        line = (
            "This run ends where transactions of other programs are open. It does not read their records, nor those "
            f"behind them: {'; '.join(found)}. The next run reads them once these transactions have ended. If one "
            "hangs, end it with the brokers' own tool: kafka-transactions.sh abort --topic --partition --start-offset."
        )
        _log.warning("%s", line)
        return line

    def plan(
        self,
        positions: KafkaPositions,
        available: Mapping[Partition, LogEnd],
        *,
        read: Collection[Partition],
        limits: Limits,
    ) -> Plan:
        """Plan one range for each partition of ``read``, up to its ``available`` end."""
        cursors = {p: cursor for p, cursor in positions if p in available and not cursor.done}
        leaders = {p: leader for p in cursors if (leader := available[p].leader) is not None}
        lineages = self.leaders.lineages(cursors, leaders)
        return plan_ranges(
            positions,
            _offsets({p: end for p, end in available.items() if p in lineages or p not in leaders}),
            read=read,
            limits=limits,
            now=time.monotonic(),
            lineages=lineages,
        )

    def available(self, positions: KafkaPositions, read: Collection[Partition]) -> dict[Partition, LogEnd]:
        """Return the ends of what a ``read_committed`` reader may see now. Now and then it looks for what holds them
        back. Raises HaltedError if a log ends before its position, and still does 1 s later."""
        try:
            available = self.view.led_ends(read)
        except CheckpointFailedError:
            self.refuse_other_topics(positions, {p.topic for p in read})
            raise
        self._held_back.look_if_due(_offsets(available))
        if set(read) - available.keys():
            self.refuse_other_topics(positions, {p.topic for p in set(read) - available.keys()})
        if not gone_backwards(positions, _offsets(available)):
            return available
        self.refuse_other_topics(positions, {p.topic for p in read})
        time.sleep(_CONFIRM_SECONDS)
        again = self.view.led_ends(read)
        behind = gone_backwards(positions, _offsets(again))
        logs = self.view.high_watermarks(behind)
        refuse_gone(
            [
                OffsetGone(
                    topic=p.topic, partition=p.number, position=position, end=position, log_start=0, log_end=logs[p]
                )
                for p, (position, _) in sorted(behind.items())
                if logs.get(p, position) < position
            ]
        )
        # Started inside a transaction that is still open: the log holds the position, but its records are not visible.
        return {**again, **{p: again[p]._replace(offset=position) for p, (position, _) in behind.items()}}


def _offsets(ends: Mapping[Partition, LogEnd]) -> dict[Partition, int]:
    return {partition: end.offset for partition, end in ends.items()}
