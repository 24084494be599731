"""The fates of a part's mutants: counts per file, and every survivor with its change."""

import ast
import difflib
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.mutation.verdicts import MISSED, TESTS, TIMEOUT, TYPES, Verdicts

__all__ = ["Fate", "Mutant", "Tally", "equivalents", "mutants", "only_words", "unreachable"]

_EQUIVALENT = Path(__file__).with_name("equivalent.txt")
_PROSE = re.compile(r"(?!PRAGMA|BEGIN)(\W*[A-Za-z']+\W+){2}[A-Za-z']+")
_LOG = {"_log", "log"}


class Fate(Enum):
    TESTS = "noticed by tests"
    TYPES = "by types"
    TIMEOUT = "by time-out"
    WORDING = "wording"
    EQUIVALENT = "equivalent"
    SURVIVED = "survived"
    NOT_RUN = "not run"


_NOTICED = (Fate.TESTS, Fate.TYPES, Fate.TIMEOUT)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mutant and its fate; ``change`` is empty unless it survived or timed out."""

    name: str
    fate: Fate
    change: str = ""
    reason: str = ""
    """Why it is equivalent."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The number of mutants per fate."""

    counts: Counter[Fate]

    @property
    def noticed(self) -> int:
        return sum(self.counts[fate] for fate in _NOTICED)

    @property
    def judged(self) -> int:
        """The number that should be noticed; mutants that were not run count as missed."""
        return self.noticed + self.counts[Fate.SURVIVED] + self.counts[Fate.NOT_RUN]

    @property
    def share(self) -> float:
        return self.noticed / self.judged if self.judged else 1.0


def mutants(file: Verdicts, reasons: dict[str, str]) -> Iterator[Mutant]:
    """Every mutant of ``file``; ``reasons`` gives the equivalent survivors."""
    for key, code in file.codes.items():
        old, new = file.change(key)
        if only_words(old, new):
            yield Mutant(name=key, fate=Fate.WORDING)
            continue
        fate = _fate(code)
        change = ""
        if fate in (Fate.SURVIVED, Fate.TIMEOUT):
            change = f"{_name(key)} | {_changed(old, new)}"
        reason = ""
        if fate is Fate.SURVIVED:
            reason = "no run gets there, by its types" if unreachable(old, new) else reasons.get(change, "")
        yield Mutant(name=key, fate=Fate.EQUIVALENT if reason else fate, change=change, reason=reason)


def _fate(code: int | None) -> Fate:
    cases = ((TESTS, Fate.TESTS), (TYPES, Fate.TYPES), (TIMEOUT, Fate.TIMEOUT), (MISSED, Fate.SURVIVED))
    return next((fate for codes, fate in cases if code in codes), Fate.NOT_RUN)


def only_words(old: str, new: str) -> bool:
    """Whether two functions differ only in text for people: strings of three words or more, and log calls."""
    return _equal_but_for(_Silent(), old, new)


def unreachable(old: str, new: str) -> bool:
    """Whether two functions differ only in the arguments of `assert_never`, or in a case with nothing but
    `assert_never`."""
    return _equal_but_for(_Reachable(), old, new)


def _equal_but_for(ignored: ast.NodeTransformer, old: str, new: str) -> bool:
    first, second = (ast.dump(ignored.visit(ast.parse(textwrap.dedent(each)))) for each in (old, new))
    return first == second


class _Silent(ast.NodeTransformer):
    """Removes text for people."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        prose = isinstance(node.value, str) and _PROSE.match(node.value)
        return ast.Constant("") if prose else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node.func:
            case ast.Attribute(value=ast.Name(id=name)) if name in _LOG:
                return ast.Constant("")
        return self.generic_visit(node)


class _Reachable(ast.NodeTransformer):
    """Removes what only the type checker sees."""

    def visit_Match(self, node: ast.Match) -> ast.AST:
        node.cases = [case for case in node.cases if not all(map(_never, case.body))]
        return self.generic_visit(node)


def _never(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return True
    return False


def _name(key: str) -> str:
    """The function's usual name, from ``module.x_f__mutmut_1`` or ``module.xǁClassǁf__mutmut_1``."""
    module, _, function = key.rpartition("__mutmut_")[0].rpartition(".")
    return f"{module}.{function.removeprefix('xǁ').replace('ǁ', '.').removeprefix('x_')}"


def _changed(old: str, new: str) -> str:
    """One line with the removed and the added text."""
    lines = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    removed, added = (" ".join(line[2:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return f"- {removed} | + {added}"


def equivalents() -> dict[str, str]:
    """Survivors that change nothing visible to a user or a driver, with the reason."""
    entries = (line.rpartition(" | ") for line in _EQUIVALENT.read_text().splitlines())
    return {change: reason for change, _, reason in entries if change}
