"""Sets records aside in the task that writes: those for which the transform raises, and those that an output refuses.

Such a record goes to no output, and becomes a dead letter: so it is in exactly one place, and brought back later, it is
written to each output once. Runs on executors: the standard library, and pyarrow where batches are divided.

The search for a record at fault is the bisection of git, on one batch: https://git-scm.com/docs/git-bisect.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from onceward.connectors.slots import UnfitKind
from onceward.executor.letters import (
    PASSING,
    TRANSFORM,
    LetterRefusedError,
    Letters,
    LettersTo,
    Page,
    Reasons,
    Why,
    letter_refused,
    without_records,
)
from onceward.executor.per_record import PerRecord
from onceward.executor.slots import Routed, TaskSlots

if TYPE_CHECKING:
    import pyarrow as pa

    Batches: TypeAlias = Iterator[pa.RecordBatch]
    Made: TypeAlias = tuple[str, pa.RecordBatch, Sequence[int] | None]

__all__ = [
    "INPUT_COLUMN",
    "REASON_COLUMN",
    "ByColumn",
    "OfFunction",
    "RowByRow",
    "SettingAside",
    "TaskAside",
    "stateful",
]

INPUT_COLUMN = "onceward_input"
"""The column of a pass with the record of which each row is made."""
REASON_COLUMN = "onceward_reason"
"""The column of a pass that says why a DataFrame marks a row as a letter; null for all others."""


class Making(Protocol):
    """How a task makes what it writes of a batch. Pickled to executors."""

    def records(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the records that become letters: one for each row of ``batch``."""

    def made(self, batch: "pa.RecordBatch", page: Page, aside: "TaskAside") -> Routed:
        """Yield what is written of ``batch``; add the records that are not to ``page``."""


@dataclass(frozen=True, kw_only=True)
class SettingAside:
    """A router that sets records aside."""

    making: Making
    to: LettersTo

    def of(self, slots: TaskSlots) -> "TaskAside":
        """Return the router of one task, which writes to ``slots``."""
        return TaskAside(self, slots)


class TaskAside:
    """A router, and what it has set aside so far in this checkpoint."""

    def __init__(self, rule: SettingAside, slots: TaskSlots) -> None:
        self._making, self.to, self._slots = rule.making, rule.to, slots
        self._letters = Letters(rule.to, slots.task)

    @property
    def reasons(self) -> Reasons:
        return self._letters.reasons

    def __call__(self, batches: "Batches") -> Routed:
        if isinstance(self._making, OfFunction) and isinstance(self._making.function, Stateful):
            yield from self._making.route(self._making.function)(map(self._making.shown, batches))
            return
        for batch in batches:
            page = self._letters.page(self._making.records(batch))
            yield from self._making.made(batch, page, self)
            if (letters := page.close()) is not None:
                yield self.to.sink, self._taken(letters)

    def _taken(self, letters: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return ``letters`` as their sink takes them: those that it refuses without their records. Raises
        LetterRefusedError if it refuses these, too."""
        if self.to.sink not in self._slots.task.sinks:
            return letters
        refused = {one.row for one in self._slots.unfit(self.to.sink, letters, frozenset(UnfitKind))}
        if not refused:
            return letters
        bare = without_records(letters, refused)
        for one in self._slots.unfit(self.to.sink, bare, frozenset(UnfitKind)):
            raise LetterRefusedError(letter_refused(bare, one))
        return bare

    def refused(self, sink: str, batch: "pa.RecordBatch") -> Iterator[tuple[int, Why]]:
        """Yield the rows of ``batch`` that an output refuses, and why."""
        kinds = self.to.rules.of_outputs
        if kinds:
            for one in self._slots.unfit(sink, batch, kinds):
                yield one.row, Why(one.kind, one.reason, sink)

    def fitting(self, made: "Sequence[Made]", page: Page) -> Routed:
        """Yield of what is ``made`` the rows of records that no output refuses, and add the others to ``page``. Each
        batch has the rows of the records of which its own are made; None = of as many, in their order."""
        for sink, batch, rows in made:
            for row, why in self.refused(sink, batch):
                page.add(row if rows is None else int(rows[row]), why, partial(_columns, batch, row))
        aside = page.rows
        for sink, batch, rows in made:
            yield sink, _without(aside, batch, rows) if aside else batch


class Stateful:
    """See :func:`stateful`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, batches: "Batches") -> Iterator[Any]:
        made: Iterator[Any] = self._function(batches)
        return made


def stateful(function: "Callable[[Batches], Iterator[Any]]") -> "Callable[[Batches], Iterator[Any]]":
    """Say of a function on batches that it keeps a state from one batch to the next.

    A job with dead letters calls it once for all batches of a task, as every other job does, instead of once for each
    batch. If it raises, or an output refuses a record, the checkpoint fails: no record can be searched for without
    running others again.
    """
    return Stateful(function)


@dataclass(frozen=True)
class RowByRow:
    """Each row that the router makes is made of the record in the same place."""

    route: "Callable[[Batches], Routed]"

    def records(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        return batch

    def made(self, batch: "pa.RecordBatch", page: Page, aside: TaskAside) -> Routed:
        yield from aside.fitting([(sink, one, None) for sink, one in self.route(iter([batch]))], page)


@dataclass(frozen=True)
class OfFunction:
    """Runs a function on one batch at a time.

    A function that keeps a state between batches cannot be run so: what it has taken of earlier ones would be lost. One
    that says so runs once, as without dead letters.
    """

    function: Callable[..., Any]
    route: "Callable[[Callable[..., Any]], Callable[[Batches], Routed]]"
    """Makes a router of the function."""
    hidden: int = 0
    """The number of columns, the last ones of each batch, that letters keep and the function does not get."""

    def shown(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return what the function gets of a batch."""
        return batch.select(batch.schema.names[: -self.hidden]) if self.hidden else batch

    def records(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        return batch

    def made(self, batch: "pa.RecordBatch", page: Page, aside: TaskAside) -> Routed:
        shown = self.shown(batch)
        if isinstance(self.function, PerRecord):
            yield from self._each(self.function, shown, page, aside)
        else:
            yield from self._search(shown, page, aside)

    def _each(self, function: PerRecord, batch: "pa.RecordBatch", page: Page, aside: TaskAside) -> Routed:
        def raised(row: int, error: Exception) -> None:
            if TRANSFORM not in aside.to.rules.on:
                raise error
            page.add(row, Why.of(error))

        places: list[Sequence[int]] = []
        route = self.route(function.sparing(raised, places.append))
        # the places of a batch are known when it is yielded, and not before
        yield from aside.fitting([(sink, one, places[-1]) for sink, one in route(iter([batch]))], page)

    def _search(self, batch: "pa.RecordBatch", page: Page, aside: TaskAside) -> Routed:
        start, step, faults = 0, batch.num_rows, 0
        while start < batch.num_rows:
            end = min(start + step, batch.num_rows)
            made, why = self._tried(batch, start, end, aside)
            yield from made
            if why is None:
                start, step = end, 2 * step
                continue
            low, high, tried = start, end, (start, end)
            while high - low > 1:  # one of these records is the first at fault
                middle = (low + high) // 2
                made, failed = self._tried(batch, low, middle, aside)
                yield from made
                if failed is None:
                    low = middle
                else:
                    high, why, tried = middle, failed, (low, middle)
            if tried != (low, high):
                made, failed = self._tried(batch, low, high, aside)
                yield from made
                why = failed
            if why is not None:  # else it fails only beside other records
                page.add(low, why)
            start, faults = high, faults + 1
            if faults > 1:  # else each of many would cost a run of all that follow
                step = max(1, 2 * high // faults)

    def _tried(
        self, batch: "pa.RecordBatch", start: int, end: int, aside: TaskAside
    ) -> "tuple[Sequence[tuple[str, pa.RecordBatch]], Why | None]":
        """Run the function on some records: what it makes, or why one of them is set aside."""
        some = batch if end - start == batch.num_rows else batch.slice(start, end - start)
        try:
            made = list(self.route(self.function)(iter([some])))
        except PASSING:
            raise
        except Exception as error:
            if TRANSFORM not in aside.to.rules.on:
                raise
            return (), Why.of(error)
        for sink, one in made:
            for _, why in aside.refused(sink, one):
                return (), why
        return made, None


@dataclass(frozen=True)
class ByColumn:
    """Batches with a struct column for each sink, null where a record does not go there, :data:`REASON_COLUMN` and
    :data:`INPUT_COLUMN`."""

    def records(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        import pyarrow as pa

        if INPUT_COLUMN in batch.schema.names:
            return pa.RecordBatch.from_struct_array(batch.column(INPUT_COLUMN))
        return pa.RecordBatch.from_pydict({"": pa.nulls(batch.num_rows)})

    def made(self, batch: "pa.RecordBatch", page: Page, aside: TaskAside) -> Routed:
        import pyarrow as pa

        made: list[Made] = []
        for sink, column in zip(batch.schema.names, batch.columns, strict=True):
            if sink == INPUT_COLUMN or column.null_count == len(column):
                continue
            if sink == REASON_COLUMN:
                page.mark({row: why for row, why in enumerate(column.to_pylist()) if why is not None})
            else:
                rows = column.is_valid().to_numpy(zero_copy_only=False).nonzero()[0] if column.null_count else None
                made.append(
                    (sink, pa.RecordBatch.from_struct_array(column if rows is None else column.drop_null()), rows)
                )
        yield from aside.fitting(made, page)


def _columns(batch: "pa.RecordBatch", row: int) -> dict[str, Any]:
    (one,) = batch.slice(row, 1).to_pylist()
    return dict(one)


def _without(aside: frozenset[int], batch: "pa.RecordBatch", rows: Sequence[int] | None) -> "pa.RecordBatch":
    import pyarrow as pa

    kept = range(batch.num_rows) if rows is None else rows
    return batch.filter(pa.array([row not in aside for row in kept], pa.bool_()))
