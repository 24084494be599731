"""Mutants that change only text for people, or unreachable cases, are set apart."""

import ast
from pathlib import Path

import pytest

from tests.mutation.report import equivalents, only_words, unreachable
from tests.mutation.run import called_on_import

_ROOT = Path(__file__).resolve().parents[2]
_CODE = """
    def refuse(self, job: str) -> None:
        _log.warning("refused %s", job)
        if self.count > 1:
            raise Refused("the job is open elsewhere", code="open")
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("the job is open elsewhere", "XXthe job is open elsewhereXX"),
        ("the job is open elsewhere", "THE JOB IS OPEN ELSEWHERE"),
        ('"refused %s", job', '"refused %s", None'),
    ],
)
def test_text_for_people_is_set_apart(old: str, new: str) -> None:
    assert only_words(_CODE, _CODE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"the job is open elsewhere"', "None"),
        ('"the job is open elsewhere", ', ""),
        ('"open"', '"XXopenXX"'),
        ("> 1", ">= 1"),
        ("> 1", "> 2"),
        ("self.count > 1", "None"),
    ],
)
def test_everything_else_is_judged(old: str, new: str) -> None:
    assert not only_words(_CODE, _CODE.replace(old, new))


def test_the_words_of_a_statement_to_the_database_are_judged() -> None:
    assert not only_words('x = "PRAGMA quick check now"', 'x = "PRAGMA QUICK CHECK NOW"')


def test_a_case_that_types_rule_out_is_set_apart() -> None:
    code = """
    match reason:
        case Reason.OLD:
            return 1
        case _:
            assert_never(reason)
    """
    assert unreachable(code, code.replace("assert_never(reason)", "assert_never(None)"))
    assert unreachable(code, code.replace("        case _:\n            assert_never(reason)\n", ""))
    assert not unreachable(code, code.replace("        case Reason.OLD:\n            return 1\n", ""))
    assert not unreachable(code, code.replace("return 1", "return 2"))


def test_functions_that_run_while_a_module_is_imported_are_found() -> None:
    code = """
def newest(kind):
    return select(kind)
_QUERIES = [delete(newest(kind)) for kind in KINDS]
class Store:
    kinds = listed()
"""
    assert called_on_import(code) == {"newest", "delete"}


def test_every_equivalent_mutant_quotes_lines_of_the_code() -> None:
    """Otherwise the code was changed, and the reason may no longer hold."""
    gone = []
    for change in equivalents():
        name, removed, _ = change.split(" | ")
        if removed.removeprefix("- ") not in _function(name):
            gone.append(change)
    assert gone == []


def _function(name: str) -> str:
    """The source of ``onceward.folder.module.Class.function`` in one line; empty if there is none."""
    places = [_ROOT.joinpath(*name.split(".")[:count]).with_suffix(".py") for count in range(2, name.count(".") + 1)]
    module = next((place for place in places if place.is_file()), None)
    if module is None:
        return ""
    source = module.read_text()
    node: ast.AST = ast.parse(source)
    for part in name.split(".")[len(module.relative_to(_ROOT).parts) :]:
        found = [one for one in ast.iter_child_nodes(node) if getattr(one, "name", None) == part]
        if not found:
            return ""
        node = found[0]
    text = ast.get_source_segment(source, node) or ""
    return " ".join(line.strip() for line in text.splitlines())
