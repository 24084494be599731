"""The functions that Spark runs on executors. They are pickled by reference, so executors must have this module.

Each task reads its checkpoint from a local property, not from its closure: one DataFrame serves all checkpoints.
"""

import gc
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onceward.common.errors import ConfigurationError, HaltedError, OncewardError
from onceward.connectors.slots import SlotWriter
from onceward.connectors.tasks import TASK_PROPERTY, Ballot, CheckpointTask, Digest, Postponed
from onceward.executor.aside import SettingAside
from onceward.executor.letters import LetterRefusedError, Retry, TooManyLettersError
from onceward.executor.slots import Attempt, Routed, TaskSlots
from onceward.executor.timings import Stopwatch, Timed

if TYPE_CHECKING:
    import pyarrow as pa

Batches: TypeAlias = "Iterator[pa.RecordBatch]"
BatchesTransform: TypeAlias = Callable[["Batches"], "Batches"]
"""Maps the source's batches of one split to the batches to write.

Called once per task, with an empty iterator for a split without records; may yield any number of batches. A split may
hold ranges of several partitions: the partitions may interleave, and a batch of a task that stays may hold several.
"""
RoutedTransform: TypeAlias = Callable[["Batches"], Routed]
"""The same for a job with several outputs: yields pairs of an output's name and a batch to write there."""
Router: TypeAlias = Callable[["Batches"], Routed]
"""What decides in a task which sink gets which batch."""

_T = TypeVar("_T")
FusedTask: TypeAlias = Callable[[Iterable[int]], Iterable[str]]

BALLOT_SCHEMA = "ballot string"
DIGEST_SCHEMA = "digest string"
DIGEST_COLUMN = "onceward_digest"
"""A 64-bit hash of each record."""
PARTITION_COLUMN = "onceward_partition"
"""The number of the Spark partition that each record comes from: a slot may hold several."""
READER_NAME = "onceward_read"
"""The reader's name in Spark's plans; the plan checks look for it."""

_MARK = "onceward-unusable"
_HALT = "onceward-halt"
_MARKED = re.compile(rf"<({_MARK}|{_HALT}) (\"[^<>]*\")>")


def reading(read: Any, held: Callable[[float], object] | None = None) -> BatchesTransform:
    """Return the reader task: it maps rows of split numbers to the batches that ``read`` yields for those splits.

    ``held``: gets the seconds for which the reader was held back, as it reports them; the vote comes from another
    process.
    """

    def onceward_read(numbers: Batches) -> Batches:
        task = _current().task
        columns = frozenset(task.columns)
        held_back = _held_back(read)
        for number in _drained(numbers):
            yield from read(task.splits[number], columns)
        if held is not None and (seconds := held_back()):
            held(seconds)
        _warmed_up()

    return onceward_read


def route_to(sinks: Iterable[str]) -> Router:
    """Return the router of what a pass yields: its records, or a column of them for each sink."""
    first, *others = sinks
    return onceward_by_column if others else to_one(first)


def writing(writers: Mapping[str, SlotWriter], transform: Router | SettingAside) -> BatchesTransform:
    """Return the writer task: it writes one slot of each sink and returns its ballot as the only row."""

    def onceward_write(batches: Batches) -> Batches:
        clock = Stopwatch()
        slots = TaskSlots(writers, _current())
        route, letters = for_task(transform, slots)
        made = Timed(route(batches))
        ballot = letters(_written(slots, made))
        _warmed_up()
        yield _row(ballot.measured(clock.steps(slots.task.submitted, made, None)))

    return onceward_write


def digesting(writers: Mapping[str, SlotWriter], transform: Router | SettingAside) -> BatchesTransform:
    """Return the writer task of a batch that may have to run again: its votes have the digests of its records.

    The last two columns of the batches are :data:`DIGEST_COLUMN` and :data:`PARTITION_COLUMN`, which are not written. A
    task whose split has digests is a replay of one slot: it gets the whole batch, evaluates it, so that its state is
    written, and writes only the records of the slot's partitions.
    """

    def onceward_write_digested(batches: Batches) -> Batches:
        clock = Stopwatch()
        slots = TaskSlots(writers, _current())
        digested = _Digested(batches, only=slots.task.splits[0].get("digests"))
        route, letters = for_task(transform, slots)
        made = Timed(route(iter(digested)))
        votes = letters(_written(slots, made)).votes
        _warmed_up()
        digests = {partition: str(digest) for partition, digest in digested.digests.items()}
        ballot = Ballot({sink: replace(vote, digests=digests) for sink, vote in votes.items()})
        yield _row(ballot.measured(clock.steps(slots.task.submitted, made, None)))

    return onceward_write_digested


def onceward_digest(batches: Batches) -> Batches:
    """Drain a slot, which writes its state, and return the digest of its records as the only row."""
    import pyarrow as pa

    digested = _Digested(batches)
    for _ in digested:
        pass
    yield pa.RecordBatch.from_pydict({"digest": [str(sum(digested.digests.values(), Digest()))]})


def fusing(
    read: Any, writers: Mapping[str, SlotWriter], transform: Router | SettingAside, columns: Iterable[str]
) -> FusedTask:
    """Return a task that reads, transforms and writes in one worker process, without passing records through the JVM.

    It maps split numbers to the ballot, or to what is postponed. ``columns`` are the source's columns that
    ``transform`` uses.
    """
    used = frozenset(columns)

    def onceward_fused(numbers: Iterable[int]) -> Iterator[str]:
        clock = Stopwatch()
        slots = TaskSlots(writers, _current())
        task = slots.task
        held_back = _held_back(read)
        # take all numbers first: Spark reuses a worker process only if its task has drained the input
        batches = Timed(batch for number in list(numbers) for batch in read(task.splits[number], used))
        route, letters = for_task(transform, slots)
        made = Timed(route(batches))
        try:
            ballot = letters(_written(slots, made))
        except Retry as later:
            yield Postponed(str(later), later.after).to_json()
            return
        _warmed_up()
        yield ballot.measured(clock.steps(task.submitted, made, batches), held_back()).to_json()

    return onceward_fused


def for_task(transform: Router | SettingAside, slots: TaskSlots) -> tuple[Router, Callable[[Ballot], Ballot]]:
    """Return the router of the task that writes to ``slots``, and what adds to its ballot why records became dead
    letters."""
    if not isinstance(transform, SettingAside):
        return transform, lambda ballot: ballot
    routing = transform.of(slots)
    return routing, lambda ballot: ballot.explained(transform.to.sink, routing.reasons.to_json())


def to_one(sink: str, transform: BatchesTransform | None = None) -> Router:
    """Return a router of everything, or of what ``transform`` makes of it, to one sink."""

    def onceward_to_one(batches: Batches) -> Routed:
        made = batches if transform is None else applied(transform, batches)
        return ((sink, batch) for batch in made)

    return onceward_to_one


def choosing(columns: Mapping[str, Mapping[str, str]]) -> Router:
    """Return a router of every record to every sink, with its columns only: ``columns`` maps each new name to a column
    of the source, by sink."""

    def onceward_choose(batches: Batches) -> Routed:
        import pyarrow as pa

        for batch in batches:
            for sink, chosen in columns.items():
                arrays = [batch.column(column) for column in chosen.values()]
                yield sink, pa.RecordBatch.from_arrays(arrays, list(chosen))

    return onceward_choose


def onceward_by_column(batches: Batches) -> Routed:
    """Route the records of batches with a struct column for each sink: null where a record does not go there."""
    import pyarrow as pa

    for batch in batches:
        for sink, column in zip(batch.schema.names, batch.columns, strict=True):
            records = column.drop_null() if column.null_count else column
            if len(records):
                yield sink, pa.RecordBatch.from_struct_array(records)


def by_name(sinks: Iterable[str], transform: RoutedTransform) -> Router:
    """Return a router of what ``transform`` yields: pairs of the name of one of ``sinks`` and a batch."""
    known = frozenset(sinks)

    def onceward_by_name(batches: Batches) -> Routed:
        for pair in applied(transform, batches):
            if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] not in known:
                found = repr(pair[0]) if isinstance(pair, tuple) and len(pair) == 2 else type(pair).__name__
                raise ConfigurationError(
                    f"transform_batches yielded {found} where a job with outputs needs a pair of a name and a batch. "
                    "Nothing of this checkpoint becomes visible; its records stay unread. The names are "
                    f"{', '.join(sorted(known))}."
                )
            yield pair

    return onceward_by_name


def applied(transform: "Callable[[Batches], Iterator[_T]]", batches: Batches) -> "Iterator[_T]":
    """Yield what ``transform`` makes of ``batches``. Raises ConfigurationError when it breaks its contract."""
    given = _Given(batches)
    made = transform(given)
    try:
        result = iter(made)
    except TypeError:
        raise ConfigurationError(
            f"transform_batches returned {type(made).__name__} instead of an iterator of pyarrow.RecordBatch. Nothing "
            "of this checkpoint becomes visible; its records stay unread. Correct the function, for example with yield."
        ) from None
    yield from result
    if not given.used_up and next(given, None) is not None:
        raise ConfigurationError(
            "transform_batches ended before it had taken all batches: the rest would be skipped silently. Nothing of "
            "this checkpoint becomes visible; its records stay unread. Let the function iterate to the end of its "
            "argument."
        )


ENDING = (ConfigurationError, TooManyLettersError, LetterRefusedError)
"""What a task raises and no later checkpoint could do without."""


def unusable(error: OncewardError) -> OncewardError:
    """Return the exception that a task raises for ``error``, which ends the job: no later checkpoint could succeed.

    Spark hands the driver an executor's exception as text, inside stack traces of Python and the JVM. The message
    therefore travels as a marked piece of JSON.
    """
    text = str(error)
    reported = json.dumps(text).replace("<", "\\u003c").replace(">", "\\u003e")
    mark = _MARK if isinstance(error, ConfigurationError) else _HALT
    return type(error)(f"{text} <{mark} {reported}>")


def unusable_in(text: str) -> ConfigurationError | HaltedError | None:
    """Extract the error that :func:`unusable` marked from the text of a Spark exception; None when there is none."""
    match = _MARKED.search(text)
    if match is None:
        return None
    said = str(json.loads(match[2]))
    return HaltedError(said) if match[1] == _HALT else ConfigurationError(said)


class _Digested:
    """The batches of a slot without their columns of hashes and partitions, and the digests of those that were taken,
    by partition. ``only``: drop the records of other partitions."""

    def __init__(self, batches: Batches, only: Iterable[str] | None = None) -> None:
        self._batches = batches
        self._only = None if only is None else [int(partition) for partition in only]
        self.digests: dict[str, Digest] = {}

    def __iter__(self) -> Batches:
        import numpy as np
        import pyarrow as pa

        for whole in self._batches:
            batch, columns = whole, whole.schema.names
            if self._only is not None:
                wanted = np.isin(whole.column(columns[-1]).to_numpy(), self._only)
                batch = whole.filter(pa.array(wanted))
            hashes, partitions = (batch.column(name).to_numpy(zero_copy_only=False) for name in columns[-2:])
            for partition in np.unique(partitions).tolist():
                its = hashes[partitions == partition]
                known = self.digests.get(str(partition), Digest())
                self.digests[str(partition)] = known + Digest(len(its), int(its.sum(dtype=np.int64)))
            yield batch.select(columns[:-2])


class _Given:
    """The batches of a split; ``used_up`` records whether the consumer took them all."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.used_up = False

    def __iter__(self) -> "_Given":
        return self

    def __next__(self) -> "pa.RecordBatch":
        try:
            return next(self._batches)
        except StopIteration:
            self.used_up = True
            raise


def _written(slots: TaskSlots, batches: Routed) -> Ballot:
    try:
        return slots.write(batches)
    except ENDING as error:
        raise unusable(error) from error


def _held_back(read: Any) -> Callable[[], float]:
    """Return what a reader reports from now on of the seconds for which it was held back; 0 if it reports none."""
    held_back: Callable[[], float] = getattr(read, "held_back", lambda: 0.0)
    held_back()  # of earlier tasks that failed
    return held_back


def _current() -> Attempt:
    """Return what the Spark task that this process is running writes."""
    from pyspark import TaskContext

    context = TaskContext.get()
    text = context.getLocalProperty(TASK_PROPERTY) if context else None
    if context is None or text is None:
        raise RuntimeError(
            "this DataFrame belongs to a pipeline and can be evaluated only by it; do not call actions in the transform"
        )
    task = CheckpointTask.from_json(text)
    return Attempt(task=task, slot=context.partitionId(), number=context.taskAttemptId())


_warm = False


def _warmed_up() -> None:
    """Freeze the loaded objects after the first task, when everything that tasks need is loaded.

    PySpark's workers collect garbage after every task (``pyspark/daemon.py``). Each collection scans all modules: 20 ms
    of CPU that delay the next slot. Loaded modules stay loaded, so freezing hides them from the collector.
    """
    global _warm
    if not _warm:
        _warm = True
        gc.collect()  # otherwise the current garbage would be frozen too
        gc.freeze()


def _drained(numbers: Batches) -> list[int]:
    """Return all split numbers. Spark reuses a worker process only if its task has drained the input."""
    return [number for batch in numbers for number in batch.column(0).to_pylist()]


def _row(ballot: Ballot) -> "pa.RecordBatch":
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"ballot": [ballot.to_json()]})
