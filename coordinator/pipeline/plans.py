"""What Spark's plan of the user's transform tells: what is refused, which columns are read, whether rows move, whether
Spark is needed for it at all.

Spark's plans are read through py4j by node name and text. What is not recognised is taken as the careful case.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinator.errors import ConfigurationError
from coordinator.pipeline.executor import READER_NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PER_CHECKPOINT = {
    "Aggregate": "an aggregation",
    "Deduplicate": "distinct or dropDuplicates",
    "DeduplicateWithinWatermark": "distinct or dropDuplicates",
    "Distinct": "distinct or dropDuplicates",
    "FlatMapCoGroupsInPandas": "a grouped function",
    "FlatMapCoGroupsInArrow": "a grouped function",
    "FlatMapGroupsInArrow": "a grouped function",
    "FlatMapGroupsInPandas": "a grouped function",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
    "Offset": "offset",
    "Sort": "a sort",
    "Tail": "tail",
    "Window": "a window function",
    "WindowInPandas": "a window function",
    "ArrowWindowPython": "a window function",
}


_REARRANGING = ("Union", "Coalesce", "CartesianProduct")
"""Operators that change which partition a row is in without an exchange."""

_SAYING_WHAT_THEY_USE = frozenset(
    {
        "Aggregate",
        "ArrowEvalPython",
        "BatchEvalPython",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Join",
        "LocalLimit",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "Sort",
        "Window",
    }
)
"""Operators of an optimised plan that use just what they refer to; other columns of their children, if they appear in
their output at all, keep their identity. Every other operator is taken to use all columns of its children."""

_READER_IN_TEXT = f"MapInArrow {READER_NAME}("


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """What the pipeline needs to know of a plan."""

    columns: tuple[str, ...]
    """Columns of the source that the plan uses."""
    one_to_one: bool
    """Each slot's rows come from the split of the same number and from no other."""
    changing: bool
    """The plan draws random numbers or reads the clock. Spark fixes seeds and times when it plans, so a plan used again
    would repeat them: such a plan must be built anew too."""
    exchanges: bool
    """Rows move between partitions. Such a plan must be built anew for each checkpoint: Spark would reuse the shuffle
    files of the first run and return the old checkpoint's rows (measured on 2 cores)."""
    chosen: Mapping[str, str] | None = None
    """Column of the source for each name of the result, where the plan does nothing but choose and rename columns. None
    where it does anything else: then Spark has to run it."""

    @property
    def reusable(self) -> bool:
        """One DataFrame may serve many checkpoints."""
        return not self.exchanges and not self.changing


def examine(df: "DataFrame", source_columns: tuple[str, ...], *, per_checkpoint_operations: bool) -> PlanFacts:
    """Check the plan of ``df``. Raises ConfigurationError for what would make its output wrong."""
    execution = df._jdf.queryExecution()
    if not per_checkpoint_operations:
        _refuse_per_checkpoint_operations(execution.analyzed())
    physical = execution.executedPlan().toString()
    _require_reader(physical)
    exchanges = "Exchange" in physical
    return PlanFacts(
        columns=_columns_used(execution.optimizedPlan(), source_columns),
        one_to_one=not exchanges and not any(word in physical for word in _REARRANGING),
        changing=_is_changing(execution.analyzed()),
        exchanges=exchanges,
        chosen=_chosen(execution.optimizedPlan()),
    )


def _chosen(optimized: Any) -> dict[str, str] | None:
    """Casts are not taken as a choice of columns, so a plan that has one goes through Spark."""
    if _is_reader(optimized):
        return {name: name for name in _names(optimized).values()}
    if _name(optimized) != "Project" or not _is_reader(optimized.child()):
        return None
    readers = _names(optimized.child())
    chosen: dict[str, str] = {}
    for expression in _sequence(optimized.projectList()):
        attribute = expression.child() if _name(expression) == "Alias" else expression
        if _name(attribute) != "AttributeReference":
            return None
        chosen[expression.name()] = readers[_identity(attribute)]
    return chosen


def _names(reader: Any) -> dict[int, str]:
    return {_identity(attribute): attribute.name() for attribute in _sequence(reader.output())}


def _is_changing(analyzed: Any) -> bool:
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    clock = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return not analyzed.deterministic() or bool(analyzed.containsPattern(clock))


def _refuse_per_checkpoint_operations(analyzed: Any) -> None:
    found = sorted({_PER_CHECKPOINT[name] for name in map(_name, _walk(analyzed)) if name in _PER_CHECKPOINT})
    if found:
        raise ConfigurationError(
            f"The transform uses {', '.join(found)}: its result would depend on where checkpoints happen to be cut. "
            "If you want that (for example totals per checkpoint), say Pipeline(per_checkpoint_operations=True)."
        )


def _require_reader(physical: str) -> None:
    """The reader must be in the plan, outside every cached relation: a cache keeps the first checkpoint's rows."""
    cached_at: int | None = None
    reads = False
    for line in physical.splitlines():
        depth = len(line) - len(line.lstrip(" :+-"))
        if cached_at is not None and depth <= cached_at:
            cached_at = None
        if cached_at is None and "InMemoryRelation" in line:
            cached_at = depth
        if _READER_IN_TEXT in line:
            if cached_at is not None:
                raise ConfigurationError(
                    "The transform caches records of its argument (cache or persist): every later checkpoint would get "
                    "the first one's records again. Remove the cache; caching other tables is fine."
                )
            reads = True
    if not reads:
        raise ConfigurationError(
            "The transform's result does not read the DataFrame that it was given (or reads a checkpointed copy): "
            "records would be skipped silently. Build the result lazily from the argument."
        )


def _columns_used(optimized: Any, source_columns: tuple[str, ...]) -> tuple[str, ...]:
    """Columns of the reader that the optimised plan needs; all of them where the plan does not say so for sure.

    A column that was not asked for is null in the reader's batches, so one that is missing here is lost data.
    """
    used = _identities(optimized.output())
    readers: dict[int, str] = {}
    found = 0
    for node in _walk(optimized):
        if _is_reader(node):
            found += 1
            readers |= _names(node)
            continue
        if _name(node) in _SAYING_WHAT_THEY_USE:
            used |= _identities(node.references().toSeq())
        else:
            # For example a union takes its children's columns by place and refers to none of them.
            for child in _sequence(node.children()):
                used |= _identities(child.output())
        for subquery in _sequence(node.subqueries()):
            used |= _identities(subquery.output())
    if not found or found != str(optimized.toString()).count(_READER_IN_TEXT):
        return source_columns
    names = {name for identity, name in readers.items() if identity in used}
    return tuple(column for column in source_columns if column in names)


def _is_reader(node: Any) -> bool:
    return _name(node) == "MapInArrow" and str(node.functionExpr().name()) == READER_NAME


def _identities(attributes: Any) -> set[int]:
    return {_identity(attribute) for attribute in _sequence(attributes)}


def _identity(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _name(node: Any) -> str:
    return str(node.nodeName())


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in (*_sequence(node.children()), *_sequence(node.subqueries())):
        yield from _walk(child)


def _sequence(scala: Any) -> list[Any]:
    return [scala.apply(i) for i in range(scala.size())]
