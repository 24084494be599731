"""The columns of Spark's Kafka source as Arrow arrays. For executors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from onceward.sources.kafka.client import Headers, Records

__all__ = [
    "COLUMNS",
    "COPIED",
    "HEADERS",
    "LAST_MS",
    "RECORD",
    "BatchBuilder",
    "batch_builder",
    "bounded",
    "ddl_of",
    "schema_of",
]

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS = pa.list_(_HEADER)
# Spark's TimestampType in Arrow, whatever the session's time zone.
_TIMESTAMP = pa.timestamp("us", tz="UTC")
LAST_MS = 2**63 // 1_000
"""Kafka holds any number of milliseconds. Those beyond become the nearest that microseconds hold: a reader that does
not look at the time must not fail."""
_TYPES: Final[Mapping[str, tuple[str, pa.DataType]]] = {
    "key": ("binary", pa.binary()),
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", _TIMESTAMP),
    "timestampType": ("int", pa.int32()),
    "headers": ("array<struct<key: string, value: binary>>", _HEADERS),
}
"""Spark's and Arrow's types."""
HEADERS: Final = "headers"
COLUMNS: Final = tuple(name for name in _TYPES if name != HEADERS)
"""The default columns."""
RECORD: Final = tuple(name for name in _TYPES if name != "timestampType")
"""The columns that make a record, wherever it goes."""
COPIED: Final = ("key", "value", HEADERS)
"""Columns that a job without a transform copies, as Spark's Kafka sink does; the partition follows from the key, as for
any producer. Timestamps would cost the client's fast path; a transform that selects them keeps them."""

BatchBuilder: TypeAlias = Callable[[Records], pa.RecordBatch]


def schema_of(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, _TYPES[name][1]) for name in columns])


def ddl_of(columns: Sequence[str]) -> str:
    """Return the schema as a Spark DDL string."""
    return ", ".join(f"{name} {_TYPES[name][0]}" for name in columns)


def batch_builder(schema: pa.Schema, columns: frozenset[str]) -> BatchBuilder:
    """Return a function that turns records into a batch, with nulls for unused columns."""
    makers: dict[str, Callable[[Records], pa.Array]] = {
        "key": lambda records: records.keys(),
        "value": lambda records: records.values(),
        "topic": lambda records: pa.repeat(records.topic, len(records)),
        "partition": lambda records: pa.array(records.partitions),
        "offset": lambda records: pa.array(records.offsets),
        "headers": lambda records: _headers(records.headers()),
    }
    chosen = {name: make for name, make in makers.items() if name in columns}
    timed = not columns.isdisjoint(("timestamp", "timestampType"))

    def build(records: Records) -> pa.RecordBatch:
        made = {name: make(records) for name, make in chosen.items()}
        if timed:
            kinds, times = records.timestamps()
            made["timestamp"] = pa.array(times.clip(-LAST_MS, LAST_MS) * 1_000).view(_TIMESTAMP)
            # Spark, like Java, counts from -1 (none); librdkafka from 0.
            made["timestampType"] = pa.array(kinds - 1)
        arrays = [made[f.name] if f.name in columns else pa.nulls(len(records), f.type) for f in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return build


def bounded(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """Split ``batch`` into parts of at most ``limit`` bytes, or of one record, without copying."""
    if batch.num_rows <= 1 or batch.nbytes <= limit:
        yield batch
        return
    half = batch.num_rows // 2
    yield from bounded(batch.slice(0, half), limit)
    yield from bounded(batch.slice(half), limit)


def _headers(headers: Headers) -> pa.Array:
    """Build the headers column: null for a record without headers, as in Spark's own source."""
    without = headers.counts == 0
    if without.all():
        return pa.nulls(len(without), _HEADERS)
    pairs = pa.StructArray.from_arrays([pa.array(headers.names, pa.string()), headers.contents], fields=list(_HEADER))
    ends = np.concatenate(([0], np.cumsum(headers.counts))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pairs, type=_HEADERS, mask=pa.array(without))
