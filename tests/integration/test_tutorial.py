"""docs/tutorial.md is followed to the letter: every file is saved, every command typed, and every output compared.

A block belongs to the terminal that the text before it names last. Two things differ from the page: the broker's port
is a free one, and the home directory is the test's.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import TransactionState

from onceward.dev.kafka.places import free_ports
from onceward.sinks.kafka.identifiers import TransactionalId
from tests.support.processes import spark_variables
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
PORT_OF_THE_PAGE = "9092"
TERMINALS = ("1", "2", "3")
EXACT = ("0", "400,000", "360,000")
"""Numbers of the page that an output must show as they are: nothing, all input, all output."""
LIMIT_S = 600.0
"""Limit for any step: the machine may be busy."""
KILLED = 137
OPEN = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A code block of the page: a file, commands, or the output that a terminal then shows."""

    kind: str
    text: str
    terminal: str


def blocks_of(page: str) -> Iterator[Block]:
    terminal = ""
    for found in re.finditer(r"[Tt]erminal (\d)|^```(\w+)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        if found[1]:
            terminal = found[1]
        else:
            yield Block(kind=found[2], text=found[3], terminal=terminal)


def shows(output: str, shown: str) -> bool:
    """Whether the output has these lines in this order. ``...`` is any text, and a number is any number but 0, unless
    it is `EXACT`."""
    at = 0
    for line in shown.splitlines():
        found = re.compile(_pattern(line)).search(output, at)
        if found is None:
            return False
        at = found.end()
    return True


def _pattern(line: str) -> str:
    pieces = re.split(r"(\.\.\.|\s+|\d[\d.,:-]*)", line)
    return "".join(map(_pattern_of_piece, pieces))


def _pattern_of_piece(piece: str) -> str:
    if piece == "...":
        return r"[^\r\n]*?"
    if piece.isspace():
        return r"[^\S\r\n]*"
    if piece[:1].isdigit():
        return rf"(?<![\d,]){piece}(?![\d,])" if piece in EXACT else r"(?!0(?![\d.,]))\d[\d.,:-]*"
    return re.escape(piece)


@pytest.mark.parametrize(
    ("output", "same"),
    [
        ("x\r\norders:  checkpoint 12 · lag 0 · 0.4 s, 400,000 read\r\n", True),
        ("orders: checkpoint 0 · lag 0 · 400,000 read", False),
        ("orders: checkpoint 12 · lag 10 · 400,000 read", False),
        ("orders: checkpoint 12 · lag 0 · 400,001 read", False),
        ("orders: checkpoint 12 · lag 0 · 1,400,000 read", False),
        ("orders: checkpoint 12 · lag 0\r\n400,000 read", False),
    ],
)
def test_an_output_shows_a_line_if_it_says_the_same(output: str, same: bool) -> None:
    assert shows(output, "orders: checkpoint 3 · lag 0 ... 400,000 read") is same


def test_an_output_shows_lines_in_their_order() -> None:
    assert shows("a\nb", "a\nb")
    assert not shows("b\na", "a\nb")


class Reader:
    """A reader who follows the page."""

    def __init__(self, home: Path, cleanup: ExitStack) -> None:
        self._port = str(free_ports(1, None)[0].client)
        self._directory = home / "onceward-tutorial"
        scratch = home / "scratch"
        scratch.mkdir()
        environment = {
            "HOME": str(home),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),  # has the broker's jars
            **spark_variables(scratch),
        }
        self._terminals = {name: Terminal(ROOT, environment) for name in TERMINALS}
        for terminal in self._terminals.values():
            cleanup.callback(terminal.close)
        self._began = dict.fromkeys(TERMINALS, 0)

    def follow(self, block: Block) -> None:
        text = block.text.replace(PORT_OF_THE_PAGE, self._port)
        match block.kind:
            case "sh":
                self._began[block.terminal] = self._terminals[block.terminal].position
                for command in re.split(r"(?<!\\)\n", text.rstrip("\n")):
                    self._wait_for_the_moment(command)
                    self.finish(block.terminal)
                    self._terminals[block.terminal].type(command)
            case "text":
                self._compare(block.terminal, text)
            case _:
                (self._directory / text.splitlines()[0].removeprefix("# ")).write_text(text)

    def finish(self, name: str) -> None:
        """Wait until the terminal's command has ended: well, or by the page's kill, whose effect the page shows."""
        terminal = self._terminals[name]
        assert terminal.wait_for_exit(LIMIT_S) in (0, KILLED), terminal.output(self._began[name])

    def press_control_c(self, name: str) -> None:
        self._terminals[name].press_control_c()

    def _compare(self, name: str, shown: str) -> None:
        terminal, began = self._terminals[name], self._began[name]
        with contextlib.suppress(AssertionError):
            wait_until(lambda: shows(terminal.output(began), shown) or terminal.exit_code is not None, shown, LIMIT_S)
        assert shows(terminal.output(began), shown), f"The page shows:\n{shown}\nIt is:\n{terminal.output(began)}"

    def _wait_for_the_moment(self, command: str) -> None:
        """A person kills a job that is at work, and checks the output of one that has none left."""
        if command.startswith("kill"):
            before = self._open_transactions()
            wait_until(lambda: self._open_transactions() - before, "the job begins transactions", LIMIT_S)
        elif command.startswith("onceward verify"):
            wait_until(lambda: not self._open_transactions(), "the job has committed everything", LIMIT_S)

    def _open_transactions(self) -> set[tuple[str, int]]:
        """The job's transactions at the broker, without the claim's: their ids, and when they began."""
        admin = KafkaAdminClient(bootstrap_servers=f"localhost:{self._port}")
        try:
            found = [one.transactional_id for found in admin.list_transactions().values() for one in found]
            listed = [name for name in found if TransactionalId.parse(name) is not None]
            described = admin.describe_transactions(listed) if listed else {}
            return {(name, one.transaction_start_time_ms) for name, one in described.items() if one.state in OPEN}
        finally:
            admin.close()


def test_every_step_of_the_tutorial_does_what_the_page_says(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        reader = Reader(tmp_path, cleanup)
        for block in blocks_of(PAGE.read_text()):
            reader.follow(block)
        reader.press_control_c("1")
        for name in TERMINALS:
            reader.finish(name)
    assert not (tmp_path / "onceward-tutorial").exists()
