"""Evaluates the part of PromQL that our alerts use, on the tree of a library's parser."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

import promql_parser as promql

__all__ = ["History", "Labels", "Vector", "evaluate", "selectors"]

Labels: TypeAlias = frozenset[tuple[str, str]]
"""With the metric's name as ``__name__``."""
History: TypeAlias = Mapping[Labels, list[tuple[float, float]]]
"""Of each series: seconds and values, oldest first."""
Vector: TypeAlias = dict[Labels, float]
"""Without the metric's name."""

_STALE_S = 300.0
_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "==": operator.eq,
}
_COMPARISONS = (">", ">=", "<", "==")


def selectors(tree: Any) -> Iterator[Any]:
    """Every selector of series in an expression."""
    match tree:
        case promql.VectorSelector():
            yield tree
        case promql.MatrixSelector():
            yield tree.vector_selector
        case promql.NumberLiteral() | promql.StringLiteral():
            pass
        case promql.BinaryExpr():
            yield from selectors(tree.lhs)
            yield from selectors(tree.rhs)
        case promql.Call():
            for argument in tree.args:
                yield from selectors(argument)
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr():
            yield from selectors(tree.expr)
        case _:
            raise NotImplementedError(type(tree))


def evaluate(tree: Any, history: History, at: float) -> Vector | float:
    """The value of an expression at a time. Raises NotImplementedError for what no alert of ours uses."""
    match tree:
        case promql.NumberLiteral():
            return float(tree.val)
        case promql.ParenExpr():
            return evaluate(tree.expr, history, at)
        case promql.VectorSelector():
            return {
                _nameless(labels): values[-1]
                for labels, values in _selected(tree, history, at - _STALE_S, at)
                if values
            }
        case promql.Call():
            return _call(tree, history, at)
        case promql.BinaryExpr():
            return _binary(tree, history, at)
        case _:
            raise NotImplementedError(type(tree))


def _call(tree: Any, history: History, at: float) -> Vector | float:
    match tree.func.name:
        case "time":
            return at
        case "absent":
            return {} if evaluate(tree.args[0], history, at) else {frozenset(): 1.0}
        case "rate" | "delta":
            over: timedelta = tree.args[0].range
            selected = _selected(tree.args[0].vector_selector, history, at - over.total_seconds(), at)
            grown = {_nameless(labels): values[-1] - values[0] for labels, values in selected if len(values) > 1}
            per = over.total_seconds() if tree.func.name == "rate" else 1.0  # without Prometheus's extrapolation
            return {labels: value / per for labels, value in grown.items()}
        case other:
            raise NotImplementedError(other)


def _binary(tree: Any, history: History, at: float) -> Vector | float:
    word, left, right = str(tree.op), evaluate(tree.lhs, history, at), evaluate(tree.rhs, history, at)
    on = None if tree.modifier is None or tree.modifier.matching is None else set(tree.modifier.matching.labels)

    def key(labels: Labels) -> Labels:
        return labels if on is None else frozenset(label for label in labels if label[0] in on)

    if word == "and":
        assert isinstance(left, dict)
        assert isinstance(right, dict)
        kept = {key(labels) for labels in right}
        return {labels: value for labels, value in left.items() if key(labels) in kept}
    apply = _OPERATORS[word]
    if isinstance(left, float) and isinstance(right, float):
        return apply(left, right)
    if isinstance(left, float):
        raise NotImplementedError("a number on the left of a vector")
    if isinstance(right, dict):
        partners = {key(labels): value for labels, value in right.items()}
        pairs = {labels: (value, partners[key(labels)]) for labels, value in left.items() if key(labels) in partners}
    else:
        pairs = {labels: (value, right) for labels, value in left.items()}
    if word in _COMPARISONS:
        return {labels: one for labels, (one, other) in pairs.items() if apply(one, other)}
    return {labels: apply(one, other) for labels, (one, other) in pairs.items()}


def _selected(selector: Any, history: History, since: float, at: float) -> Iterator[tuple[Labels, list[float]]]:
    for labels, samples in history.items():
        given = dict(labels)
        if given["__name__"] == selector.name and all(_matches(one, given) for one in selector.matchers.matchers):
            yield labels, [value for when, value in samples if since < when <= at]


def _matches(matcher: Any, labels: Mapping[str, str]) -> bool:
    found = labels.get(matcher.name, "")
    match matcher.op:
        case promql.MatchOp.Equal:
            return bool(found == matcher.value)
        case promql.MatchOp.NotEqual:
            return bool(found != matcher.value)
        case promql.MatchOp.Re:
            return re.fullmatch(matcher.value, found) is not None
        case _:
            raise NotImplementedError(matcher.op)


def _nameless(labels: Labels) -> Labels:
    return frozenset(label for label in labels if label[0] != "__name__")
