"""Determine whether each slot of a physical plan holds the records of its split, and whether the plan may run again.

Spark hides shuffles in many operators (a sort with a limit is one). It keeps shuffle files and reuses them when the
same plan runs again. Only operators that are known to leave records in place pass; all others are assumed to move them.
"""

from dataclasses import dataclass
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.driver.spark.trees import inner, kind, nodes, reads_input, sequence

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
"""Each partition of the output comes from the partition of the input with the same number."""
_JOINS_IN_PLACE = frozenset({"BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec"})
"""These too leave records in place if the other table is the one that is broadcast."""
_GATHERING = frozenset({"CoalesceExec", "UnionExec"})
"""These merge or append whole partitions, without a shuffle."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Where a plan leaves the records of the input."""

    known: bool
    """Every operator leaves records in place or gathers whole partitions: the plan can run again on new records."""
    aligned: bool
    """Each slot holds only what comes from the split of the same number."""


_AS_READ = Slots(known=True, aligned=True)
_MOVED = Slots(known=False, aligned=False)


def slots_of(node: Any) -> Slots | None:
    """Return the slots of a physical plan; None when it does not read the input. Raises ConfigurationError when a cache
    holds the input."""
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
