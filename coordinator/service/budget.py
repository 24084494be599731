"""Bounds the total size of one checkpoint before it is decided, because the contributions of all participants go into
one grant, of all that the store keeps of its job, and of what the checkpoints of all jobs take in memory.

In memory are the newest completed checkpoint of each job, and the acknowledgements of its undecided one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from onceward.coordinator.service.memory import usable_memory
from onceward.protocol.encoded import text_size
from onceward.protocol.events import Acknowledge, Amend, Event
from onceward.protocol.state import JobState
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    CompletedCheckpoint,
    Generation,
    JobName,
    JsonObject,
    ParticipantName,
    Snapshot,
)
from onceward.wire.limits import MAX_CHECKPOINT_BYTES, MAX_KEPT_BYTES, MAX_RESPONSE_BYTES

__all__ = ["Budget"]

_FRAME = 64 * 1024
"""Reserved for everything else in a grant."""


_OF_A_SLOT = 250
"""Bytes of the objects around a slot's text."""
_PART_OF_MEMORY = 2
"""Checkpoints may take half of the bytes that the process may use. Requests, grants and rows take the rest."""
_TIMES_WHAT_IS_LEFT = 4
"""How much one may hold: so often what is then left for all others. One alone gets four fifths, two get four ninths
each, and there is always something for one more."""
_SMALL = 8 * 1024
"""A checkpoint up to this size is always taken, so that small jobs go on whatever large ones hold."""


@dataclass(kw_only=True)
class _Held:
    """What is in memory of one job."""

    holder: str
    """The peer for which it counts; the job itself where peers have no names, or after a restart."""
    completed: tuple[CheckpointId, int] = (NO_CHECKPOINT, 0)
    """The newest one, and its amendment."""
    kept: int = 0
    """Its bytes."""
    generation: Generation | None = None
    checkpoint: CheckpointId = NO_CHECKPOINT
    """The undecided one."""
    sizes: dict[ParticipantName, int] = field(default_factory=dict)
    """Of its acknowledgements, as received over the wire."""
    slots: dict[ParticipantName, int] = field(default_factory=dict)

    @property
    def undecided(self) -> int:
        return sum(self.sizes.values()) + _OF_A_SLOT * sum(self.slots.values())

    @property
    def bytes(self) -> int:
        return self.kept + self.undecided


class Budget:
    """What the checkpoints of all jobs take.

    :param memory: how many bytes the process may use.
    :param calling: the name of the calling peer; empty if peers have no names.
    """

    def __init__(self, memory: int | None = None, calling: Callable[[], str] = lambda: "") -> None:
        self._most = (usable_memory() if memory is None else memory) // _PART_OF_MEMORY
        self._calling = calling
        self._jobs: dict[JobName, _Held] = {}
        self._by_holder: Counter[str] = Counter()
        self._total = 0

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

    def follow(self, state: JobState) -> None:
        """Count what the job holds now: call it with each state that an event led to, and with those of the store."""
        job, completed, pending = state.durable.job, state.durable.completed, state.durable.pending
        held = self._jobs.get(job)
        if held is None:
            if completed is None:
                return
            held = self._jobs[job] = _Held(holder=f"job {job}")
        newest = (completed.id, completed.amendment) if completed is not None else (NO_CHECKPOINT, 0)
        decided = pending is None or (held.generation, held.checkpoint) != (state.durable.generation, pending.id)
        if newest == held.completed and not decided:
            return
        before = held.bytes
        if newest != held.completed:
            mine = newest == (held.checkpoint, 0)
            held.kept = 0 if completed is None else held.undecided if mine else _cost(completed)
            held.completed = newest
        if decided:
            held.sizes, held.slots = {}, {}
        self._count(held.holder, held.bytes - before)
        if completed is None and pending is None:
            del self._jobs[job]

    def _count(self, holder: str, more: int) -> None:
        self._total += more
        self._by_holder[holder] += more
        if not self._by_holder[holder]:
            del self._by_holder[holder]

    def _acknowledge(self, state: JobState, event: Acknowledge, size: int) -> str | None:
        durable = state.durable
        if durable.pending is None or (durable.generation, durable.pending.id) != (event.generation, event.checkpoint):
            return None
        job, peer = durable.job, self._calling()
        holder = f"peer {peer}" if peer else f"job {job}"
        held = self._jobs.setdefault(job, _Held(holder=holder))
        if (held.generation, held.checkpoint) != (event.generation, event.checkpoint):  # of an earlier one
            self._count(held.holder, -held.undecided)
            held.sizes, held.slots = {}, {}
            held.generation, held.checkpoint = event.generation, event.checkpoint
        sizes = {**held.sizes, event.participant: size}
        total = sum(sizes.values())
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
        slots = {**held.slots, event.participant: len(event.snapshot.committables)}
        undecided = total + _OF_A_SLOT * sum(slots.values())
        own = self._by_holder[holder] + held.kept + undecided - (held.bytes if held.holder == holder else 0)
        left = self._most - self._total - (undecided - held.undecided)
        if undecided > _SMALL and own > _TIMES_WHAT_IS_LEFT * left:
            return (
                f"checkpoint {event.checkpoint} needs {undecided} bytes of the coordinator's memory; {holder} would "
                f"then hold {own} of the {self._most} that the checkpoints of all jobs may take there, more than "
                f"{_TIMES_WHAT_IS_LEFT} times the {max(left, 0)} that would be left for others. The checkpoint is not "
                "taken, its records are read again, and none is lost. Use fewer slots, move jobs to another "
                "coordinator, or give this one more memory (checkpoints may take half of it)"
            )
        if any(participant.name == event.participant for participant in durable.participants):
            self._count(held.holder, -held.bytes)
            held.holder, held.sizes, held.slots = holder, sizes, slots
            self._count(holder, held.bytes)
        return None


def _cost(completed: CompletedCheckpoint) -> int:
    """About what it takes in memory."""
    snapshots = completed.snapshots.values()
    texts = sum(text_size(bodies) for one in snapshots for bodies in _bodies(one))
    return texts + _OF_A_SLOT * sum(len(one.committables) for one in snapshots)


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
    for document in (snapshot.positions, snapshot.state):
        if document is not None:
            yield [document.body]
    yield [committable.document.body for committable in snapshot.committables]
