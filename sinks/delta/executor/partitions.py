"""Divides batches by the values of a table's partition columns. Each file holds records of one partition.

The files are in no folders of their own: readers find the values in the table's log, not in paths, and no value has to
fit into a path.
"""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from onceward.sinks.lake.executor.partitions import grouped

__all__ = ["PartitionValues", "divided"]

PartitionValues: TypeAlias = tuple[str | None, ...]
"""As the table's log writes them, in the order of the partition columns."""


def divided(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Yield the records of each partition in their order, without the partition columns.

    Raises ValueError that names the column for a value that the log cannot write.
    """
    if not columns:
        yield (), batch
        return
    rest = batch.drop_columns(list(columns))
    for values, part in grouped(rest, [batch[name] for name in columns]):
        yield tuple(map(_written, values, columns)), part


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
