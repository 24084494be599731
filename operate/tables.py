"""How commands show results: tables for people, JSON for programs."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from rich.cells import cell_len
from rich.console import Console, OverflowMethod
from rich.table import Table
from rich.text import Text

from onceward.common.printable import printable
from onceward.common.readable import age, duration
from onceward.wire.rows import as_json

__all__ = [
    "Cell",
    "Column",
    "Listing",
    "Times",
    "as_duration",
    "console",
    "print_json",
    "print_listings",
    "status",
]

_WIDTH_OF_A_PIPE = 400
_GAP = 2
_LEAST_TEXT = 30
"""Columns of text wrap. With less width than this, other columns are left out first."""

_STYLES = {
    "running": "green",
    "leads": "green",
    "settled": "green",
    "ok": "green",
    "completed": "cyan",
    "triggered": "cyan",
    "finished": "dim",
    "cancelled": "dim",
    "restarting": "yellow",
    "finishing": "yellow",
    "suspended": "yellow",
    "warning": "yellow",
    "aborted": "yellow",
    "halted": "bold red",
    "unreadable": "bold red",
    "error": "bold red",
    "in_doubt": "bold red",
    "lost": "bold red",
}
"""By the word that is shown: a color never says more than the text."""

Cell: TypeAlias = str | Text


def status(word: str) -> Text:
    """Return a status in its color. A terminal shows it; pipes, and a terminal with ``NO_COLOR``, show the word."""
    return Text(printable(word), style=_STYLES.get(word, ""))


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    spare: int = 0
    """When the terminal is too narrow, columns with the highest number are left out first; 0 = never."""
    text: bool = False
    """Sentences, which wrap."""


class Listing:
    """A table that fits its terminal. Its cells may hold text from anywhere: it is made printable."""

    def __init__(self, *columns: str | Column, title: str = "", if_empty: str = "") -> None:
        self._columns = [Column(name=one) if isinstance(one, str) else one for one in columns]
        self._rows: list[tuple[Cell, ...]] = []
        self._title = title
        self._if_empty = if_empty

    def add(self, *cells: Cell) -> None:
        assert len(cells) == len(self._columns)
        shown = zip(self._columns, cells, strict=True)
        self._rows.append(tuple(_cell(column, cell) if isinstance(cell, str) else cell for column, cell in shown))

    def fitted(self, width: int, *, rows: int | None = None) -> tuple[Table | str, Sequence[str]]:
        """Return the table for a terminal of this width, or a sentence if there are no rows; and the names of the
        columns that are left out. ``rows`` limits the table to that many rows of one line each."""
        if not self._rows:
            return printable(self._if_empty), ()
        shown = list(range(len(self._columns)))
        names = [one.name for one in self._columns]
        widths = [self._width(index, names[index]) for index in shown]
        if _total(widths) > width:
            names = [name.replace(" ", "\n") for name in names]
            widths = [self._width(index, names[index]) for index in shown]
        while _total(widths[index] for index in shown) > width:
            last = max(shown, key=lambda index: self._columns[index].spare)
            if self._columns[last].spare == 0:
                break
            shown.remove(last)
        left = width - _total(widths[index] for index in shown)
        title = Text(printable(self._title)) if self._title else None
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), title=title, title_justify="left")
        one_line = rows is not None
        for index in shown:
            fixed: int | None = widths[index]
            if self._columns[index].text:
                fixed = max(1, widths[index] + left) if one_line else None
            elif left < -_LEAST_TEXT // 2:
                fixed = None
            overflow: OverflowMethod = "ellipsis" if one_line else "fold"
            table.add_column(names[index], overflow=overflow, no_wrap=one_line, width=fixed)
        for row in self._rows[:rows]:
            table.add_row(*(row[index] for index in shown))
        return table, [one.name for index, one in enumerate(self._columns) if index not in shown]

    def _width(self, index: int, name: str) -> int:
        cells = (str(row[index]) for row in self._rows)
        widest = max(cell_len(line) for cell in (name, *cells) for line in cell.split("\n"))
        return min(widest, _LEAST_TEXT) if self._columns[index].text else widest


def _cell(column: Column, text: str) -> str:
    """A sentence is one line: a row of a pipe is a line for the program that reads it."""
    shown = printable(text)
    return " ".join(shown.split()) if column.text else shown


def _total(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP


def console() -> Console:
    """The console of standard output, with colors only on a terminal. A pipe has no width at which to wrap."""
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE)


def print_listings(listings: Iterable[Listing]) -> None:
    screen = console()
    for number, listing in enumerate(listings):
        if number:
            screen.print()
        table, left_out = listing.fitted(screen.width)
        if screen.is_terminal:
            screen.print(table)
        else:
            with screen.capture() as drawn:
                screen.print(table)
            screen.file.writelines(f"{line.rstrip()}\n" for line in drawn.get().splitlines())  # padded for a terminal
        if left_out:
            screen.print(f"Too narrow for: {', '.join(left_out)}.", style="dim")


def print_json(values: Any) -> None:
    """Print values as JSON, in the form of `as_json`."""
    print(as_json(values))


@dataclass(frozen=True, kw_only=True)
class Times:
    """How times are shown: as ages, or with ``utc`` as stamps."""

    now: datetime
    utc: bool

    def of(self, time: datetime | None) -> str:
        """3 s ago"""
        if time is None:
            return "-"
        return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ") if self.utc else age(time, self.now)

    def since(self, time: datetime) -> str:
        """for 3 s"""
        return f"since {self.of(time)}" if self.utc else f"for {duration((self.now - time).total_seconds())}"


def as_duration(time: timedelta | None) -> str:
    return duration(time.total_seconds()) if time is not None else "-"
