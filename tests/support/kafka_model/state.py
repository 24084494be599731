"""The state of a modelled cluster, and its scheduled events."""

import heapq
import math
from collections.abc import Callable
from typing import Any

from tests.support.kafka_model.groups import Groups
from tests.support.kafka_model.log import PartitionLog
from tests.support.kafka_model.placement import NO_BROKER, Shard, shard_of
from tests.support.kafka_model.settings import Settings
from tests.support.kafka_model.transactions import Entry

__all__ = ["ClusterState", "TransactionTable"]

TransactionTable = dict[str, Entry]


class ClusterState:
    """Brokers, partitions, coordinators' tables, and scheduled events."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now = 0.0
        self.alive: list[int] = list(settings.brokers)
        self.topics: dict[str, list[PartitionLog]] = {}
        count, brokers = settings.coordinator_partitions, settings.brokers
        self.transactions: list[Shard[TransactionTable]] = [
            Shard(number=number, leader=brokers[number % len(brokers)], table={}, copied=_copied)
            for number in range(count)
        ]
        self.groups: list[Shard[Groups]] = [
            Shard(number=number, leader=brokers[(number + 1) % len(brokers)], table=Groups(), copied=Groups.copy)
            for number in range(count)
        ]
        self.due = math.inf
        """When the next event happens."""
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0
        self._producer_ids = 0

    def schedule(self, at: float, what: Callable[..., None], *args: Any) -> None:
        """Call ``what(at, *args)`` at time `at`; events of the same moment run in the order they were scheduled."""
        self._scheduled += 1
        heapq.heappush(self._events, (at, self._scheduled, what, args))
        self.due = self._events[0][0]

    def advance(self, now: float) -> None:
        """Run every event due until `now`. Raises ValueError when time goes back."""
        if now < self.now:
            raise ValueError(f"the cluster's time is {self.now}, it cannot go back to {now}")
        while self.due <= now:
            at, _, what, args = heapq.heappop(self._events)
            self.due = self._events[0][0] if self._events else math.inf
            self.now = max(self.now, at)
            what(self.now, *args)
        self.now = now

    def next_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids - 1

    def create_topic(self, topic: str, partitions: int) -> None:
        brokers = self.settings.brokers
        self.topics[topic] = [PartitionLog(self.elected(brokers[n % len(brokers)])) for n in range(partitions)]

    def transaction_shard(self, transactional_id: str) -> Shard[TransactionTable]:
        return self.transactions[shard_of(transactional_id, len(self.transactions))]

    def group_shard(self, group: str) -> Shard[Groups]:
        return self.groups[shard_of(group, len(self.groups))]

    def log(self, partition: tuple[str, int]) -> PartitionLog | None:
        logs = self.topics.get(partition[0])
        return logs[partition[1]] if logs is not None and 0 <= partition[1] < len(logs) else None

    def elected(self, leader: int) -> int:
        """The successor of `leader`: itself if it runs, otherwise the next broker that does, or `NO_BROKER`."""
        brokers = self.settings.brokers
        start = brokers.index(leader)
        ring = brokers[start:] + brokers[:start]
        return next((broker for broker in ring if broker in self.alive), NO_BROKER)


def _copied(table: TransactionTable) -> TransactionTable:
    return {name: entry.copy() for name, entry in table.items()}
