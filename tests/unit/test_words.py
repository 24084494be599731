"""Words that hide who does what. docs/glossary.md has the words to use; CONTRIBUTING.md says how to write."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

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
    *("coordinator", "connections", "sinks", "sources", "protos", "docs", "examples", "compose", "deploy"),
    *("tests", "benchmarks", "scripts"),
)
ENDINGS = (".md", ".proto", ".py", ".sh", ".toml", ".txt", ".yml")
NEWLINE = "\n"
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")


def files() -> list[Path]:
    """All texts that people read, except this one."""
    below = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in ENDINGS]
    kept = [path for path in below if not path.name.endswith("_pb2.py") and path != Path(__file__).resolve()]
    return [ROOT / page for page in PAGES] + kept


@cache
def texts() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in files()}


def found(banned: str, paths: Iterable[Path]) -> list[str]:
    """Each match as ``file:line: match``."""
    pattern = re.compile(banned, re.IGNORECASE)
    return [
        f"{path.relative_to(ROOT)}:{texts()[path].count(NEWLINE, 0, match.start()) + 1}: {match[0]}"
        for path in paths
        for match in pattern.finditer(texts()[path])
    ]


@pytest.mark.parametrize("word", INSTEAD)
def test_pages_and_code_use_the_fields_words(word: str) -> None:
    assert found(rf"(?<![\w-])(?:{word})(?![\w-])", texts()) == [], f"use instead: {INSTEAD[word]}"


@pytest.mark.parametrize("word", INSTEAD)
def test_tests_are_named_in_the_fields_words(word: str) -> None:
    tests = [path for path in texts() if path.is_relative_to(ROOT / "tests")]
    named = rf"def test_(?:\w+_)?(?:{word.replace(' ', '_')})(?:_\w+)?\("
    assert found(named, tests) == [], f"use instead: {INSTEAD[word]}"
