"""Whether each slot of a physical plan holds the records of the split of its number, and whether it may run again.

Spark hides shuffles in many operators (a sort with a limit is one), keeps their files, and gives them out again when
the same plan runs again. So only operators that are known to leave records where they are pass; all others are taken to
move them.
"""

from dataclasses import dataclass
from typing import Any

from onceward.coordinator.errors import ConfigurationError
from onceward.coordinator.pipeline.trees import inner, kind, nodes, reads_input, sequence

__all__ = ["Slots", "slots_of"]

_IN_PLACE = frozenset(
    {
        "AdaptiveSparkPlanExec",
        "ArrowEvalPythonExec",
        "ArrowEvalPythonUDTFExec",
        "BatchEvalPythonExec",
        "BatchEvalPythonUDTFExec",
        "ColumnarToRowExec",
        "ExpandExec",
        "FilterExec",
        "GenerateExec",
        "InputAdapter",
        "MapInArrowExec",
        "MapInPandasExec",
        "ProjectExec",
        "ResultQueryStageExec",
        "RowToColumnarExec",
        "SampleExec",
        "SortExec",
        "WholeStageCodegenExec",
    }
)
"""Each partition of the output is made of the partition of the input with its number."""
_JOINS_IN_PLACE = frozenset({"BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec"})
"""So it is in these where the other table is the one that is sent to all tasks."""
_GATHERING = frozenset({"CoalesceExec", "UnionExec"})
"""Partitions are taken together or counted on, without a shuffle."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Where a plan leaves the records of the input."""

    known: bool
    """Only operators that move no record, or gather whole partitions: it can run again, and gives what is read then."""
    aligned: bool
    """Each slot holds what was made of the split of its number, and nothing else."""


_AS_READ = Slots(known=True, aligned=True)
_MOVED = Slots(known=False, aligned=False)


def slots_of(node: Any) -> Slots | None:
    """Of a physical plan; None when it does not read the input. Raises ConfigurationError when a cache holds it."""
    if reads_input(node):
        return _AS_READ
    if kind(node) == "InMemoryTableScanExec":
        _refuse_cached_input(node)
        return None
    below = [slots_of(part) for part in (*sequence(node.children()), *inner(node))]
    found = [slots for slots in below if slots is not None]
    if any(slots_of(subquery) is not None for subquery in sequence(node.subqueries())):
        return _MOVED
    if not found:
        return None
    name = kind(node)
    if len(found) == 1 and (name in _IN_PLACE or name in _JOINS_IN_PLACE):
        return found[0]
    if name in _GATHERING:
        return Slots(known=all(slots.known for slots in found), aligned=False)
    return _MOVED


def _refuse_cached_input(scan: Any) -> None:
    if any(reads_input(node) for node in nodes(scan)):
        raise ConfigurationError(
            "The transform caches records of its argument (cache or persist): every later checkpoint would get the "
            "first one's records again. Remove the cache; caching other tables is fine."
        )
