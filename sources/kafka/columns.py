"""The columns of Spark's Kafka source as Arrow arrays. For executors: only pyarrow and confluent_kafka."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Message

__all__ = ["batch_builder", "schema_of"]

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_FIELDS: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    # What Spark's TimestampType is in Arrow, whatever the session's time zone.
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
}


def schema_of(include_headers: bool) -> pa.Schema:
    fields = {**_FIELDS, "headers": _HEADERS} if include_headers else _FIELDS
    return pa.schema(list(fields.items()))


def batch_builder(
    schema: pa.Schema, columns: frozenset[str], topic: str, partition: int
) -> Callable[[Sequence[Message]], pa.RecordBatch]:
    """What turns messages into a batch: one comprehension per used column, nulls for the others."""

    def timestamps(ms: Sequence[Message]) -> pa.Array:
        return pa.array([m.timestamp()[1] * 1000 for m in ms], pa.int64()).view(_FIELDS["timestamp"])

    makers: dict[str, Callable[[Sequence[Message]], pa.Array]] = {
        "key": lambda ms: pa.array([m.key() for m in ms], pa.binary()),
        "value": lambda ms: pa.array([m.value() for m in ms], pa.binary()),
        "topic": lambda ms: pa.repeat(topic, len(ms)),
        "partition": lambda ms: pa.repeat(pa.scalar(partition, pa.int32()), len(ms)),
        "offset": lambda ms: pa.array([m.offset() for m in ms], pa.int64()),
        "timestamp": timestamps,
        # Spark, like Java, counts from -1 (none); librdkafka from 0.
        "timestampType": lambda ms: pa.array([m.timestamp()[0] - 1 for m in ms], pa.int32()),
        "headers": _headers,
    }
    chosen = [(makers[f.name] if f.name in columns else None, f.type) for f in schema]

    def build(messages: Sequence[Message]) -> pa.RecordBatch:
        arrays = [pa.nulls(len(messages), kind) if make is None else make(messages) for make, kind in chosen]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return build


def _pairs(headers: Any) -> Iterator[tuple[str, bytes | None]]:
    yield from headers


def _headers(messages: Sequence[Message]) -> pa.Array:
    """Null for a record without headers, as in Spark's own source."""
    rows = []
    for message in messages:
        headers = message.headers()
        rows.append([{"key": name, "value": value} for name, value in _pairs(headers)] if headers else None)
    return pa.array(rows, _HEADERS)
