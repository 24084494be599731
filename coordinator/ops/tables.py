"""How commands show results: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from onceward.coordinator.printable import printable

__all__ = ["as_bytes", "as_seconds", "as_time", "print_json", "print_table", "table"]

_WIDTH_OF_A_PIPE = 400


def print_json(values: Any) -> None:
    """Print dataclasses as JSON: one, a list, or a mapping by name; times as ISO 8601."""
    print(json.dumps(_plain(values), default=_text, indent=2))


def _plain(values: Any) -> Any:
    if isinstance(values, list):
        return [asdict(value) for value in values]
    if isinstance(values, Mapping):
        return {name: _plain(value) for name, value in values.items()}
    return asdict(values)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    raise TypeError(f"{type(value).__name__} in a listing")


class _Table(Table):
    """A table that escapes its cells, whose text may come from anywhere."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def table(*columns: str, title: str | None = None) -> Table:
    made = _Table(box=None, pad_edge=False, title=title, title_justify="left")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_table(shown: Table, if_empty: str) -> None:
    if shown.row_count:
        # a pipe has no width at which to wrap
        width = None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
        Console(markup=False, highlight=False, width=width).print(shown)
    else:
        print(if_empty)


def as_time(time: datetime | None) -> str:
    """Format a time in the local time zone."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time is not None else "-"


def as_seconds(seconds: float | None) -> str:
    return f"{seconds:.3f}" if seconds is not None else "-"


def as_bytes(count: int) -> str:
    """Format a size with three digits and a unit: 512 B, 12.3 kB, 4.56 MB."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"
