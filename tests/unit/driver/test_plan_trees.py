"""The rules about plans, on hand-made trees. Other tests check on Spark that its plans look like them."""

from typing import Any

import pytest

from onceward.common.errors import ConfigurationError
from onceward.driver.spark.records import refuse_per_checkpoint_operations, seeds
from onceward.driver.spark.slots import Slots, slots_of
from onceward.driver.spark.trees import expressions, kind, nodes, parts
from onceward.executor.functions import READER_NAME


class Sequence:
    """A Scala sequence, read as through py4j."""

    def __init__(self, items: Any = ()) -> None:
        self._items = list(items)

    def size(self) -> int:
        return len(self._items)

    def apply(self, index: int) -> Any:
        return self._items[index]


class Node:
    """A node of a plan or an expression: its class, its children, and the results of its other methods."""

    def __init__(self, name: str, /, *children: "Node", **returns: Any) -> None:
        self._name = name
        self._children = children
        self._returns = {"subqueries": (), "expressions": (), "deterministic": True, **returns}

    def getClass(self) -> "Node":  # noqa: N802 - Java's name
        return self

    def getSimpleName(self) -> str:  # noqa: N802 - Java's name
        return self._name

    def children(self) -> Sequence:
        return Sequence(self._children)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._returns:
            raise AttributeError(name)
        value = self._returns[name]
        return lambda: Sequence(value) if isinstance(value, tuple) else value


def function(name: str) -> Node:
    return Node("PythonUDF", name=name)


READ = Node("MapInArrowExec", Node("RangeExec"), func=function(READER_NAME))
TABLE = Node("FileSourceScanExec")
IN_PLACE, GATHERED, MOVED = (
    Slots(known=True, aligned=True),
    Slots(known=True, aligned=False),
    Slots(known=False, aligned=False),
)


def over(name: str, *children: Node, **returns: Any) -> Node:
    return Node(name, *(children or (READ,)), **returns)


def test_names_of_scala_objects_and_all_parts_of_a_node_are_seen() -> None:
    below = Node("LocalScan")
    stage = Node("ShuffleQueryStageExec", plan=below)
    assert kind(Node("LocalLimit$")) == "LocalLimit"
    for holder in (
        Node("AdaptiveSparkPlanExec", executedPlan=below),
        Node("ReusedExchangeExec", child=below),
        Node("ReusedSubqueryExec", child=below),
        Node("InMemoryTableScanExec", relation=Node("InMemoryRelation", cachedPlan=below)),
        stage,
        Node("ProjectExec", below),
        Node("FilterExec", subqueries=(below,)),
    ):
        assert parts(holder) == [below], kind(holder)
    assert list(nodes(over("ProjectExec", stage)))[1:] == [stage, below]
    inner = Node("Add", Node("Rand"), Node("Literal"))
    assert [kind(one) for one in expressions(Node("Alias", inner))] == ["Alias", "Add", "Rand", "Literal"]


@pytest.mark.parametrize(
    ("plan", "slots"),
    [
        (READ, IN_PLACE),
        (over("ProjectExec", over("FilterExec")), IN_PLACE),
        (over("MapInArrowExec", func=function("users")), IN_PLACE),
        (Node("AdaptiveSparkPlanExec", executedPlan=over("WholeStageCodegenExec")), IN_PLACE),
        (Node("ResultQueryStageExec", plan=over("SortExec")), IN_PLACE),
        (over("BroadcastHashJoinExec", READ, TABLE), IN_PLACE),
        (over("BroadcastNestedLoopJoinExec", TABLE, READ), IN_PLACE),
        (over("BroadcastHashJoinExec", READ, READ), MOVED),
        (over("SortMergeJoinExec", READ, TABLE), MOVED),
        (over("CoalesceExec"), GATHERED),
        (over("UnionExec", READ, READ), GATHERED),
        (over("UnionExec", READ, over("ShuffleExchangeExec")), MOVED),
        (over("ProjectExec", over("CoalesceExec")), GATHERED),
        (over("CoalesceExec", over("ShuffleExchangeExec")), MOVED),
        (over("ShuffleExchangeExec"), MOVED),
        (over("ProjectExec", over("TakeOrderedAndProjectExec")), MOVED),
        (over("AnOperatorOfTomorrowExec"), MOVED),
        (Node("ShuffleQueryStageExec", plan=over("ShuffleExchangeExec")), MOVED),
        (over("FilterExec", subqueries=(READ,)), MOVED),
        (over("FilterExec", TABLE, subqueries=(READ,)), MOVED),
        (over("FilterExec", subqueries=(TABLE,)), IN_PLACE),
        (over("ShuffleExchangeExec", TABLE), None),
        (over("CoalesceExec", TABLE), None),
    ],
    ids=lambda case: kind(case) if isinstance(case, Node) else "",
)
def test_only_known_operators_count_as_keeping_records_in_place(plan: Node, slots: Slots | None) -> None:
    assert slots_of(plan) == slots


def test_a_cache_of_the_input_is_refused_and_one_of_another_table_is_not() -> None:
    def cached(plan: Node) -> Node:
        return over("BroadcastHashJoinExec", READ, Node("InMemoryTableScanExec", relation=Node("R", cachedPlan=plan)))

    assert slots_of(cached(over("ShuffleExchangeExec", TABLE))) == IN_PLACE
    with pytest.raises(ConfigurationError, match="every later checkpoint would get the first one's records again"):
        slots_of(cached(over("ProjectExec")))


INPUT = Node("MapInArrow", Node("Range"), functionExpr=function(READER_NAME))
OTHER = Node("LogicalRelation")


def of(name: str, *children: Node, **returns: Any) -> Node:
    return Node(name, *(children or (INPUT,)), **returns)


def join(how: str, left: Node, right: Node) -> Node:
    return of("Join", left, right, joinType=Node(how + "$"))


@pytest.mark.parametrize(
    "plan",
    [
        INPUT,
        of("Project", of("Filter")),
        of("MapInPandas"),
        of("Union", INPUT, of("Project")),
        of("Project", of("Aggregate", OTHER)),
        join("Inner", INPUT, of("Aggregate", OTHER)),
        of("Filter", subqueries=(of("Aggregate", OTHER),)),
        of("WithCTE", of("CTERelationDef", OTHER, id=3), of("Aggregate", Node("CTERelationRef", cteId=3))),
        *(join(how, INPUT, OTHER) for how in ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti", "LeftSingle")),
        *(join(how, OTHER, INPUT) for how in ("Inner", "Cross", "RightOuter")),
    ],
)
def test_record_by_record_plans_are_not_refused(plan: Node) -> None:
    refuse_per_checkpoint_operations(plan)


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (of("Project", of("Aggregate")), "an aggregation"),
        (of("Sort"), "a sort"),
        (of("LocalLimit$"), "limit"),
        (of("AnOperatorOfTomorrow"), "Spark's operator AnOperatorOfTomorrow"),
        (of("Union", INPUT, OTHER), "a union with another table"),
        (join("Inner", INPUT, of("Project")), "a join of the input with itself"),
        *((join(how, INPUT, OTHER), rf"a join \({how}\)") for how in ("RightOuter", "FullOuter")),
        *(
            (join(how, OTHER, INPUT), rf"a join \({how}\)")
            for how in ("LeftOuter", "LeftSemi", "LeftAnti", "FullOuter")
        ),
        (of("Filter", OTHER, subqueries=(INPUT,)), "a subquery over the input"),
        (of("Aggregate", of("Filter", OTHER, subqueries=(INPUT,))), "a subquery over the input"),
        (
            of("WithCTE", of("CTERelationDef", INPUT, id=3), of("Aggregate", Node("CTERelationRef", cteId=3))),
            "an aggregation",
        ),
        (of("Sort", of("Window")), "a sort, a window function"),
        (
            of("Project", deterministic=False, expressions=(Node("SparkPartitionID", deterministic=False),)),
            "spark_partition_id",
        ),
        (
            of(
                "Filter",
                of(
                    "Project",
                    deterministic=False,
                    expressions=(Node("Alias", Node("MonotonicallyIncreasingID"), deterministic=False),),
                ),
                deterministic=False,
            ),
            "monotonically_increasing_id",
        ),
    ],
)
def test_operations_that_depend_on_checkpoint_cuts_are_refused_by_name(plan: Node, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        refuse_per_checkpoint_operations(plan)


def test_every_seed_of_a_plan_is_found() -> None:
    def drawn(name: str, seed: object) -> Node:
        return Node(name, deterministic=False, seedExpression=Node("Literal", toString=seed))

    sampled = of("Sample", deterministic=False, seed=7)
    plan = of(
        "Project",
        sampled,
        deterministic=False,
        expressions=(Node("Literal"), Node("Alias", drawn("Rand", 3), deterministic=False), drawn("Uuid", "None")),
        subqueries=(of("Filter", OTHER, deterministic=False, expressions=(drawn("Shuffle", 5),)),),
    )
    assert seeds(plan) == ("7", "3", None, "5")
    assert seeds(INPUT) == ()
