"""Statistics of a data file for the table's log: readers skip files by them, so a wrong one hides records.

Bounds are given for all columns that readers compare, or for none: the reader of deltalake 1.6 (``to_pyarrow_dataset``)
takes a bound that is missing beside others for null, and then finds no record of the file.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["nan_columns", "statistics"]

_LONGEST_TEXT = 32
"""Longer text is cut, as Delta does."""
_LAST_CHARACTER = chr(0x10FFFF)
_EXACT_DIGITS = 15
"""Decimals with as many are the same to a reader that takes them for a double."""


def statistics(footer: pq.FileMetaData, schema: pa.Schema, *, indexed: int, with_nan: Collection[str]) -> str:
    """Return the statistics of a file, as JSON, by its footer.

    :param indexed: how many of the first columns have statistics, -1 for all.
    :param with_nan: columns with a value that is not a number, which the footer's bounds leave out.
    """
    nulls: dict[str, int] = {}
    bounds: dict[str, tuple[Any, Any]] = {}
    bounded = True
    for position in range(footer.num_columns if indexed < 0 else min(footer.num_columns, indexed)):
        name = footer.schema.column(position).path
        place = schema.get_field_index(name)
        if place < 0:
            continue  # a part of a nested column
        groups = [footer.row_group(group).column(position).statistics for group in range(footer.num_row_groups)]
        if any(one is None or not one.has_null_count for one in groups):
            bounded = False
            continue
        nulls[name] = sum(one.null_count for one in groups)
        if nulls[name] == footer.num_rows or pa.types.is_binary(schema.field(place).type):
            continue  # there is nothing to compare
        found = None if name in with_nan else _bounds([one for one in groups if one.num_values])
        if found is None:
            bounded = False
        else:
            bounds[name] = found
    said: dict[str, Any] = {"numRecords": footer.num_rows, "nullCount": nulls}
    if bounded and bounds:
        said["minValues"] = {name: low for name, (low, _) in bounds.items()}
        said["maxValues"] = {name: high for name, (_, high) in bounds.items()}
    return json.dumps(said, separators=(",", ":"), allow_nan=False)


def _bounds(groups: Collection[Any]) -> tuple[Any, Any] | None:
    """The lowest and the highest value as the log writes them; None if no form of them is certainly right."""
    if not all(one.has_min_max for one in groups):
        return None
    try:
        low = _written(min(one.min for one in groups), _cut_low)
        high = _written(max(one.max for one in groups), _cut_high)
    except (OverflowError, TypeError, ValueError):
        return None  # such as a date that Python cannot hold
    return None if low is None or high is None else (low, high)


def _written(value: Any, cut: Callable[[str], str | None]) -> Any:
    match value:
        case bool() | int():
            return value
        case str():
            return value if len(value) <= _LONGEST_TEXT else cut(value)
        case float() if math.isfinite(value):
            return value
        case Decimal() if len(value.as_tuple().digits) <= _EXACT_DIGITS:
            return float(value)
        case datetime():
            return value.replace(tzinfo=None).isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
        case date():
            return value.isoformat()
    return None


def _cut_low(text: str) -> str:
    return text[:_LONGEST_TEXT]


def _cut_high(text: str) -> str | None:
    cut = text[:_LONGEST_TEXT] + _LAST_CHARACTER
    return cut if cut > text else None


def nan_columns(columns: Iterable[pa.Field], group: pa.Table) -> set[str]:
    """The names of the floating columns of ``group`` with a value that is not a number."""
    floating = [one.name for one in columns if pa.types.is_floating(one.type)]
    return {name for name in floating if pc.any(pc.is_nan(group[name])).as_py()}
