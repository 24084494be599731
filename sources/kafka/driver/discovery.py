"""Finds partitions that were added later, and topics that later match a pattern. They start at earliest."""

import logging
import time
from collections.abc import Callable, Collection
from datetime import timedelta

from onceward.common.errors import CheckpointFailedError
from onceward.common.printable import logger
from onceward.sources.kafka.control.metadata import BrokerView
from onceward.sources.kafka.driver.checks import confirm_topics, refuse_other_topics
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition

__all__ = ["Discovery"]

_log = logger("onceward.source.kafka")


class Discovery:
    """Partitions found in this run that are not in the positions yet. Looks at once, then every ``interval``."""

    def __init__(self, view: BrokerView, interval: timedelta) -> None:
        self._view = view
        self._interval = interval.total_seconds()
        self._due = float("-inf")
        self._starts: dict[Partition, int] = {}
        self._ids: dict[str, str] = {}

    def looked(self) -> None:
        """Note that all topics and partitions have just been listed."""
        self._due = time.monotonic() + self._interval

    def look_if_due(
        self,
        base: KafkaPositions,
        *,
        subscribed: Collection[str],
        names: Callable[[], Collection[str]],
        reads: Callable[[Partition], bool],
    ) -> None:
        """Look for partitions to read that ``base`` does not have. ``names`` returns the topics to read now.

        Raises HaltedError if a topic of ``base`` was deleted or recreated.
        """
        if time.monotonic() < self._due:
            return
        topics = confirm_topics(self._view.topics, {*names(), *subscribed})
        refuse_other_topics(base, subscribed, topics)
        new = [
            partition
            for name in sorted(topics)
            for partition in (Partition(name, number) for number in topics[name].partitions)
            if partition not in base and partition not in self._starts and reads(partition)
        ]
        try:
            starts = self._view.log_starts(new)
        except CheckpointFailedError:
            starts = {}
        for partition, offset in starts.items():
            self._starts[partition] = offset
            self._ids[partition.topic] = topics[partition.topic].id
            # A new partition whose log does not start at 0 has already lost records.
            level = logging.WARNING if offset else logging.INFO
            _log.log(level, "found partition %s, which starts at offset %d", partition, offset)
        # A partition that was just created may have no leader yet: then look again with the next plan.
        if len(starts) == len(new):
            self.looked()

    def added_to(self, base: KafkaPositions) -> KafkaPositions:
        """Return ``base`` plus the partitions found since."""
        found = {p: Cursor(next=offset) for p, offset in self._starts.items() if p not in base}
        return base.with_found(self._ids, found)
