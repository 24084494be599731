"""Whether a log still holds the records that were read from it, by leader epochs (KIP-320). Pure.

Each election gives a partition's leader a higher epoch, and the leader stamps it on every record that it appends. So an
offset and its epoch identify one record and all records before it. A log that lost its end, in an unclean election or
with a disk that lost power, and then grew again, has a different epoch there.

A position keeps the epoch of the record before it. A leader returns where an epoch ends in its log
(OffsetForLeaderEpoch). If that epoch is missing, or ends before the position, the log is not the one that was read.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from onceward.common.errors import HaltedError
from onceward.sources.kafka.positions import Cursor, Partition

__all__ = [
    "AskEnds",
    "Asked",
    "Difference",
    "EpochEnd",
    "Lineage",
    "Unknown",
    "difference",
    "lineages",
    "refuse_differences",
]


class Asked(NamedTuple):
    leader: int
    """Epoch of the leader that may answer: a leader with another epoch has another log."""
    epoch: int
    """The epoch whose end is requested."""


class EpochEnd(NamedTuple):
    """The highest epoch of a log that is not above the requested one, and the first offset with a higher epoch."""

    epoch: int
    offset: int


AskEnds: TypeAlias = Callable[[Mapping[Partition, Asked]], Mapping[Partition, EpochEnd]]
"""Returns epoch ends; omits partitions whose leader is unavailable or has another epoch."""


class Lineage(NamedTuple):
    """The epochs of a log's newer records."""

    leader: int
    """The leader's epoch. While it is unchanged, the log only grows."""
    starts: tuple[tuple[int, int], ...] = ()
    """First offset and epoch, for each epoch, ascending."""

    def before(self, offset: int, older: int | None) -> int | None:
        """Return the epoch of the record before ``offset``; ``older`` if none of the epochs begins before it."""
        begun = bisect_left(self.starts, (offset,))
        return self.starts[begun - 1][1] if begun else older


class Unknown(NamedTuple):
    """Records whose lineage is wanted."""

    leader: int
    """Epoch of the leader."""
    offset: int
    """The first record's offset."""
    older: int | None = None
    """Epoch of the record before it; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A log that is not the one that was read."""

    partition: Partition
    position: int
    epoch: int
    """Epoch of the record before the position, when it was read."""
    offset: int
    """First offset at which the log differs."""
    exact: bool
    """False: the log may differ from an earlier offset."""

    def __str__(self) -> str:
        return (
            f"{self.partition} was read up to offset {self.position} (leader epoch {self.epoch}), but its log differs "
            f"from offset {self.offset}{'' if self.exact else ', or an earlier one,'} on: "
            f"{self.position - self.offset} offsets [{self.offset}, {self.position}) that were read are gone, and "
            "their replacements were never read"
        )


def difference(partition: Partition, cursor: Cursor, end: EpochEnd) -> Difference | None:
    """Compare the end of the cursor's epoch; None if the log is the one that was read, or the epoch is unknown."""
    if cursor.epoch is None or (end.epoch == cursor.epoch and end.offset >= cursor.next):
        return None
    return Difference(
        partition=partition,
        position=cursor.next,
        epoch=cursor.epoch,
        # A missing epoch proves at least that the record before the position is a different one.
        offset=min(end.offset, cursor.next - 1),
        exact=end.epoch == cursor.epoch,
    )


def refuse_differences(differences: Collection[Difference]) -> None:
    """Raise HaltedError naming all of them."""
    if not differences:
        return
    first = min(differences, key=lambda one: one.partition)
    raise HaltedError(
        f"Input was replaced: {'; '.join(str(one) for one in sorted(differences, key=lambda one: one.partition))}. A "
        "broker without the newest records became leader (an unclean election), or lost the end of its log (power, an "
        "old copy of a disk). Nothing was read from there. Decide for each partition: to give up what stands before "
        f"the position now and go on there, onceward resolve JOB --skip-input {first.partition.topic}:"
        f"{first.partition.number} --to {first.position} --reason 'NAME: REASON'; to read it, start a job under "
        "another name with start= at the offset from which the log differs, and at the positions of the other "
        "partitions."
    )


def lineages(wanted: Mapping[Partition, Unknown], ask: AskEnds) -> dict[Partition, Lineage]:
    """Return the epochs of all records from the given offsets on. They are found from the newest down: each begins
    where the next lower one ends. Omits partitions without an answer."""
    starts: dict[Partition, list[tuple[int, int]]] = {partition: [] for partition in wanted}
    found: set[Partition] = set()
    sought = {partition: each.leader for partition, each in wanted.items()}
    while sought:
        lowest = {p: EpochEnd(-1, 0) for p, epoch in sought.items() if epoch == 0}
        ends = ask({p: Asked(wanted[p].leader, epoch - 1) for p, epoch in sought.items() if epoch > 0})
        below = {}
        for partition, end in {**lowest, **ends}.items():
            begun, (_, offset, older) = starts[partition], wanted[partition]
            # An epoch without records begins where the next one does: the log holds no older epoch.
            if not begun or end.offset < begun[-1][0]:
                begun.append((end.offset, sought[partition]))
                if end.offset > offset and end.epoch > (-1 if older is None else older):
                    below[partition] = end.epoch
                    continue
            found.add(partition)
        sought = below
    return {p: Lineage(wanted[p].leader, tuple(reversed(starts[p]))) for p in found}
