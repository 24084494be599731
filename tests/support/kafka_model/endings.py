"""How decided transactions end: time-outs, markers, completion."""

import math
from collections.abc import Callable

from tests.support.kafka_model.placement import Shard
from tests.support.kafka_model.settings import OFFSETS_TOPIC, Partition
from tests.support.kafka_model.state import ClusterState, TransactionTable
from tests.support.kafka_model.transactions import Entry, State, fence

__all__ = ["Endings", "Marked"]

Marked = Callable[[str, Partition, int, bool, float], None]
"""Called for every marker: transactional id, partition, producer id, whether it commits, when."""

_AGAIN_S = 0.05
"""Seconds between attempts to write a marker."""


class Endings:
    """What the coordinators do without a request."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.listeners: list[Marked] = []

    def watch(self, shard: Shard[TransactionTable], entry: Entry) -> None:
        deadline = entry.deadline
        if deadline is not None:
            scan = self._state.settings.timeout_scan_s
            at = (math.floor(deadline / scan) + 1) * scan
            opened = (entry.producer_id, entry.epoch, entry.started)
            self._state.schedule(at, self._time_out, shard, entry, opened)

    def _time_out(
        self, now: float, shard: Shard[TransactionTable], entry: Entry, opened: tuple[int, int, float]
    ) -> None:
        if entry.state is not State.ONGOING or (entry.producer_id, entry.epoch, entry.started) != opened:
            return
        if shard.ready(now):
            self.fence(shard, entry, now)
        else:
            self._state.schedule(now + self._state.settings.timeout_scan_s, self._time_out, shard, entry, opened)

    def fence(self, shard: Shard[TransactionTable], entry: Entry, now: float) -> None:
        fence(entry, raises=self._state.settings.transaction_version >= 2, now=now)
        self.send_markers(shard, entry, now)

    def send_markers(self, shard: Shard[TransactionTable], entry: Entry, now: float) -> None:
        delay, skips = self._state.settings.marker_delay, self._state.settings.skips_marker
        entry.partitions = {partition for partition in sorted(entry.partitions) if not skips(entry.id, partition)}
        for partition in sorted(entry.partitions):
            self._state.schedule(now + delay(entry.id, partition), self._mark, shard, entry, partition)
        if not entry.partitions:
            self._state.schedule(now, self._complete, shard, entry)

    def _mark(self, now: float, shard: Shard[TransactionTable], entry: Entry, partition: Partition) -> None:
        """Let the current leader of the coordinator's partition write one marker."""
        commit = entry.state is State.PREPARE_COMMIT
        if not (shard.ready(now) and self._written(entry, partition, commit, now)):
            self._state.schedule(now + _AGAIN_S, self._mark, shard, entry, partition)
            return
        entry.partitions.discard(partition)
        for listener in self.listeners:
            listener(entry.id, partition, entry.producer_id, commit, now)
        if not entry.partitions:
            entry.complete(now)

    def _written(self, entry: Entry, partition: Partition, commit: bool, now: float) -> bool:
        """Write the marker. False while the partition has no leader. A deleted topic needs no marker."""
        topic, number = partition
        if topic == OFFSETS_TOPIC:
            groups = self._state.groups[number]
            if groups.ready(now):
                groups.table.mark(entry.producer_id, commit=commit)
                return True
            return False
        log = self._state.log(partition)
        if log is not None:
            if log.leader not in self._state.alive:
                return False
            log.mark(entry.producer_id, entry.epoch, commit=commit, now=now)
        return True

    def _complete(self, now: float, shard: Shard[TransactionTable], entry: Entry) -> None:
        if shard.ready(now):
            entry.complete(now)
        else:
            self._state.schedule(now + _AGAIN_S, self._complete, shard, entry)
