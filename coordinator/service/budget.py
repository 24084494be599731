"""Bounds the total size of one checkpoint before it is decided, because the contributions of all participants go into
one grant, and of all that the store keeps of its job."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onceward.coordinator.protocol.encoded import text_size
from onceward.coordinator.protocol.events import Acknowledge, Amend, Event
from onceward.coordinator.protocol.state import JobState
from onceward.coordinator.protocol.values import (
    CheckpointId,
    Generation,
    JobName,
    JsonObject,
    ParticipantName,
    Snapshot,
)
from onceward.coordinator.wire.limits import MAX_CHECKPOINT_BYTES, MAX_KEPT_BYTES, MAX_RESPONSE_BYTES

__all__ = ["Budget"]

_FRAME = 64 * 1024
"""Reserved for everything else in a grant."""


@dataclass(kw_only=True)
class _Spent:
    generation: Generation
    checkpoint: CheckpointId
    sizes: dict[ParticipantName, int] = field(default_factory=dict)


class Budget:
    """Sizes of the acknowledgements of each job's undecided checkpoint, as received over the wire."""

    def __init__(self) -> None:
        self._spent: dict[JobName, _Spent] = {}

    def problem(self, state: JobState, event: Event, size: int) -> str | None:
        """Why a request of ``size`` bytes must be rejected; None when there is room, or when the protocol rejects it
        anyway."""
        match event:
            case Acknowledge():
                return self._acknowledge(state, event, size)
            case Amend():
                return _amend(state, event, size)
            case _:
                return None

    def _acknowledge(self, state: JobState, event: Acknowledge, size: int) -> str | None:
        durable = state.durable
        if durable.pending is None or (durable.generation, durable.pending.id) != (event.generation, event.checkpoint):
            return None
        spent = self._spent.get(durable.job)
        if spent is None or (spent.generation, spent.checkpoint) != (event.generation, event.checkpoint):
            spent = self._spent[durable.job] = _Spent(generation=event.generation, checkpoint=event.checkpoint)
        total = size + sum(other for name, other in spent.sizes.items() if name != event.participant)
        if total > MAX_CHECKPOINT_BYTES:
            return (
                f"with the other participants' contributions checkpoint {event.checkpoint} would take {total} bytes, "
                f"at most {MAX_CHECKPOINT_BYTES} are kept. Use fewer or larger slots, or smaller documents"
            )
        if (kept := total * durable.settings.num_retained) > MAX_KEPT_BYTES:
            return (
                f"{durable.settings.num_retained} checkpoints (num_retained) like checkpoint {event.checkpoint}, of "
                f"{total} bytes, would take {kept} bytes, at most {MAX_KEPT_BYTES} of a job are kept. Lower "
                "num_retained, and keep older ones as savepoints"
            )
        if any(participant.name == event.participant for participant in durable.participants):
            spent.sizes[event.participant] = size
        return None


def _amend(state: JobState, event: Amend, size: int) -> str | None:
    completed = state.durable.completed
    if completed is None or completed.id != event.checkpoint:
        return None
    parts = [one for snapshot in completed.snapshots.values() for one in _bodies(snapshot)]
    total = sum(map(text_size, parts)) + size
    if total <= MAX_RESPONSE_BYTES - _FRAME:
        return None
    return f"with the committables written again checkpoint {completed.id} would take {total} bytes: no grant holds it"


def _bodies(snapshot: Snapshot) -> Iterator[Sequence[JsonObject]]:
    """The bodies that are sent together."""
    if snapshot.positions is not None:
        yield [snapshot.positions.body]
    yield [committable.document.body for committable in snapshot.committables]
