"""Writes a slot: hands a sink's writer the batches, one after the other. Runs on executors: standard library only."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from onceward.connectors.slots import AnnouncingSlot, SlotContext, SlotWriter
from onceward.connectors.tasks import Vote

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["write_slot"]


def write_slot(
    writer: SlotWriter,
    context: SlotContext,
    batches: "Iterator[pa.RecordBatch]",
    announced: Callable[[Vote], object] | None = None,
) -> Vote:
    """Write ``batches`` and return the vote. On any error, also one of ``batches``, abandon the slot.

    ``announced``: called with the vote to come, before the slot finishes, if the slot announces one.
    """
    slot = writer.open(context)
    try:
        for batch in batches:
            slot.write(batch)
        if announced is not None and isinstance(slot, AnnouncingSlot) and (coming := slot.announce()) is not None:
            announced(coming)
        return slot.finish()
    except BaseException:
        slot.abandon()
        raise
