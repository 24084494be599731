"""How a task writes its slot: a sink's writer opens the slot, the task hands it batches, and finishes or abandons it.

Imported on executors: standard library only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from onceward.connectors.tasks import CheckpointTask, Vote

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "AnnouncingSlot",
    "CheckingSlot",
    "Library",
    "NeedsLibraries",
    "OpenSlot",
    "SlotContext",
    "SlotWriter",
    "StayingWriter",
    "Unfit",
    "UnfitKind",
    "at_fault",
]


@dataclass(frozen=True, kw_only=True)
class SlotContext:
    """What a writer knows of one attempt to write a slot of its sink."""

    task: CheckpointTask
    """Its ``checkpoint`` is known to a staying task only once the batches have ended: at ``announce`` or ``finish``."""
    sink: str
    """The sink participant's name."""
    slot: int
    attempt: int
    """Unique in the Spark application."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The options for the sink's writers. See :meth:`ReusesIds.offer`."""
        return self.task.sinks[self.sink]


@dataclass(frozen=True)
class Library:
    """A library that executors must have."""

    module: str
    """What is imported, such as ``psycopg``. It has a ``__version__``."""
    least: str
    """The oldest version that will do."""
    package: str
    """What to install, such as ``onceward[postgres-sink]``."""


@runtime_checkable
class NeedsLibraries(Protocol):
    """A writer, or a reader, that needs more than the standard library and pyarrow: the job is refused before anything
    is read if an executor lacks it."""

    @property
    def libraries(self) -> Sequence[Library]:
        """Asked on the driver."""


class OpenSlot(Protocol):
    """A slot that is being written, by one thread. The task calls :meth:`write` for each batch, then :meth:`finish`."""

    def write(self, batch: "pa.RecordBatch") -> None:
        """Write ``batch``, now or with those that follow. Memory stays bounded."""

    def finish(self) -> Vote:
        """Deliver everything and vote. Raises when anything was not delivered."""

    def abandon(self) -> None:
        """Undo what was written, as far as possible: the source, the transform or a call of this slot has raised. Must
        not raise, because the cause is reported. The driver sweeps what stays."""


@runtime_checkable
class AnnouncingSlot(OpenSlot, Protocol):
    """A slot that knows its vote before everything is delivered: :meth:`SinkSession.pre_commit` then runs meanwhile."""

    def announce(self) -> Vote | None:
        """Return the vote that :meth:`finish` will return; None if there is nothing to wait for. A staying task calls
        this once, after the last batch."""


class UnfitKind(StrEnum):
    """Why a sink cannot write a record, as ``DeadLetters(on=)`` names it."""

    TOO_LARGE = "too_large"
    SCHEMA = "schema"
    """A value does not fit its column."""
    REFUSED = "refused"
    """Anything else that the system refuses each time, such as what breaks a constraint."""


@dataclass(frozen=True, kw_only=True)
class Unfit:
    """A record that a sink cannot write, and could not if it tried again."""

    row: int
    """In its batch."""
    kind: UnfitKind
    reason: str
    """For people; it may quote the record."""


@runtime_checkable
class CheckingSlot(OpenSlot, Protocol):
    """A slot that finds the records that it cannot write before it writes any of their batch: a job with dead letters
    then sets them aside. Without it, such a record makes :meth:`write` raise, and the checkpoint fails."""

    def unfit(self, batch: "pa.RecordBatch") -> Iterable[Unfit]:
        """Return the records of ``batch`` that :meth:`write` would refuse; write nothing. The same again for the same
        records, whatever stands beside them.

        :meth:`write` follows with ``batch`` itself, with some of its records, or not at all: another output may refuse
        them, and a slot may be opened for this alone and abandoned. Raises what says nothing of a record, such as a
        lost connection.
        """


def at_fault(batch: "pa.RecordBatch", fault: "Callable[[pa.RecordBatch], str | None]") -> Iterator[tuple[int, str]]:
    """Yield the rows of ``batch`` that are wrong, and why, for a slot that can only try: ``fault`` says what is wrong
    with some records, None if nothing is. They are searched for by halves, which it must judge alike."""
    if (found := fault(batch)) is None:
        return
    middle = batch.num_rows // 2
    if not middle:
        yield 0, found
        return
    yield from at_fault(batch.slice(0, middle), fault)
    yield from ((middle + row, why) for row, why in at_fault(batch.slice(middle), fault))


class SlotWriter(Protocol):
    """Opens slots. It is pickled and runs on executors."""

    def open(self, context: SlotContext) -> OpenSlot:
        """Open a slot. Raises when it cannot be written."""


class StayingWriter(SlotWriter, Protocol):
    """A writer that a staying task can use for one checkpoint after the other."""

    def mark(self, task: CheckpointTask, sink: str) -> str:
        """Return what distinguishes this process's transactions from all others; empty without transactions."""
