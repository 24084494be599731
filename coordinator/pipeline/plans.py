"""What Spark's plan of the user's transform tells: what is refused, which columns are read, whether rows move, whether
Spark is needed for it at all. What is not recognised is taken as the careful case.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from onceward.coordinator.errors import ConfigurationError
from onceward.coordinator.pipeline import records
from onceward.coordinator.pipeline.slots import slots_of
from onceward.coordinator.pipeline.trees import kind, nodes, reads_input, sequence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """What the pipeline needs to know of a plan."""

    columns: tuple[str, ...]
    """Columns of the source that the plan uses."""
    one_to_one: bool
    """Each slot's rows come from the split of the same number and from no other."""
    changing: bool
    """The plan draws random numbers or reads the clock. Spark fixes seeds and times when it plans, so each checkpoint
    needs a plan of its own."""
    adaptive: bool = False
    """Spark may change the plan while it runs it: see :func:`after_run`."""
    moving: bool
    """Rows move between partitions, or it is not known that they do not. Each checkpoint needs a plan of its own: Spark
    would give out the shuffle files of the first run again (measured on 2 cores)."""
    seeds: tuple[str | None, ...] = ()
    """Of all that is drawn at random; None where Spark has a new one for each plan."""
    chosen: Mapping[str, str] | None = None
    """Column of the source for each name of the result, where the plan does nothing but choose and rename columns. None
    where it does anything else: then Spark has to run it."""

    @property
    def reusable(self) -> bool:
        """One DataFrame may serve many checkpoints."""
        return not self.moving and not self.changing


def examine(df: "DataFrame", source_columns: tuple[str, ...], *, per_checkpoint_operations: bool) -> PlanFacts:
    """Check the plan of ``df``, which ends with the writer. Raises ConfigurationError for what would make its output
    wrong."""
    execution = df._jdf.queryExecution()
    analyzed, optimized = execution.analyzed(), execution.optimizedPlan()
    if not per_checkpoint_operations:
        records.refuse_per_checkpoint_operations(analyzed)
    physical = execution.executedPlan()
    slots = slots_of(physical)
    if slots is None:
        raise ConfigurationError(
            "The transform's result does not read the DataFrame that it was given (or reads a checkpointed copy): "
            "records would be skipped silently. Build the result lazily from the argument."
        )
    seeds = records.seeds(analyzed)
    return PlanFacts(
        columns=_columns_used(optimized, source_columns, sum(map(reads_input, nodes(physical)))),
        one_to_one=slots.aligned,
        changing=bool(seeds) or _is_changing(analyzed),
        adaptive=kind(physical) == "AdaptiveSparkPlanExec",
        moving=not slots.known,
        seeds=seeds,
        chosen=_chosen(optimized.child()),
    )


def after_run(facts: PlanFacts, df: "DataFrame") -> PlanFacts:
    """The facts of a plan that has run. Spark may have planned anew meanwhile, once it knew how large other tables are:
    what it broadcast by the first plan, it may have shuffled."""
    slots = slots_of(df._jdf.queryExecution().executedPlan())
    if slots is None:  # an empty table to join with: no record of the input can be in the result
        return replace(facts, one_to_one=False)
    return replace(facts, one_to_one=facts.one_to_one and slots.aligned, moving=facts.moving or not slots.known)


def _chosen(optimized: Any) -> dict[str, str] | None:
    """Casts are not taken as a choice of columns, so a plan that has one goes through Spark."""
    if reads_input(optimized):
        return {name: name for name in _names(optimized).values()}
    if kind(optimized) != "Project" or not reads_input(optimized.child()):
        return None
    readers = _names(optimized.child())
    chosen: dict[str, str] = {}
    for expression in sequence(optimized.projectList()):
        attribute = expression.child() if kind(expression) == "Alias" else expression
        if kind(attribute) != "AttributeReference":
            return None
        chosen[expression.name()] = readers[_identity(attribute)]
    return chosen


def _names(reader: Any) -> dict[int, str]:
    return {_identity(attribute): attribute.name() for attribute in sequence(reader.output())}


def _is_changing(analyzed: Any) -> bool:
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    clock = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return not analyzed.deterministic() or bool(analyzed.containsPattern(clock))


def _columns_used(optimized: Any, source_columns: tuple[str, ...], readers_that_run: int) -> tuple[str, ...]:
    """Columns of the reader that the optimised plan needs; all of them where the plan does not say so for sure.

    A column that was not asked for is null in the reader's batches, so one that is missing here is lost data.
    """
    used = _identities(optimized.output())
    readers: dict[int, str] = {}
    found = 0
    for node in nodes(optimized):
        if reads_input(node):
            found += 1
            readers |= _names(node)
            continue
        if kind(node) in _SAYING_WHAT_THEY_USE:
            used |= _identities(node.references().toSeq())
        else:
            # For example a union takes its children's columns by place and refers to none of them.
            for child in sequence(node.children()):
                used |= _identities(child.output())
        for subquery in sequence(node.subqueries()):
            used |= _identities(subquery.output())
    if not found or found != readers_that_run:
        return source_columns
    names = {name for identity, name in readers.items() if identity in used}
    return tuple(column for column in source_columns if column in names)


def _identities(attributes: Any) -> set[int]:
    return {_identity(attribute) for attribute in sequence(attributes)}


def _identity(attribute: Any) -> int:
    return int(attribute.exprId().id())
