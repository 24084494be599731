"""Topics that a job writes to."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from onceward.connections.cluster import KafkaCluster
from onceward.operate.verify.cluster import ClusterView
from onceward.operate.verify.external_sort import ExternalSort, Record, Side
from onceward.operate.verify.history import Lane, PartitionEnd
from onceward.operate.verify.judge import AT_REST
from onceward.operate.verify.quiescence import Look
from onceward.operate.verify.streams import Range
from onceward.operate.verify.verdict import Property
from onceward.operate.verify.verifier import TOLD_EVERY, Progress, counted

__all__ = ["Expected", "Topics"]

Expected: TypeAlias = Callable[[str, bytes | None, bytes | None], Iterable[Record]]
"""(input topic, key, value) -> the required output records, as (topic, key, value)."""


class Topics:
    """Topics of one cluster. See :class:`Output`."""

    properties = AT_REST
    by_order = Property.ORDER

    def __init__(self, cluster: KafkaCluster, topics: Sequence[str], expected: Expected) -> None:
        self.expected = expected
        self._cluster = ClusterView(cluster)
        self._topics = topics

    def look(self, job: str) -> Look:
        return Look(ends=self._cluster.ends(self._topics), open=self._cluster.open_transactions(job))

    def gaps(self) -> Sequence[str]:
        deleted = {lane: at for lane, at in self._cluster.beginnings(self._topics).items() if at}
        return [
            *(f"topic {name} may be compacted" for name in self._cluster.compacted(self._topics)),
            *(f"{lane} is deleted below offset {at}" for lane, at in deleted.items()),
        ]

    def sort(self, directory: Path) -> ExternalSort:
        return ExternalSort(directory, self._topics)

    def read(self, ends: Sequence[PartitionEnd], sort: ExternalSort, progress: Progress) -> Mapping[int, Lane]:
        stable = {one.lane: one.stable for one in ends}
        places = {lane: place for place, lane in enumerate(sorted(stable))}
        total = sum(stable.values())
        for one, done in counted(self._cluster.cluster, {lane: Range(0, end, 0) for lane, end in stable.items()}, 0):
            record = (one.lane.topic, one.key, one.value)
            sort.add(Side.VISIBLE, record, lane=places[one.lane], offset=one.offset)
            if not done % TOLD_EVERY:
                progress("reading output", done, total)
        progress("reading output", total, total)
        return {place: lane for lane, place in places.items()}

    def texts(self, contents: Collection[str]) -> Mapping[str, str]:
        """Return none: a record is found by its offset."""
        return {}

    def close(self) -> None:
        """Nothing is open between calls."""
