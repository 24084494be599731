"""Compare a table whose rows are replaced by key: of all records of a key, the last one counts.

The last record of a key is known if all of them come from one input partition. Else the last one is any partition's
last: what is visible must be one of these, and the keys are counted as unordered.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from onceward.operate.verify.external_sort import COVERED, REPEATED, Differing, Entry, ExternalSort, Record, Side
from onceward.operate.verify.history import Content

__all__ = ["LastRows", "Rows"]

_DELETED = 8
"""The record deletes the row of its key."""


class Rows(ExternalSort):
    """Rows of a table, as records (table, None, row)."""

    def content(self, entry: Entry) -> Content:
        """See :meth:`ExternalSort.content`. A row has no key beside its columns."""
        topic, _, value = super().content(entry)
        return Content(topic, "", value)


class LastRows(Rows):
    """Records (table, key, row). A row that is None is a deletion; it is never visible."""

    def add(self, side: Side, record: Record, *, lane: int, offset: int, flags: int = COVERED) -> None:
        """See :meth:`ExternalSort.add`."""
        super().add(side, record, lane=lane, offset=offset, flags=flags | (_DELETED if record[2] is None else 0))

    def compare(self) -> Iterator[Differing]:
        """See :meth:`ExternalSort.compare`. Counts as expected the keys that must have a row."""
        self.counts[Side.EXPECTED] = 0
        yield from super().compare()

    def differences(self, expected: list[Entry], visible: list[Entry]) -> Iterator[Differing]:
        """See :meth:`ExternalSort.differences`."""
        keys: dict[bytes, _Key] = {}
        for entry in expected:
            key = keys.setdefault(entry.group, _Key())
            (key.covered if entry.flags & COVERED else key.uncovered).append(entry)
        for entry in visible:
            keys.setdefault(entry.group, _Key()).visible.append(entry)
        for key in keys.values():
            lasts = key.lasts()
            self.counts[Side.EXPECTED] += any(not one.flags & _DELETED for one in lasts)
            self.unordered += len(lasts) > 1
            if not (any(map(key.shows, lasts)) if lasts else key.shows(None)):
                self.differing += 1
                yield Differing(expected=[*key.judged(), *key.uncovered], visible=key.visible)


@dataclass
class _Key:
    """All records of one key, each side in reading order."""

    covered: list[Entry] = field(default_factory=list)
    uncovered: list[Entry] = field(default_factory=list)
    visible: list[Entry] = field(default_factory=list)

    def lasts(self) -> list[Entry]:
        """The records of which one is the last; none if no checkpoint covers the key."""
        by_partition = {one.lane: one for one in self.covered}
        return list({one.content: one for one in by_partition.values()}.values())

    def shows(self, last: Entry | None) -> bool:
        """Whether exactly the row of ``last`` is visible."""
        wanted = [] if last is None or last.flags & _DELETED else [last.content]
        return [one.content for one in self.visible] == wanted

    def judged(self) -> list[Entry]:
        """What the judge must see: the last record; if it is not visible, the former ones that are, too, so that only
        the last one is missing."""
        if not self.covered:
            return []
        last = self.covered[-1]._replace(flags=COVERED)
        seen = {one.content for one in self.visible}
        if last.content in seen:
            return [last]
        former = {one.content: one._replace(flags=one.flags & ~REPEATED) for one in self.covered if one.content in seen}
        return [*former.values(), last]
