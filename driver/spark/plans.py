"""What Spark's plan shows of the user's transform: refused operations, columns read, whether rows move, and whether
Spark must run it at all. Plans that are not recognised get the conservative answer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from onceward.common.errors import ConfigurationError
from onceward.driver.spark import records
from onceward.driver.spark.slots import slots_of
from onceward.driver.spark.trees import kind, nodes, reads_input, sequence

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
"""Operators of an optimised plan that use only the columns they refer to; other columns of their children, if they
appear in the output at all, keep their identity. Every other operator is assumed to use all columns of its children."""


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """What the pipeline needs to know about a plan."""

    columns: tuple[str, ...]
    """Columns of the source that the plan uses."""
    one_to_one: bool
    """Each slot's rows come from the split of the same number and from no other."""
    changing: bool
    """The plan draws random numbers or reads the clock. Spark fixes seeds and times when it plans, so each checkpoint
    needs its own plan."""
    adaptive: bool = False
    """Spark may change the plan while it runs: see :func:`after_run`."""
    moving: bool
    """Rows move between partitions, or may do so. Each checkpoint needs its own plan: Spark would otherwise reuse the
    shuffle files of the first run (measured on 2 cores)."""
    seeds: tuple[str | None, ...] = ()
    """Seed of each random draw; None where Spark picks a new one for each plan."""
    chosen: Mapping[str, str] | None = None
    """The source column for each output name, if the plan only selects and renames columns. None if it does anything
    else: then Spark must run it."""

    @property
    def reusable(self) -> bool:
        """True when one DataFrame may serve many checkpoints."""
        return not self.moving and not self.changing


def examine(df: "DataFrame", source_columns: tuple[str, ...], *, per_checkpoint_operations: bool) -> PlanFacts:
    """Check the plan of ``df``, which ends with the writer. Raises ConfigurationError if its output would be wrong."""
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
    """Return the facts of a plan that has run. Spark may have replanned during the run, once it knew the sizes of other
    tables: it may have shuffled a table that the first plan broadcast."""
    slots = slots_of(df._jdf.queryExecution().executedPlan())
    if slots is None:  # joined with an empty table: no input record can be in the result
        return replace(facts, one_to_one=False)
    return replace(facts, one_to_one=facts.one_to_one and slots.aligned, moving=facts.moving or not slots.known)


def _chosen(optimized: Any) -> dict[str, str] | None:
    """Return the source column for each output name, or None. A cast is not a selection, so a plan with one goes
    through Spark."""
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
    """Return the reader's columns that the optimised plan needs; all of them when the plan does not show that for
    certain.

    The reader fills unrequested columns with nulls, so a column missing here is lost data.
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
            # For example, a union takes its children's columns by position and refers to none of them.
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
