"""How commands show results: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

from onceward.coordinator.printable import printable

__all__ = ["as_bytes", "as_seconds", "as_time", "print_json", "print_table", "table"]

_WIDTH_OF_A_PIPE = 400


def print_json(values: Any) -> None:
    """Print values as JSON: dataclasses as objects, times as ISO 8601, durations in seconds."""
    print(json.dumps(values, default=_plain, indent=2))


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return dict(value)
        case _ if is_dataclass(value):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        case _:
            raise TypeError(f"{type(value).__name__} in a listing")


class _Table(Table):
    """A table that escapes its cells, whose text may come from anywhere."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def table(*columns: str, title: str | None = None) -> Table:
    made = _Table(box=None, pad_edge=False, title=None if title is None else printable(title), title_justify="left")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_table(shown: Table, if_empty: str) -> None:
    if shown.row_count:
        # a pipe has no width at which to wrap
        width = None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
        Console(markup=False, highlight=False, width=width).print(shown)
    else:
        print(printable(if_empty))


def as_time(time: datetime | None) -> str:
    """Format a time in the local time zone."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time is not None else "-"


def as_seconds(duration: timedelta | None) -> str:
    return f"{duration.total_seconds():.3f}" if duration is not None else "-"


def as_bytes(count: int) -> str:
    """Format a size with three digits and a unit: 512 B, 12.3 kB, 4.56 MB."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"
