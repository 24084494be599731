"""Match each visible record to the input record that caused it, and check the resulting order.

Records are identified by content, so equal input records cannot be distinguished. Each visible record takes the first
free place of its content after the place that its output partition has reached in that input partition. If all records
come out in order, an order-keeping history exists. If not, and there was never a choice, none exists; if there was a
choice, the answer is unknown.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from onceward.operate.verify.history import Content, Fed, Lane, Visible, shown
from onceward.operate.verify.streams import DueRecord, Streams

__all__ = ["Inversion", "Matched", "match"]


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """Two records of one input partition that one output partition shows in the wrong order."""

    earlier: Visible
    later: Visible
    chosen: bool
    """Equal records left a choice, so another reading may be in order."""

    def __str__(self) -> str:
        lane = self.later.lane
        return (
            f"key {shown(self.later.content.key)} partition {lane.partition}: offset {self.later.offset} "
            f"{shown(self.later.content.value)} comes after offset {self.earlier.offset} "
            f"{shown(self.earlier.content.value)}"
        )


@dataclass(kw_only=True)
class Matched:
    """All visible records, classified."""

    found: list[tuple[Visible, DueRecord]] = field(default_factory=list)
    surplus: list[Visible] = field(default_factory=list)
    """Visible more often than expected."""
    undecided: list[tuple[Visible, Fed]] = field(default_factory=list)
    """In the input, but in no completed checkpoint."""
    misrouted: list[tuple[Visible, str]] = field(default_factory=list)
    """In a topic other than the named one, where they belong."""
    foreign: list[Visible] = field(default_factory=list)
    """The effect of no input record."""
    lost: list[DueRecord] = field(default_factory=list)
    inversions: list[Inversion] = field(default_factory=list)
    early: list[Inversion] = field(default_factory=list)
    """A checkpoint's record after one of a later checkpoint, in one output partition."""
    choices: bool = False
    """Equal records left a choice somewhere."""


def match(streams: Streams, visible: Iterable[Visible]) -> Matched:
    """Classify the visible records, each output partition in its order. Uses up ``streams.places``."""
    partitions: dict[Lane, list[Visible]] = defaultdict(list)
    homes: dict[Content, Lane] = {}
    spread: set[Content] = set()
    for one in visible:
        partitions[one.lane].append(one)
        if homes.setdefault(one.content, one.lane) != one.lane:
            spread.add(one.content)
    del homes
    matched = Matched()
    for records in partitions.values():
        _Partition(streams, matched, spread).match(records)
    matched.lost = [place for place in streams.all() if not place.taken]
    if matched.foreign:
        belongs = {content[1:]: content.topic for content in (*streams.places, *streams.uncovered)}
        matched.misrouted = [(one, home) for one in matched.foreign if (home := belongs.get(one.content[1:]))]
        matched.foreign = [one for one in matched.foreign if one.content[1:] not in belongs]
    return matched


class _Partition:
    """Matches one output partition, from its first record to its last."""

    def __init__(self, streams: Streams, matched: Matched, spread: Set[Content]) -> None:
        """``spread``: contents that occur in several output partitions."""
        self._streams = streams
        self._matched = matched
        self._spread = spread
        self._reached: dict[Lane, tuple[int, Visible]] = {}
        self._newest: tuple[int, Visible] | None = None
        self._chosen = False

    def match(self, records: Sequence[Visible]) -> None:
        for one in records:
            if (place := self._place(one)) is not None:
                place.taken = True
                self._matched.found.append((one, place))
                self._follow(one, place)
                self._compare(one, place)
            elif one.content in self._streams.uncovered:
                self._matched.undecided.append((one, self._streams.uncovered[one.content][0]))
            elif one.content in self._streams.places:
                self._matched.surplus.append(one)
            else:
                self._matched.foreign.append(one)

    def _place(self, one: Visible) -> DueRecord | None:
        free = [place for place in self._streams.places.get(one.content, ()) if not place.taken]
        if len(free) < 2:
            return free[0] if free else None
        lanes = {place.lane for place in free}
        if len(lanes) > 1 or one.content in self._spread:
            self._chosen = self._matched.choices = True
        ahead = [place for place in free if place.number > self._reached.get(place.lane, (-1,))[0]]
        return min(ahead or free, key=lambda place: place.number)

    def _follow(self, one: Visible, place: DueRecord) -> None:
        reached = self._reached.get(place.lane)
        if reached is not None and place.number < reached[0]:
            self._matched.inversions.append(Inversion(earlier=reached[1], later=one, chosen=self._chosen))
        else:
            self._reached[place.lane] = (place.number, one)

    def _compare(self, one: Visible, place: DueRecord) -> None:
        if not place.checkpoint:
            return
        if self._newest is not None and place.checkpoint < self._newest[0]:
            self._matched.early.append(Inversion(earlier=self._newest[1], later=one, chosen=self._chosen))
        else:
            self._newest = (place.checkpoint, one)
