"""Writes a slot of each sink: hands their writers the batches of one task. Runs on executors: standard library only."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from onceward.connectors.slots import AnnouncingSlot, CheckingSlot, OpenSlot, SlotContext, SlotWriter, Unfit
from onceward.connectors.tasks import Ballot, CheckpointTask, Vote

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Attempt", "Routed", "TaskSlots"]

Routed: TypeAlias = "Iterator[tuple[str, pa.RecordBatch]]"
"""Batches, each with the name of the sink that gets it."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt of one task: it writes the same slot of every sink."""

    task: CheckpointTask
    slot: int
    number: int
    """Unique in the Spark application."""

    def at(self, sink: str) -> SlotContext:
        return SlotContext(task=self.task, sink=sink, slot=self.slot, attempt=self.number)


class TaskSlots:
    """The slots of one task, and what it asks of them."""

    def __init__(self, writers: Mapping[str, SlotWriter], attempt: Attempt) -> None:
        self._writers, self._attempt = writers, attempt
        self._open: dict[str, OpenSlot] = {}
        self._asked: dict[str, OpenSlot] = {}
        """Of sinks that this task does not write to, as when one of several outputs is written again."""
        self._checking: dict[str, CheckingSlot | None] = {}
        """Those that look for what they cannot write. To ask a slot each time would cost 50 µs."""

    @property
    def task(self) -> CheckpointTask:
        return self._attempt.task

    def unfit(self, sink: str, batch: "pa.RecordBatch", kinds: Collection[str]) -> Iterator[Unfit]:
        """Yield the records of ``batch`` that ``sink`` cannot write, for one of ``kinds``. See
        :meth:`CheckingSlot.unfit`."""
        if sink not in self._checking:
            slot = self._open.get(sink)
            if slot is None:
                slot = self._asked[sink] = self._writers[sink].open(self._attempt.at(sink))
            self._checking[sink] = slot if isinstance(slot, CheckingSlot) else None
        if (checking := self._checking[sink]) is not None:
            yield from (one for one in checking.unfit(batch) if one.kind in kinds)

    def write(self, batches: Routed, announced: Callable[[Ballot], object] | None = None) -> Ballot:
        """Write ``batches`` to the sinks of the task; drop those for other sinks. On any error, also one of
        ``batches``, abandon every slot that has not finished: the driver sweeps the others.

        ``announced``: called with the ballot to come, before the last slot finishes, if a slot announces its vote.
        """
        slots, votes = self._open, dict[str, Vote]()
        try:
            for sink in self.task.sinks:
                slots[sink] = self._writers[sink].open(self._attempt.at(sink))
            for sink, batch in batches:
                if (slot := slots.get(sink)) is not None:
                    slot.write(batch)
            if announced is not None and (coming := _coming(slots)):
                for sink, slot in slots.items():
                    if sink not in coming:
                        votes[sink] = slot.finish()
                announced(Ballot({sink: coming.get(sink) or votes[sink] for sink in slots}))
            for sink, slot in slots.items():
                if sink not in votes:
                    votes[sink] = slot.finish()
        finally:
            for sink, slot in (*slots.items(), *self._asked.items()):
                if sink not in votes:
                    slot.abandon()
        return Ballot({sink: votes[sink] for sink in slots})


def _coming(slots: Mapping[str, OpenSlot]) -> Mapping[str, Vote]:
    """Return the votes that slots announce."""
    announced = {sink: slot.announce() for sink, slot in slots.items() if isinstance(slot, AnnouncingSlot)}
    return {sink: vote for sink, vote in announced.items() if vote is not None}
