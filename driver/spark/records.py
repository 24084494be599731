"""Check that a transform's result for a record depends on that record alone, not on where checkpoints are cut.

Only operators that are known to treat each record separately pass. The rules are those of Structured Streaming for a
stream and a static table, without its state: no operator may need to see two records of the input together.
"""

from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.driver.spark.trees import expressions, kind, reads_input, sequence

__all__ = ["refuse_per_checkpoint_operations", "seeds"]

_BY_RECORD = frozenset(
    {
        "CTERelationDef",
        "CollectMetrics",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "LateralJoin",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "ScriptTransformation",
        "SubqueryAlias",
        "View",
        "WithCTE",
    }
)
"""Operators of an analysed plan that treat each record separately, or only move records."""

_CALLED = {
    "Aggregate": "an aggregation",
    "ArrowWindowPython": "a window function",
    "Deduplicate": "distinct or dropDuplicates",
    "DeduplicateWithinWatermark": "distinct or dropDuplicates",
    "Distinct": "distinct or dropDuplicates",
    "Except": "except or subtract, which drop duplicates or count them",
    "FlatMapCoGroupsInArrow": "a grouped function",
    "FlatMapCoGroupsInPandas": "a grouped function",
    "FlatMapGroupsInArrow": "a grouped function",
    "FlatMapGroupsInPandas": "a grouped function",
    "GlobalLimit": "limit",
    "Intersect": "intersect, which drops duplicates or counts them",
    "LocalLimit": "limit",
    "MonotonicallyIncreasingID": "monotonically_increasing_id, which begins again with each checkpoint",
    "Offset": "offset",
    "Sort": "a sort",
    "SparkPartitionID": "spark_partition_id, which says which task of a checkpoint has a record",
    "Tail": "tail",
    "Window": "a window function",
    "WindowInPandas": "a window function",
}

_INPUT_LEFT = frozenset({"Cross", "Inner", "LeftAnti", "LeftOuter", "LeftSemi", "LeftSingle"})
_INPUT_RIGHT = frozenset({"Cross", "Inner", "RightOuter"})
"""Join types whose result for a record of the input depends only on that record and the other table."""

_POSITIONS = frozenset({"MonotonicallyIncreasingID", "SparkPartitionID"})
_SEEDED = frozenset({"RandStr", "Rand", "Randn", "Shuffle", "Uniform", "Uuid"})


def refuse_per_checkpoint_operations(analyzed: Any) -> None:
    """Raise ConfigurationError that names everything in the plan that depends on where checkpoints are cut."""
    judgement = _Judgement()
    judgement.of(analyzed)
    found = judgement.found | {_CALLED[kind(each)] for each in _nondeterministic(analyzed) if kind(each) in _POSITIONS}
    if found:
        raise ConfigurationError(
            f"The transform uses {', '.join(sorted(found))}: its result would depend on where checkpoints happen to be "
            "cut. If you want that (for example totals per checkpoint), set Pipeline(per_checkpoint_operations=True)."
        )


class _Judgement:
    """Judges one analysed plan."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._names: set[int] = set()
        """Ids of WITH clauses that hold the input."""

    def of(self, node: Any) -> bool:
        """Return whether the plan ``node`` holds the input; collect its problems in ``found``."""
        if reads_input(node):
            return True
        name = kind(node)
        if name == "CTERelationRef":
            return node.cteId() in self._names
        children = [self.of(child) for child in sequence(node.children())]
        if name == "CTERelationDef" and any(children):
            self._names.add(node.id())
        if asked := any(self.of(subquery) for subquery in sequence(node.subqueries())):
            self.found.add("a subquery over the input")
        if any(children) and (wrong := _wrong(name, node, children)):
            self.found.add(wrong)
        return asked or any(children)


def _wrong(name: str, node: Any, children: list[bool]) -> str | None:
    """Return what is wrong with an operator on the input; ``children``: which of its children hold the input."""
    match name:
        case "Join":
            if all(children):
                return "a join of the input with itself"
            how = kind(node.joinType())
            right = how in (_INPUT_LEFT if children[0] else _INPUT_RIGHT)
            return None if right else f"a join ({how}) that keeps or counts rows of the other table"
        case "Union":
            return None if all(children) else "a union with another table, which each checkpoint would write again"
        case _ if name in _BY_RECORD:
            return None
    return _CALLED.get(name, f"Spark's operator {name}, of which it is not known whether it needs several records")


def seeds(analyzed: Any) -> tuple[str | None, ...]:
    """Return the seed of each random draw, in the plan's order; None where Spark picks a new one for each plan."""
    sampled = [str(node.seed()) for node in _plan(analyzed) if kind(node) == "Sample"]
    drawn = [str(each.seedExpression().toString()) for each in _nondeterministic(analyzed) if kind(each) in _SEEDED]
    return tuple(None if seed == "None" else seed for seed in (*sampled, *drawn))


def _plan(node: Any) -> list[Any]:
    below = [*sequence(node.children()), *sequence(node.subqueries())]
    return [node, *(each for child in below for each in _plan(child))]


def _nondeterministic(node: Any) -> list[Any]:
    """Return the expressions of the plan that Spark does not mark as deterministic."""
    if node.deterministic():
        return []
    below = [*sequence(node.children()), *sequence(node.subqueries())]
    found = [
        each
        for expression in sequence(node.expressions())
        if not expression.deterministic()
        for each in expressions(expression)
    ]
    return [*found, *(each for child in below for each in _nondeterministic(child))]
