"""Finds partitions that were added later, and topics that match a pattern later. They start at earliest."""

import logging
from collections.abc import Callable, Collection
from datetime import timedelta

from onceward.coordinator.errors import CheckpointFailedError
from onceward.coordinator.printable import logger
from onceward.sources.kafka.checks import confirm_topics, refuse_other_topics
from onceward.sources.kafka.metadata import BrokerView
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition

__all__ = ["Discovery"]

_log = logger("onceward.source.kafka")


class Discovery:
    """What was found in this run and is not yet in the positions. Looks again each ``interval``, at first at once."""

    def __init__(self, view: BrokerView, interval: timedelta, monotonic: Callable[[], float]) -> None:
        self._view = view
        self._interval = interval.total_seconds()
        self._monotonic = monotonic
        self._due = float("-inf")
        self._starts: dict[Partition, int] = {}
        self._ids: dict[str, str] = {}

    def looked(self) -> None:
        """Everything there is was just seen."""
        self._due = self._monotonic() + self._interval

    def look_if_due(
        self, base: KafkaPositions, *, subscribed: Collection[str], names: Callable[[], Collection[str]]
    ) -> None:
        """Ask for partitions that ``base`` does not have. ``names`` says which topics there are to read now.

        Raises HaltedError when a topic of ``base`` is gone or was made again.
        """
        if self._monotonic() < self._due:
            return
        topics = confirm_topics(self._view, {*names(), *subscribed})
        refuse_other_topics(base, subscribed, topics)
        new = [
            partition
            for name in sorted(topics)
            for partition in (Partition(name, number) for number in topics[name].partitions)
            if partition not in base and partition not in self._starts
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
        # A partition that was just made may have no leader yet: then look again with the next plan.
        if len(starts) == len(new):
            self.looked()

    def added_to(self, base: KafkaPositions) -> KafkaPositions:
        """``base`` with what was found and it does not have yet."""
        found = {p: Cursor(next=offset) for p, offset in self._starts.items() if p not in base}
        return base.with_found(self._ids, found)
