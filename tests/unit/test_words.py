"""Words that hide who does what. docs/glossary.md has the words to use; CONTRIBUTING.md says how to write."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

INSTEAD = {
    r"told": "logged, reported, answered or instructed",
    r"tells": "reports, shows or returns",
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
}
PLACES = ("coordinator", "connections", "sinks", "sources", "onceward", "protos", "docs", "examples", "compose")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")


def files() -> list[Path]:
    """The texts that users and operators read: the product, its pages, and its examples."""
    found = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in (".md", ".proto", ".py")]
    return [ROOT / page for page in PAGES] + [path for path in found if not path.name.endswith("_pb2.py")]


@pytest.mark.parametrize("word", INSTEAD)
def test_pages_and_code_use_the_fields_words(word: str) -> None:
    banned = re.compile(rf"(?<![\w-])(?:{word})(?![\w-])", re.IGNORECASE)
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if banned.search(line)
    ]
    assert wrong == [], f"use instead: {INSTEAD[word]}"


@pytest.mark.parametrize("word", INSTEAD)
def test_tests_are_named_in_the_fields_words(word: str) -> None:
    banned = re.compile(rf"def test_(?:\w+_)?(?:{word.replace(' ', '_')})(?:_\w+)?\(", re.IGNORECASE)
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for found in banned.finditer(path.read_text(encoding="utf-8"))
    ]
    assert wrong == [], f"use instead: {INSTEAD[word]}"
