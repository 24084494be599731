"""Divides the records of a batch by the values of arrays beside them."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

__all__ = ["grouped"]

_ROWS = "rows"


def grouped(batch: pa.RecordBatch, keys: Sequence[pa.Array]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """Yield the values of each group as Python objects, and its records in their order. ``keys``: one array or more,
    each as long as ``batch``."""
    names = [f"key {place}" for place in range(len(keys))]
    named = pa.table([*keys, pa.array(range(batch.num_rows))], names=[*names, _ROWS])
    groups = named.group_by(names, use_threads=False).aggregate([(_ROWS, "list")])
    for group in groups.to_pylist():
        rows = group[f"{_ROWS}_list"]
        values = tuple(group[name] for name in names)
        yield values, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
