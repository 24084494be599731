"""Tables fit their terminal, and say times as people do."""

import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from onceward.operate.tables import Column, Listing, Times, print_listings, status

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def drawn(listing: Listing, width: int) -> str:
    """The listing as a terminal of this width shows it, and the columns that it leaves out."""
    screen = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    table, left_out = listing.fitted(width)
    screen.print(table, *left_out)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def checkpoints() -> Listing:
    listing = Listing(
        "checkpoint",
        Column(name="transactions", spare=2),
        Column(name="size", spare=1),
        Column(name="detail", text=True),
    )
    listing.add("17", "4", "12.3 kB", "a participant declined it: the disk is full, so nothing could be written there")
    return listing


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(100, []), (70, []), (62, ["transactions"]), (50, ["transactions", "size"]), (20, ["transactions", "size"])],
)
def test_a_narrow_terminal_leaves_the_least_important_columns_out(width: int, left_out: list[str]) -> None:
    assert checkpoints().fitted(width)[1] == left_out


@pytest.mark.parametrize("width", [100, 62, 50])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(width: int) -> None:
    shown = drawn(checkpoints(), width)
    assert max(map(len, shown.splitlines())) <= width
    detail = shown.splitlines()[0].index("detail")
    text = " ".join(line[detail:].strip() for line in shown.splitlines()[1:])
    assert text.startswith("a participant declined it: the disk is full, so nothing could be written there")


def test_times_are_ages_and_stamps_on_request() -> None:
    then = NOW - timedelta(minutes=2)
    assert Times(now=NOW, utc=False).of(then) == "2 min ago"
    assert Times(now=NOW, utc=False).since(then) == "for 2 min"
    assert Times(now=NOW, utc=True).of(then) == "2026-01-02 03:02:05Z"
    assert Times(now=NOW, utc=True).since(then) == "since 2026-01-02 03:02:05Z"
    assert Times(now=NOW, utc=False).of(None) == "-"


def test_a_cell_cannot_command_the_terminal() -> None:
    listing = Listing("job", "detail")
    listing.add("orders", "\x1b[2Jgone [red]markup[/red]")
    shown = drawn(listing, 100)
    assert "\x1b" not in shown
    assert "[red]markup[/red]" in shown


def test_a_status_has_a_color_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing("status")
    listing.add(status("halted"))

    def printed(*, terminal: bool) -> str:
        screen = Console(file=io.StringIO(), force_terminal=terminal, width=80)
        screen.print(listing.fitted(80)[0])
        assert isinstance(screen.file, io.StringIO)
        return screen.file.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;31mhalted" in printed(terminal=True)
    assert "\x1b" not in printed(terminal=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "31m" not in printed(terminal=True)


def test_a_pipe_gets_one_line_for_each_row_without_blanks_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    listing = checkpoints()
    listing.add("18", "4", "9 B", "the first line\n SQLSTATE: 38000")
    print_listings([listing])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[2].endswith("  the first line SQLSTATE: 38000")
    assert [line for line in lines if line != line.rstrip()] == []
