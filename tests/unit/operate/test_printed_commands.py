"""Every command that a message, a page or the documentation prints can be typed: the command line accepts it."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from onceward.operate.cli import app
from tests.support.commands import parsed
from tests.support.rooms import ROOMS

pytestmark = pytest.mark.whole_tree

ROOT = Path(__file__).resolve().parents[3]
COMMAND = re.compile(r"\bonceward ((?:[a-z][a-z-]*)(?: .*)?)")
VALUE = re.compile(r"<>|all|[A-Z][A-Z0-9_:=/.|-]*|[\d.]+|\S*<>\S*|\[?[A-Z]+(?::[A-Z]+)?\]?")
"""What may stand for a value in a message: a formatted value (``<>``), a number, or a word in capitals."""
NAMES = set(typer.main.get_group(app).commands)
NUMBER = re.compile("<>|ID|CHECKPOINT|OFFSET")


def texts_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string that is no docstring; ``<>`` stands for each formatted value."""
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in documentation or id(node) in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "<>" for part in node.values)
            yield node.lineno, "".join(map(str, parts))


def texts() -> Iterator[tuple[str, str]]:
    for package in ROOMS:
        for file in sorted((ROOT / package).rglob("*.py")):
            where = file.relative_to(ROOT)
            for line, text in texts_of(ast.parse(file.read_text())):
                yield f"{where}:{line}", text
        for file in sorted((ROOT / package).rglob("*.html")):
            for line, text in enumerate(file.read_text().splitlines(), 1):
                plain = re.sub(r"<[^>]*>", "\n", re.sub(r"{{.*?}}", "@@", text))
                yield f"{file.relative_to(ROOT)}:{line}", plain.replace("@@", "<>")


def words_of(text: str) -> list[str]:
    """Return the words of the command that ``text`` begins with, up to the prose after it."""
    words: list[str] = []
    for raw in re.findall(r"'[^']*'|\S+", text.partition("\n")[0]):
        word = raw.rstrip("`.,;:)")
        named = not words or (len(words) == 1 and words[0] == "dev")
        if named or word.startswith(("--", "'")) or VALUE.fullmatch(word):
            words.append(word)
        else:
            break
        if word != raw:
            break
    return words


def commands() -> Iterator[tuple[str, list[str]]]:
    for where, text in texts():
        for match in COMMAND.finditer(re.sub(r"\bonceward ", "\nonceward ", text)):
            name = match[1].split(maxsplit=1)[0].rstrip("`.,;:)")
            if name in NAMES:
                yield where, words_of(match[1].strip())


def documented() -> Iterator[tuple[str, list[str]]]:
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]):
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("onceward "):
                    yield str(page.relative_to(ROOT)), shlex.split(line, comments=True)[1:]


MENTIONED = (["token"], ["state"])
"""Messages say what these commands make, without asking anybody to run them."""
FOUND = [(where, words) for where, words in commands() if words not in MENTIONED]
DOCUMENTED = list(documented())


def refusal(words: list[str]) -> str | None:
    """Return why the command line refuses ``words``; None if it accepts them."""
    if words[-1] == "--help":
        return None
    values = ["1" if NUMBER.fullmatch(word) else word.strip("'") for word in words]
    try:
        parsed(values)
    except ValueError as error:
        return str(error)
    return None


def test_commands_are_found_where_they_are_printed() -> None:
    names = {words[0] for _, words in FOUND}
    assert {"restore", "losses", "forget", "takeover", "adopt", "resolve", "savepoint", "serve"} <= names
    assert ["losses", "<>", "--acknowledge", "all", "--reason", "'NAME: REASON'"] in [words for _, words in FOUND]


@pytest.mark.parametrize(
    ("where", "words"), [*FOUND, *DOCUMENTED], ids=lambda one: one if isinstance(one, str) else " ".join(one)
)
def test_a_printed_command_is_accepted_by_the_command_line(where: str, words: list[str]) -> None:
    assert refusal(words) is None, f"{where}: onceward {shlex.join(words)}: {refusal(words)}"


def test_a_command_without_what_it_needs_is_refused() -> None:
    assert refusal(words_of("restore JOB --from 7: then start it")) is not None
    assert refusal(words_of("restore JOB --from 7 --reason WHY, then start it")) is None
    assert refusal(words_of("restore JOB --form 7 --reason WHY")) is not None
