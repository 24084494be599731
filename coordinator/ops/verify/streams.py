"""What must be visible: the completed checkpoints laid over what was fed.

A completed checkpoint covers, of each input partition, the offsets from its base's position up to its own. The
*stream* of an input partition is what these ranges hold, checkpoint after checkpoint. A restore repeats a range on
purpose: it is in the stream as often as a completed checkpoint covers it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.ops.verify.history import Content, Fed, History, Lane, Told

__all__ = ["Place", "Streams", "completed", "streams"]

_DECIDED_FOR = ("completed", "settled")
_RESTORE = "restore"


@dataclass(kw_only=True)
class Place:
    """One record that must be visible once."""

    lane: Lane
    number: int
    """In the stream of its lane."""
    offset: int
    checkpoint: int
    """That covers it; 0 when it is not known which."""
    content: Content
    taken: bool = False

    def __str__(self) -> str:
        of = f" of checkpoint {self.checkpoint}" if self.checkpoint else ""
        return f"{self.lane} offset {self.offset}{of}: {self.content}"


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Every place by content, and what is in none."""

    places: Mapping[Content, Sequence[Place]]
    uncovered: Mapping[Content, Sequence[Fed]]
    """Fed, and in no completed checkpoint: must not be visible."""
    missing: Sequence[str] = ()
    """Records of completed checkpoints that are not among what was fed, in words."""
    cut: int = 0
    """The oldest checkpoint whose base is not known any more; 0: all are."""
    decided_at: Mapping[int, float] = field(default_factory=dict)

    def all(self) -> Iterator[Place]:
        for places in self.places.values():
            yield from places


def completed(told: Sequence[Told]) -> dict[int, Told]:
    """Completed checkpoints by id, ascending, each as last told with positions."""
    known: dict[int, Told] = {}
    for one in told:
        if one.state in _DECIDED_FOR and (one.ends is not None or one.checkpoint not in known):
            known[one.checkpoint] = one
    return dict(sorted(known.items()))


def streams(history: History) -> Streams:
    """Lay ``history.told`` over ``history.fed``; when nothing was told, all that was fed must be visible."""
    lanes: dict[Lane, list[Fed]] = defaultdict(list)
    for one in history.fed:
        lanes[one.lane].append(one)
    for records in lanes.values():
        records.sort(key=lambda one: one.offset)
    known = completed(history.told)
    places: dict[Content, list[Place]] = defaultdict(list)
    counts: dict[Lane, int] = defaultdict(int)
    covered: dict[Lane, list[tuple[int, int]]] = defaultdict(list)
    missing: list[str] = []
    cut = next((one.checkpoint for one in known.values() if one.base and one.base not in known), 0)

    def cover(lane: Lane, start: int, end: int, checkpoint: int) -> None:
        covered[lane].append((start, end))
        records = lanes.get(lane, [])
        for one in records[_first(records, start) : _first(records, end)]:
            for content in one.outputs:
                place = Place(lane=lane, number=counts[lane], offset=one.offset, checkpoint=checkpoint, content=content)
                places[content].append(place)
                counts[lane] += 1

    if not history.told:
        for lane, records in lanes.items():
            cover(lane, records[0].offset, records[-1].offset + 1, 0)
    for told in known.values():
        if told.kind == _RESTORE:
            continue
        if told.ends is None:
            missing.append(f"the positions of checkpoint {told.checkpoint}")
            continue
        for lane, end in told.ends.items():
            if told.base in known:
                cover(lane, (known[told.base].ends or {}).get(lane, 0), end, told.checkpoint)
            elif told.base:  # whoever came before it has covered what lies between
                records = lanes.get(lane, [])
                lowest = records[0].offset if records else 0
                cover(lane, max((until for _, until in covered[lane]), default=lowest), end, 0)
    uncovered: dict[Content, list[Fed]] = defaultdict(list)
    for lane, records in lanes.items():
        for one in _outside(records, covered[lane]):
            for content in one.outputs:
                uncovered[content].append(one)
    return Streams(
        places=places,
        uncovered=uncovered,
        missing=missing,
        cut=cut,
        decided_at={one.checkpoint: one.decided_at for one in known.values() if one.decided_at},
    )


def _first(records: Sequence[Fed], offset: int) -> int:
    return bisect_left(records, offset, key=lambda one: one.offset)


def _outside(records: Sequence[Fed], ranges: Sequence[tuple[int, int]]) -> Iterator[Fed]:
    merged = sorted(ranges)
    at = 0
    for one in records:
        while at < len(merged) and merged[at][1] <= one.offset:
            at += 1
        if at == len(merged) or not merged[at][0] <= one.offset:
            yield one
