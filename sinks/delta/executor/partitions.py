"""Divides batches by the values of a table's partition columns. Each file holds records of one partition.

The files are in no folders of their own: readers find the values in the table's log, not in paths, and no value has to
fit into a path.
"""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

__all__ = ["PartitionValues", "divided"]

PartitionValues: TypeAlias = tuple[str | None, ...]
"""As the table's log writes them, in the order of the partition columns."""

_ROWS = "rows"


def divided(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Yield the records of each partition in their order, without the partition columns.

    Raises ValueError that names the column for a value that the log cannot write.
    """
    if not columns:
        yield (), batch
        return
    keys = [f"key {place}" for place in range(len(columns))]
    named = pa.table([*(batch[name] for name in columns), pa.array(range(batch.num_rows))], names=[*keys, _ROWS])
    groups = named.group_by(keys, use_threads=False).aggregate([(_ROWS, "list")])
    rest = batch.drop_columns(list(columns))
    for group in groups.to_pylist():
        values = tuple(_written(group[key], name) for key, name in zip(keys, columns, strict=True))
        rows = group[f"{_ROWS}_list"]
        yield values, rest if len(rows) == batch.num_rows else rest.take(pa.array(rows))


def _written(value: Any, column: str) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case str() if value:
            return value
        case int():
            return str(value)
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.replace(tzinfo=None).isoformat(" ", "microseconds")
        case date():
            return value.isoformat()
    # Delta reads an empty text as null.
    raise ValueError(f"{value!r} in a partition does not fit the column {column}: Delta reads it as null")
