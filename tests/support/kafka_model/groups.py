"""Committed offsets of consumer groups at one coordinator, including those of open transactions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onceward.connections.codes import ErrorCode
from tests.support.kafka_model.settings import Offset, Partition

__all__ = ["Groups"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Committed:
    offset: Offset
    at: float
    position: int
    """Position in the coordinator's log. Of two commits the later one counts, whenever its transaction ends."""


@dataclass(kw_only=True, slots=True)
class _Group:
    offsets: dict[Partition, _Committed] = field(default_factory=dict)
    pending: dict[int, dict[Partition, _Committed]] = field(default_factory=dict)
    """By producer id: the offsets that its open transaction commits."""


class Groups:
    """The groups of one partition of the offsets topic."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._open: dict[int, tuple[int, list[str]]] = {}
        """By producer with an open transaction here: its epoch, and the groups that it commits to."""
        self._position = 0

    def copy(self) -> "Groups":
        """A copy for a deposed coordinator to answer from."""
        same = Groups()
        same._groups = {
            name: _Group(
                offsets=dict(group.offsets), pending={pid: dict(found) for pid, found in group.pending.items()}
            )
            for name, group in self._groups.items()
        }
        return same

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        known = self._open.get(producer_id)
        return known is not None and known[0] == epoch

    def commit(self, group: str, offsets: Mapping[Partition, Offset], now: float) -> None:
        """Commit outside of transactions."""
        found = self._groups.setdefault(group, _Group())
        for partition, offset in offsets.items():
            found.offsets[partition] = self._numbered(offset, now)

    def commit_in_transaction(
        self, group: str, offsets: Mapping[Partition, Offset], producer_id: int, epoch: int, now: float
    ) -> None:
        """Keep offsets until the producer's marker arrives; its transaction coordinator has agreed."""
        _, groups = self._open.get(producer_id, (epoch, []))
        self._open[producer_id] = (epoch, groups)  # an earlier transaction without its marker is joined
        if group not in groups:
            groups.append(group)
        pending = self._groups.setdefault(group, _Group()).pending.setdefault(producer_id, {})
        for partition, offset in offsets.items():
            pending[partition] = self._numbered(offset, now)

    def mark(self, producer_id: int, *, commit: bool) -> None:
        """End the producer's transaction."""
        for name in self._open.pop(producer_id, (-1, []))[1]:
            group = self._groups.get(name)
            if group is None:
                continue
            for partition, committed in group.pending.pop(producer_id, {}).items():
                known = group.offsets.get(partition)
                if commit and (known is None or known.position < committed.position):
                    group.offsets[partition] = committed

    def fetch(
        self, group: str, partition: Partition, expired_before: float, *, stable: bool
    ) -> Offset | ErrorCode | None:
        """The committed offset; None if there is none; UNSTABLE_OFFSET_COMMIT if `stable` is set and an open
        transaction commits one. Offsets committed up to `expired_before` are gone."""
        found = self._groups.get(group)
        if found is None:
            return None
        waits = any(partition in pending for pending in found.pending.values())
        if stable and waits:
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
        committed = found.offsets.get(partition)
        if committed is None:
            return None
        if committed.at <= expired_before and not waits:
            del found.offsets[partition]
            return None
        return committed.offset

    def names(self) -> list[str]:
        return list(self._groups)

    def delete(self, group: str) -> ErrorCode:
        """Forget a group, including its pending offsets: the transaction's commit does not bring them back."""
        return ErrorCode.GROUP_ID_NOT_FOUND if self._groups.pop(group, None) is None else ErrorCode.NONE

    def delete_topic(self, topic: str) -> None:
        for group in self._groups.values():
            for offsets in (group.offsets, *group.pending.values()):
                for partition in [partition for partition in offsets if partition[0] == topic]:
                    del offsets[partition]

    def _numbered(self, offset: Offset, now: float) -> _Committed:
        self._position += 1
        return _Committed(offset=offset, at=now, position=self._position)
