"""No text from a job, a broker or a person can control the reader's terminal."""

import ast
import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.client.session import connect
from onceward.common.links import Links
from onceward.common.printable import log_fields, logger, printable
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.driver.exits import exit_with_codes
from onceward.driver.journal import Journal
from onceward.driver.progress import Progress
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, JobName
from tests.support.commands import onceward
from tests.support.rooms import ROOMS
from tests.support.scripted import SINK, SOURCE, positions, slots
from tests.support.waiting import wait_until

NASTY = "before\x1b[2J\x1b]0;owned\x07\x00\x08\r\x9b31m\u202eafter"
SHOWN = r"before\x1b[2J\x1b]0;owned\x07\x00\x08\r\x9b31m\u202eafter"
STORED = NASTY.replace("\0", r"\x00")
"""The driver escapes NUL, which PostgreSQL cannot store."""
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@given(st.text())
def test_shown_text_has_no_control_characters_and_is_otherwise_unchanged(text: str) -> None:
    shown = printable(text)
    assert all(one.isprintable() or one in "\n\t" for one in shown)
    if all(one.isprintable() or one in "\n\t" for one in text):
        assert shown == text


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return refused(tmp_path_factory.mktemp("printable") / "state")


def refused(directory: Path, reason: str = NASTY) -> Path:
    """Return the directory of a coordinator that got ``reason`` for a decline and for a generation's end."""
    settings = CheckpointSettings(interval=0, tolerable_failed_checkpoints=5)
    with EmbeddedCoordinator(directory) as coordinator, connect(coordinator.address) as client:
        session = client.open_job(JobName("orders"), (SOURCE, SINK), settings, None, driver="d")
        arrived: list[object] = []
        session.start_watch(arrived.append)
        wait_until(lambda: any(getattr(one, "checkpoint", 0) == 1 for one in arrived), "the first trigger")
        session.acknowledge(CheckpointId(1), CheckpointId(0), {SOURCE.name: positions(1)})
        session.acknowledge(CheckpointId(1), CheckpointId(0), {SINK.name: slots(1, count=0)})
        wait_until(lambda: any(getattr(one, "checkpoint", 0) == 2 for one in arrived), "the second trigger")
        session.decline(CheckpointId(2), SINK.name, reason)
        session.abandon(reason)
    return directory


@pytest.mark.parametrize("listing", [["jobs"], ["checkpoints", "orders"], ["history", "orders"]], ids=lambda a: a[0])
def test_listings_escape_control_characters_for_people_and_keep_them_in_json(
    state_dir: Path, listing: list[str]
) -> None:
    shown = onceward(*listing, "--state-dir", str(state_dir)).stdout
    assert SHOWN in shown
    assert not _RAW.search(shown)
    reported = onceward(*listing, "--json", "--state-dir", str(state_dir)).stdout
    assert not _RAW.search(reported)
    assert any(STORED in text for text in texts(json.loads(reported)))


def texts(value: object) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(inner)


def test_the_log_of_a_driver_and_of_a_coordinator_escape_control_characters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    with caplog.at_level(logging.INFO):
        logging.getLogger().addHandler(handler)
        try:
            refused(tmp_path / "state")
            Journal("orders").log("aborted", checkpoint=2, reason=NASTY)
            try:
                raise ValueError(NASTY)
            except ValueError:
                logger("onceward.pipeline").exception("settling failed: %s", NASTY)
        finally:
            logging.getLogger().removeHandler(handler)
    # in quotes, a backslash that is stored is shown as two
    assert stream.getvalue().replace(r"\\x00", r"\x00").count(SHOWN) >= 4
    assert not _RAW.search(stream.getvalue())


FORGED = 'x" event=completed job="payments\n2026-01-02 03:04:05,678 INFO    onceward job=payments event=completed'


@given(st.dictionaries(st.sampled_from(["reason", "detail", "event"]), st.text()))
def test_no_value_adds_a_field_or_a_line_to_the_log(values: dict[str, str]) -> None:
    line = log_fields(values)
    assert "\n" not in line
    assert _RAW.search(line) is None
    fields = re.findall(r'(\w+)=((?:"(?:[^"\\]|\\.)*")|[^\s"]+)(?: |$)', line)
    assert [name for name, _ in fields] == list(values)
    assert " ".join(f"{name}={value}" for name, value in fields) == line


def test_a_driver_cannot_forge_lines_or_fields_of_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    with caplog.at_level(logging.INFO):
        logging.getLogger().addHandler(handler)
        try:
            refused(tmp_path / "state", FORGED)
            Journal("orders").log("aborted", checkpoint=2, reason=FORGED)
            logger("onceward.pipeline").warning("restarting: %s", FORGED)
            try:
                raise ValueError(FORGED)
            except ValueError:
                logger("onceward.pipeline").exception("settling failed")
        finally:
            logging.getLogger().removeHandler(handler)
    lines = stream.getvalue().splitlines()
    assert sum("payments" in line for line in lines) >= 5
    assert not [line for line in lines if line.startswith("2026") or re.match(r'.*="x" event=completed', line)]


def test_the_traceback_of_a_program_escapes_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message of an error in a transform may hold a record."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    exit_with_codes()
    sys.excepthook(ValueError, ValueError(NASTY), None)
    assert f"ValueError: {SHOWN}" in capsys.readouterr().err


def test_commands_print_only_through_what_escapes() -> None:
    ops = Path(__file__).resolve().parents[2] / "operate"
    bare = re.compile(r"(?<![\w.])print\(|\.echo\(|std(?:out|err)\.write")
    found = {file.name for file in ops.rglob("*.py") if bare.search(file.read_text(encoding="utf-8"))}
    assert found == {"prompts.py", "tables.py"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_line_escapes_a_broken_links_name() -> None:
    stream = Terminal()
    links = Links()
    progress = Progress("orders", links=links, stream=stream)
    links.failed(NASTY, "refused", waiting="a call")
    progress.close()
    drawn = stream.getvalue().replace("\r\x1b[2K", "")
    assert SHOWN[:20] in drawn
    assert not _RAW.search(drawn)


def test_no_logger_of_ours_is_made_without_the_escapes() -> None:
    root = Path(__file__).resolve().parents[2]
    for package in ROOMS:
        for file in (root / package).rglob("*.py"):
            assert 'getLogger("onceward' not in file.read_text(encoding="utf-8"), file


def test_every_event_is_logged_by_its_fields() -> None:
    """A formatter cannot read the fields of a text, so a line of JSON would have neither its event nor its fields."""
    root = Path(__file__).resolve().parents[2]
    as_text = [
        f"{file.relative_to(root)}:{node.lineno}"
        for package in ROOMS
        for file in (root / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log.")
        if any(re.search(r"\bevent=", ast.unparse(given)) for given in node.args)
    ]
    assert as_text == []
