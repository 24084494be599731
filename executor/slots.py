"""Writes a slot of each sink: hands their writers the batches of one task. Runs on executors: standard library only."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from onceward.connectors.slots import AnnouncingSlot, OpenSlot, SlotContext, SlotWriter
from onceward.connectors.tasks import Ballot, CheckpointTask, Vote

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Attempt", "Routed", "write_slots"]

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


def write_slots(
    writers: Mapping[str, SlotWriter],
    attempt: Attempt,
    batches: Routed,
    announced: Callable[[Ballot], object] | None = None,
) -> Ballot:
    """Write ``batches`` to the sinks of the task; drop those for other sinks. On any error, also one of ``batches``,
    abandon every slot that has not finished: the driver sweeps the others.

    ``announced``: called with the ballot to come, before the last slot finishes, if a slot announces its vote.
    """
    slots: dict[str, OpenSlot] = {}
    votes: dict[str, Vote] = {}
    try:
        for sink in attempt.task.sinks:
            slots[sink] = writers[sink].open(attempt.at(sink))
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
    except BaseException:
        for sink, slot in slots.items():
            if sink not in votes:
                slot.abandon()
        raise
    return Ballot({sink: votes[sink] for sink in slots})


def _coming(slots: Mapping[str, OpenSlot]) -> Mapping[str, Vote]:
    """Return the votes that slots announce."""
    announced = {sink: slot.announce() for sink, slot in slots.items() if isinstance(slot, AnnouncingSlot)}
    return {sink: vote for sink, vote in announced.items() if vote is not None}
