"""Spark's plans as trees, read through py4j. Nodes are recognised by class, never by text."""

from collections.abc import Iterator
from typing import Any

from onceward.executor.functions import READER_NAME

__all__ = ["expressions", "inner", "kind", "nodes", "parts", "reads_input", "sequence"]


def kind(node: Any) -> str:
    """Return the node's class, for example ``Join`` or ``ShuffleExchangeExec``."""
    return str(node.getClass().getSimpleName()).removesuffix("$")


def sequence(scala: Any) -> list[Any]:
    return [scala.apply(i) for i in range(scala.size())]


def inner(node: Any) -> list[Any]:
    """Return the physical plans that Spark keeps inside a node without calling them its children."""
    match kind(node):
        case "AdaptiveSparkPlanExec":
            return [node.executedPlan()]
        case "ReusedExchangeExec" | "ReusedSubqueryExec":
            return [node.child()]
        case "InMemoryTableScanExec":
            return [node.relation().cachedPlan()]
        case name if name.endswith("QueryStageExec"):
            return [node.plan()]
    return []


def parts(node: Any) -> list[Any]:
    """Return the node's children, the plans inside it and the plans of its subqueries."""
    return [*sequence(node.children()), *inner(node), *sequence(node.subqueries())]


def nodes(node: Any) -> Iterator[Any]:
    yield node
    for part in parts(node):
        yield from nodes(part)


def expressions(expression: Any) -> Iterator[Any]:
    yield expression
    for child in sequence(expression.children()):
        yield from expressions(child)


def reads_input(node: Any) -> bool:
    """True for Onceward's reader, in a logical and in a physical plan."""
    match kind(node):
        case "MapInArrow":
            return str(node.functionExpr().name()) == READER_NAME
        case "MapInArrowExec":
            return str(node.func().name()) == READER_NAME
    return False
