"""The functions that Spark runs on executors. Pickled by reference, so this module must be shipped or installed there.

Each task finds its checkpoint in a local property, not in its closure: one DataFrame serves all checkpoints.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from coordinator.pipeline.tasks import TASK_PROPERTY, CheckpointTask, Vote

if TYPE_CHECKING:
    import pyarrow as pa

    Batches = Iterator[pa.RecordBatch]

VOTE_SCHEMA = "vote string"
READER_NAME = "onceward_read"
"""How the reader is called in Spark's plans; the plan checks look for it."""


def reading(read: Any) -> "Callable[[Batches], Batches]":
    """The task that reads: its input rows are numbers of splits, its output is what the source's reader yields."""

    def onceward_read(numbers: "Batches") -> "Batches":
        task, _, _ = _current()
        columns = frozenset(task.columns)
        for number in _drained(numbers):
            yield from read(task.splits[number], columns)

    return onceward_read


def writing(write: Any) -> "Callable[[Batches], Batches]":
    """The task that writes one slot and returns its vote as the only row."""

    def onceward_write(batches: "Batches") -> "Batches":
        task, slot, attempt = _current()
        yield _ballot(write(task, slot, attempt, batches))

    return onceward_write


def copying(read: Any, write: Any, columns: tuple[str, ...]) -> "Callable[[Batches], Batches]":
    """Reader and writer in one worker process, without a trip through the JVM: for jobs without a transform."""

    def onceward_copy(numbers: "Batches") -> "Batches":
        task, slot, attempt = _current()
        used = frozenset(columns)
        batches = (batch.select(columns) for number in _drained(numbers) for batch in read(task.splits[number], used))
        yield _ballot(write(task, slot, attempt, batches))

    return onceward_copy


def _current() -> tuple[CheckpointTask, int, int]:
    """(task, slot, attempt) of the Spark task that this process runs now."""
    from pyspark import TaskContext

    context = TaskContext.get()
    text = context.getLocalProperty(TASK_PROPERTY) if context else None
    if context is None or text is None:
        raise RuntimeError(
            "this DataFrame belongs to a pipeline and can be evaluated only by it; do not call actions in the transform"
        )
    return CheckpointTask.from_json(text), context.partitionId(), context.taskAttemptId()


def _drained(numbers: "Batches") -> list[int]:
    """All split numbers. Spark reuses a worker process only if its task has drained the input."""
    return [number for batch in numbers for number in batch.column(0).to_pylist()]


def _ballot(vote: Vote) -> "pa.RecordBatch":
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"vote": [vote.to_json()]})
