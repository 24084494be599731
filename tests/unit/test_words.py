"""Words that hide who does what. docs/glossary.md has the words to use; CONTRIBUTING.md says how to write."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.rooms import ROOMS

pytestmark = pytest.mark.whole_tree

ROOT = Path(__file__).resolve().parents[2]

INSTEAD = {
    r"tell(?:s|ing)?|told": "log, report, answer, show, return or instruct",
    r"whoever": "the process that",
    r"somebody|nobody": "name the process or the person, or use the passive voice",
    r"anew": "again; recreated",
    r"once more": "again",
    r"became of": "the outcome of",
    r"so many at a time": "at most N at a time",
    r"(?:of )?no use": "in vain; will not help",
    r"for good": "permanently",
    r"taken back": "rolled back",
    r"made again": "recreated",
    r"errands?": "task",
    r"goes on": "continues",
    r"keepers?": "supervisor",
    r"stor(?:y|ies)": "report, log or history",
    r"spill": "sort",
}
PLACES = (
    *(*ROOMS, "protos", "docs", "examples", "compose", "deploy"),
    *("native", "tests", "benchmarks", "scripts"),
)
ENDINGS = (".c", ".h", ".md", ".proto", ".py", ".sh", ".toml", ".txt", ".yml")
NEWLINE = "\n"
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")


def files() -> list[Path]:
    """All texts that people read, except this one."""
    below = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in ENDINGS]
    kept = [path for path in below if not path.name.endswith("_pb2.py") and path != Path(__file__).resolve()]
    return [ROOT / page for page in PAGES] + kept


ANYWHERE = r"(?<![\w-])(?:{})(?![\w-])"
IN_A_TEST_NAME = r"def test_(?:\w+_)?(?:{})(?:_\w+)?\("


CONTRACT = ("connectors/__init__.py", "connectors/interfaces.py", "connectors/tasks.py", "protocol/committing.py")
OF_ONE_SYSTEM = re.compile(r"\b(?:brokers?|receipts?|transactional[\s_-]ids?)\b")


@cache
def found(shape: str, space: str = " ", below: str = "") -> dict[str, list[str]]:
    """By word: each of its matches below a directory, as ``file:line: match``. One pass looks for all words."""
    each = (f"(?P<n{number}>{word.replace(' ', space)})" for number, word in enumerate(INSTEAD))
    pattern = re.compile(shape.format("|".join(each)))
    by_number: dict[str, list[str]] = {f"n{number}": [] for number in range(len(INSTEAD))}
    for path in files():
        text = path.read_text(encoding="utf-8").lower() if path.is_relative_to(ROOT / below) else ""
        for match in pattern.finditer(text):
            line = text.count(NEWLINE, 0, match.start()) + 1
            by_number[str(match.lastgroup)].append(f"{path.relative_to(ROOT)}:{line}: {match[0]}")
    return dict(zip(INSTEAD, by_number.values(), strict=True))


@pytest.mark.parametrize("word", INSTEAD)
def test_pages_and_code_use_the_fields_words(word: str) -> None:
    assert found(ANYWHERE)[word] == [], f"use instead: {INSTEAD[word]}"


@pytest.mark.parametrize("module", CONTRACT)
def test_the_contract_of_sources_and_sinks_has_no_words_of_one_system(module: str) -> None:
    text = (ROOT / module).read_text(encoding="utf-8").lower()
    assert OF_ONE_SYSTEM.findall(text) == [], "use instead: system, transaction, id or handle"


@pytest.mark.parametrize("word", INSTEAD)
def test_tests_are_named_in_the_fields_words(word: str) -> None:
    assert found(IN_A_TEST_NAME, "_", "tests")[word] == [], f"use instead: {INSTEAD[word]}"
