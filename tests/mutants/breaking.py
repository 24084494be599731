"""Break the product on purpose, for a while. A bug names what it breaks by symbol, so that it follows a rename.

Two operators: :func:`wrapped` changes what goes into a function or comes out of it, and :func:`within` changes what one
name inside a function means. In both, the function stays the same object, so every module that has imported it is
broken too.
"""

import ast
import builtins
import contextlib
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

__all__ = ["Break", "Field", "always", "both", "within", "wrapped"]

Break = Callable[[], AbstractContextManager[None]]
"""Makes a context in which the product is broken."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_numbers = itertools.count()
_UNKNOWN = object()


class Field(Generic[T, R]):
    """A field of a class as a symbol: ``Field(Durable, lambda durable: durable.lost)``."""

    def __init__(self, _owner: type[T], read: Callable[[T], R]) -> None:
        (self.name,) = read.__code__.co_names

    def __call__(self, owner: T, /) -> R:
        value: R = getattr(owner, self.name)
        return value


def wrapped(function: Callable[P, R], wrapper: Callable[Concatenate[Callable[P, R], P], R]) -> Break:
    """``wrapper(original, *arguments)`` runs in place of ``function(*arguments)``."""
    target = _function_of(function)

    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        original = FunctionType(
            target.__code__, target.__globals__, target.__name__, target.__defaults__, target.__closure__
        )
        original.__kwdefaults__ = target.__kwdefaults__
        name = _new_name()
        code = _forward.__code__.replace(co_names=(name,), co_name=target.__name__, co_filename=_filename(target))
        with _running(target, code, name, partial(wrapper, original)):
            yield

    return broken


def within(function: Callable[..., Any], symbol: Callable[P, R], stand_in: Callable[P, R]) -> Break:
    """The one mention of ``symbol`` in the body of ``function`` means ``stand_in``.

    ``symbol`` is a function or class that the module knows, or a method, property or :class:`Field`. Those are found by
    their name alone, in any object; ``stand_in`` gets the object first. Raises AssertionError on entry unless there is
    exactly one mention: otherwise the mutant is out of date.
    """
    target = _function_of(function)

    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        assert target.__code__.co_filename != _filename(target), f"{target.__qualname__} is broken already"
        name = _new_name()
        mentions = _Mentions(target, symbol, name)
        code = _compiled(target, mentions)
        assert mentions.found == 1, f"{target.__qualname__} mentions {mentions.symbol} {mentions.found} times, not once"
        with _running(target, code, name, mentions.bound(stand_in)):
            yield

    return broken


def always(value: T) -> Callable[..., T]:
    """A stand-in or wrapper that does nothing and returns ``value``."""
    return lambda *_arguments, **_named: value


def both(*breaks: Break) -> Break:
    """Apply all of them: one bug in several places."""

    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in breaks:
                stack.enter_context(one())
            yield

    return broken


def _stand_in(*_arguments: Any, **_named: Any) -> Any:
    """`wrapped` replaces this name in the code of `_forward`."""


def _forward(*arguments: Any, **named: Any) -> Any:
    return _stand_in(*arguments, **named)


def _function_of(function: Callable[..., Any]) -> FunctionType:
    target = function.fget if isinstance(function, property) else function
    assert isinstance(target, FunctionType), f"{function} is no function"
    return target


def _new_name() -> str:
    """No identifier, so that it hides nothing."""
    return f"stand-in {next(_numbers)}"


def _filename(function: FunctionType) -> str:
    return f"<mutant of {function.__qualname__}>"


@contextlib.contextmanager
def _running(function: FunctionType, code: CodeType, name: str, value: object) -> Iterator[None]:
    """``function`` runs ``code``, in which ``name`` is ``value``."""
    former = function.__code__
    function.__globals__[name] = value
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = former
        del function.__globals__[name]


class _Mentions(ast.NodeTransformer):
    """Replaces the mentions of a symbol by a name."""

    def __init__(self, function: FunctionType, symbol: object, name: str) -> None:
        self.found = 0
        self._function = function
        self._wanted = symbol
        self._name = name
        code = function.__code__
        self._local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        self._member = _member_name(symbol)
        self.symbol = self._member or getattr(symbol, "__name__", repr(symbol))

    def bound(self, stand_in: Callable[..., Any]) -> Callable[..., Any]:
        """What takes the place: for a method, a function that binds the object."""
        return partial(partial, stand_in) if isinstance(self._wanted, FunctionType) and self._member else stand_in

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._replaced(node) if self._meaning(node) is self._wanted else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if self._meaning(node) is self._wanted:
            return self._replaced(node)
        self.generic_visit(node)
        if node.attr == self._member and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Call(func=self._replaced(node), args=[node.value], keywords=[]), node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def _replaced(self, node: ast.expr) -> ast.expr:
        self.found += 1
        return ast.copy_location(ast.Name(id=self._name, ctx=ast.Load()), node)

    def _meaning(self, node: ast.expr) -> object:
        """The object that a name or a dotted name means in the function's module."""
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name not in self._local:
                return self._function.__globals__.get(name, getattr(builtins, name, _UNKNOWN))
            case ast.Attribute(value=value, attr=name):
                owner = self._meaning(value)
                return _UNKNOWN if owner is _UNKNOWN else getattr(owner, name, _UNKNOWN)
            case _:
                return _UNKNOWN


def _member_name(symbol: object) -> str | None:
    """The name under which objects have ``symbol``; None if it belongs to a module."""
    match symbol:
        case Field():
            return symbol.name
        case property():
            assert symbol.fget is not None
            return symbol.fget.__name__
        case FunctionType() if "." in symbol.__qualname__:
            return symbol.__name__
        case _:
            return None


def _compiled(function: FunctionType, change: ast.NodeTransformer) -> CodeType:
    """The code of ``function`` after a change of its body."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.body = [change.visit(statement) for statement in definition.body]
    module = compile(tree, _filename(function), "exec", dont_inherit=True)
    code = next(part for part in module.co_consts if isinstance(part, CodeType) and part.co_name == function.__name__)
    assert code.co_freevars == function.__code__.co_freevars, f"{function.__qualname__} refers to other names around it"
    return code
