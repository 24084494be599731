"""Break the product on purpose: replace some text of one function for a while."""

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import CodeType, FunctionType
from typing import Any

__all__ = ["Break", "both", "changed", "put"]

Break = Callable[[], AbstractContextManager[None]]
"""Makes a context in which the product is broken."""


def changed(function: Callable[..., Any] | property, *changes: tuple[str, str]) -> Break:
    """Within the context, ``function`` runs with each text ``before`` replaced by ``after``.

    The function stays the same object, so the change reaches every module that has imported it. Raises AssertionError
    unless each text occurs exactly once in its source: otherwise the mutant is out of date.
    """
    target = function.fget if isinstance(function, property) else function
    assert isinstance(target, FunctionType), f"{function} is no function"

    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        former = target.__code__
        target.__code__ = _code(target, changes)
        try:
            yield
        finally:
            target.__code__ = former

    return broken


def put(owner: object, name: str, value: object) -> Break:
    """Within the context, ``owner.name`` is ``value``."""

    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        former = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, former)

    return broken


def both(*breaks: Break) -> Break:
    """Apply all of them: one bug in several places."""

    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in breaks:
                stack.enter_context(one())
            yield

    return broken


def _code(function: FunctionType, changes: tuple[tuple[str, str], ...]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for before, after in changes:
        assert source.count(before) == 1, (
            f"{function.__qualname__} has {before!r} {source.count(before)} times, not once"
        )
        source = source.replace(before, after)
    module = compile(ast.parse(source), f"<mutant of {function.__qualname__}>", "exec", dont_inherit=True)
    code = next(part for part in module.co_consts if isinstance(part, CodeType) and part.co_name == function.__name__)
    assert code.co_freevars == function.__code__.co_freevars, f"{function.__qualname__} refers to other names around it"
    return code
