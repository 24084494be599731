"""Write a slot of one sink, as a task does."""

from collections.abc import Callable, Iterable
from typing import Any

from onceward.connectors.slots import SlotWriter
from onceward.connectors.tasks import Ballot, Vote
from onceward.executor.slots import Attempt, TaskSlots

__all__ = ["write_slot"]


def write_slot(
    writer: SlotWriter, attempt: Attempt, batches: Iterable[Any], announced: Callable[[Vote], object] | None = None
) -> Vote:
    """Write ``batches`` to the only sink of the task and return the vote."""
    (sink,) = attempt.task.sinks

    def to_come(ballot: Ballot) -> None:
        assert announced is not None
        announced(ballot.votes[sink])

    routed = ((sink, batch) for batch in batches)
    return TaskSlots({sink: writer}, attempt).write(routed, None if announced is None else to_come).votes[sink]
