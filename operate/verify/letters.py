"""The dead letters of a job as a part of its output: a record that became one has no other effect."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from onceward.connections.cluster import KafkaCluster
from onceward.connectors.letters import OUTPUTS, Letter, Run
from onceward.operate.verify.cluster import ClusterView, Raw, read_range
from onceward.operate.verify.history import Lane, PartitionEnd
from onceward.operate.verify.verdict import Breach, Property

__all__ = ["LettersAtRest"]

_Place: TypeAlias = tuple[Lane, int]
"""A record of the input."""


class LettersAtRest:
    """The letters of one job, at the moment of the last :meth:`look`."""

    def __init__(self, cluster: KafkaCluster, topic: str, job: str, runs: Sequence[Run]) -> None:
        """``runs``: have brought letters back. Those that went into the outputs have an effect of their own there, or
        are later letters."""
        self._view = ClusterView(cluster)
        self._topic, self._job = topic, job
        self._into_outputs = [run for run in runs if run.wanted.into == OUTPUTS]
        self._ends: Sequence[PartitionEnd] = ()
        self._letters: Counter[_Place] = Counter()
        """Those that no covered record explains, so far."""
        self._nameless = 0

    def look(self) -> bool:
        """See how far the topic can be read now. Return whether nothing is open in it."""
        self._ends = self._view.ends([self._topic])
        return all(one.high == one.stable for one in self._ends)

    def gaps(self) -> Iterator[str]:
        """Say why letters may be missing."""
        for name in self._view.compacted([self._topic]):
            yield f"topic {name} may be compacted"
        for lane, at in self._view.beginnings([self._topic]).items():
            if at:
                yield f"{lane} is deleted below offset {at}"

    def read(self) -> None:
        ends = {one.lane: one.stable for one in self._ends}
        for one in read_range(self._view.cluster, {}, ends, headers=True):
            letter = Letter.of(one.headers)
            if letter is None or letter.job != self._job or self._is_in_outputs(letter, one):
                continue
            if letter.partition is None or letter.offset is None:
                self._nameless += 1
            else:
                self._letters[Lane(letter.topic, letter.partition), letter.offset] += 1

    def _is_in_outputs(self, letter: Letter, one: Raw) -> bool:
        return any(run.has(letter, one.timestamp, one.lane.partition, one.offset) for run in self._into_outputs)

    @property
    def nameless(self) -> Sequence[str]:
        """Say that some letters do not say which records they were."""
        return [f"{self._nameless} letters do not say which record they were"] if self._nameless else []

    def takes(self, record: Raw) -> bool:
        """Return whether this record of the input, covered by a completed checkpoint, became a letter. Called once for
        each time that it is covered."""
        place = record.lane, record.offset
        if not self._letters[place]:
            return False
        self._letters[place] -= 1
        return True

    def unexplained(self, covered: Mapping[Lane, Sequence[tuple[int, int]]]) -> Iterator[tuple[Property, Breach]]:
        """Yield the letters that are too many. ``covered``: the offsets that completed checkpoints cover, as half-open
        ranges. Called after the whole input was read."""
        for (lane, offset), count in sorted(self._letters.items()):
            if count and any(start <= offset < end for start, end in covered.get(lane, ())):
                yield Property.NOTHING_TWICE, Breach(self._topic, "letters too many", f"{lane} offset {offset}")
            elif count and lane in covered:
                what = "letters of no completed checkpoint are visible"
                yield Property.NOTHING_UNDECIDED, Breach(self._topic, what, f"{lane} offset {offset}")
            elif count:
                what = "letters of no input of the job"
                yield Property.NOTHING_FOREIGN, Breach(self._topic, what, f"{lane} offset {offset}")
