"""What must be visible: the completed checkpoints applied to the input.

A completed checkpoint covers, of each input partition, the offsets from its base's position up to its own. The *stream*
of an input partition is the content of these ranges, checkpoint after checkpoint. A restore repeats a range on purpose:
the stream contains it as often as completed checkpoints cover it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from onceward.operate.verify.history import CheckpointReport, Content, Fed, History, Lane

__all__ = ["DueRecord", "Range", "Ranges", "Streams", "completed", "ranges", "streams"]

_DECIDED_FOR = ("completed", "settled")
_READING = ("checkpoint", "savepoint")
"""Kinds of checkpoints that cover the offsets since their base; a restore and a skip only move positions."""


class Range(NamedTuple):
    """Half-open offsets of one input partition that one completed checkpoint covers."""

    start: int
    end: int
    checkpoint: int
    """0 when the checkpoint is not known."""


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The ranges of all completed checkpoints."""

    lanes: Mapping[Lane, Sequence[Range]]
    """Ranges in the order of the checkpoints."""
    unknown: Sequence[str] = ()
    """What the coordinator did not report about completed checkpoints, as text."""
    gap: int = 0
    """The oldest checkpoint whose base is no longer known; 0: all are known."""
    cut: int = 0
    """The same, if the job's first positions are not known either; else 0."""
    moved: int = 0
    """A restore or skip before which checkpoints are no longer known; 0: there is none."""


@dataclass(kw_only=True, slots=True)
class DueRecord:
    """One record that must be visible once."""

    lane: Lane
    number: int
    """Its index in the stream of its lane."""
    offset: int
    checkpoint: int
    """The checkpoint that covers it; 0 when not known."""
    content: Content
    taken: bool = False

    def __str__(self) -> str:
        of = f" of checkpoint {self.checkpoint}" if self.checkpoint else ""
        return f"{self.lane} offset {self.offset}{of}: {self.content}"


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Every place by content, and the records without a place."""

    places: Mapping[Content, Sequence[DueRecord]]
    uncovered: Mapping[Content, Sequence[Fed]]
    """In the input, but in no completed checkpoint: must not be visible."""
    ranges: Ranges
    decided_at: Mapping[int, float] = field(default_factory=dict)

    def all(self) -> Iterator[DueRecord]:
        for places in self.places.values():
            yield from places


def completed(reports: Sequence[CheckpointReport]) -> dict[int, CheckpointReport]:
    """Return completed checkpoints by id, ascending, each as last reported with positions."""
    known: dict[int, CheckpointReport] = {}
    for one in reports:
        if one.state in _DECIDED_FOR and (one.ends is not None or one.checkpoint not in known):
            known[one.checkpoint] = one
    return dict(sorted(known.items()))


def ranges(reports: Sequence[CheckpointReport], lowest: Mapping[Lane, int]) -> Ranges:
    """Return what the completed checkpoints cover, in their order.

    Checkpoints that are no longer known have read on from the one before them: the newest restore or skip, from and to
    which positions are moved, is always known, with the one before it.

    ``lowest``: where the job began in each input partition, if its first checkpoint is no longer known.
    """
    known = completed(reports)
    found: dict[Lane, list[Range]] = defaultdict(list)
    unknown: list[str] = []
    before = lowest
    gap = moved = 0
    for one in known.values():
        if one.kind not in _READING:
            moved = one.checkpoint if gap else moved
        elif one.base and one.base not in known:
            gap = gap or one.checkpoint
        if one.ends is None:
            unknown.append(f"the positions of checkpoint {one.checkpoint}")
            continue
        if one.kind in _READING:
            for lane, end in one.ends.items():
                if one.base in known:
                    found[lane].append(Range((known[one.base].ends or {}).get(lane, 0), end, one.checkpoint))
                elif one.base:  # earlier checkpoints have covered the offsets between
                    found[lane].append(Range(before.get(lane, 0), end, 0))
        before = one.ends
    begun = any(not one.base for one in known.values())
    return Ranges(lanes=found, unknown=unknown, gap=gap, cut=0 if begun else gap, moved=moved)


def streams(history: History) -> Streams:
    """Apply ``history.reports`` to ``history.fed``; without any report, the whole input must be visible."""
    lanes: dict[Lane, list[Fed]] = defaultdict(list)
    for one in history.fed:
        lanes[one.lane].append(one)
    for records in lanes.values():
        records.sort(key=lambda one: one.offset)
    covered = ranges(history.reports, {lane: records[0].offset for lane, records in lanes.items()})
    if not history.reports:
        everything = {lane: [Range(records[0].offset, records[-1].offset + 1, 0)] for lane, records in lanes.items()}
        covered = replace(covered, lanes=everything)
    places: dict[Content, list[DueRecord]] = defaultdict(list)
    uncovered: dict[Content, list[Fed]] = defaultdict(list)
    for lane, records in lanes.items():
        stream = (
            (one.offset, each.checkpoint, content)
            for each in covered.lanes.get(lane, ())
            for one in records[_first(records, each.start) : _first(records, each.end)]
            for content in one.outputs
        )
        for number, (offset, checkpoint, content) in enumerate(stream):
            place = DueRecord(lane=lane, number=number, offset=offset, checkpoint=checkpoint, content=content)
            places[content].append(place)
        for one in _outside(records, covered.lanes.get(lane, ())):
            for content in one.outputs:
                uncovered[content].append(one)
    decided_at = {one.checkpoint: one.decided_at for one in completed(history.reports).values() if one.decided_at}
    return Streams(places=places, uncovered=uncovered, ranges=covered, decided_at=decided_at)


def _first(records: Sequence[Fed], offset: int) -> int:
    return bisect_left(records, offset, key=lambda one: one.offset)


def _outside(records: Sequence[Fed], covered: Sequence[Range]) -> Iterator[Fed]:
    merged = sorted(covered)
    at = 0
    for one in records:
        while at < len(merged) and merged[at].end <= one.offset:
            at += 1
        if at == len(merged) or one.offset < merged[at].start:
            yield one
