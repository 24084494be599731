"""Break the product on purpose: replace one piece of one function for a while."""

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from tests.simulation.run import Result, run_seed

__all__ = ["Mutant", "changed", "first_violation"]


Mutant = Callable[[], contextlib.AbstractContextManager[None]]


def changed(function: Callable[..., object], before: str, after: str) -> Mutant:
    """A mutant: within its context, ``function`` runs with the text ``before`` replaced by ``after``.

    Entering it raises AssertionError unless ``before`` occurs exactly once in the source: the mutant is out of date.
    """
    return partial(_changed, function, before, after)


@contextlib.contextmanager
def _changed(function: Callable[..., object], before: str, after: str) -> Iterator[None]:
    assert isinstance(function, FunctionType), function
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(before) == 1, f"{function.__qualname__} has {before!r} {source.count(before)} times"
    tree = ast.parse(source.replace(before, after))
    former = function.__code__
    function.__code__ = _code_of(compile(tree, f"<mutant of {function.__qualname__}>", "exec"), function.__name__)
    try:
        yield
    finally:
        function.__code__ = former


def _code_of(module: CodeType, name: str) -> CodeType:
    code = next(part for part in module.co_consts if isinstance(part, CodeType) and part.co_name == name)
    assert not code.co_freevars, f"{name} refers to names around it"
    return code


def first_violation(mutant: Mutant, seeds: range, **steering: Any) -> Result | None:
    """The result of the first seed whose world violates an invariant; None when the mutant survives them all.

    :param steering: fields of `FaultProfile` that make its fault likely.
    """
    results = (run_seed(seed, mutant=mutant, **steering) for seed in seeds)
    return next((result for result in results if result.violation is not None), None)
