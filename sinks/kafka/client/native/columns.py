"""The sink's columns, as the encoder takes them. Pure."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["encodable"]

_HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
_PER_MS = {"us": 1_000, "ns": 1_000_000}


def encodable(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of ``records`` that are written, in types of the encoder. Times are rounded down to whole
    milliseconds."""
    columns: dict[str, pa.Array] = {}
    for name in ("key", "value", "partition", "timestamp", "headers"):
        if name in records.schema.names and (column := records.column(name)).null_count < len(column):
            columns[name] = _fitted(name, column)
    return pa.RecordBatch.from_pydict(columns) if columns else _empty(records.num_rows)


def _fitted(name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if name in ("key", "value"):
        return column.cast(pa.binary()) if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) else column
    if name == "timestamp":
        return _milliseconds(column)
    if name == "headers":
        return column if pa.types.is_list(kind) and _is_small(kind.value_type) else column.cast(_HEADERS)
    return column


def _is_small(pair: pa.DataType) -> bool:
    return all(pa.types.is_string(pair.field(n).type) or pa.types.is_binary(pair.field(n).type) for n in range(2))


def _milliseconds(column: pa.Array) -> pa.Array:
    unit, raw = column.type.unit, column.cast(pa.int64())
    if unit == "ms":
        return raw
    if unit == "s":
        return pc.multiply(raw, 1_000)
    whole = np.asarray(raw.fill_null(0)) // _PER_MS[unit]
    return pa.array(whole, pa.int64(), mask=np.asarray(raw.is_null()) if raw.null_count else None)


def _empty(rows: int) -> pa.RecordBatch:
    """Records that have nothing."""
    return pa.RecordBatch.from_pydict({"value": pa.nulls(rows, pa.binary())})
