"""The columns of Spark's Kafka source as Arrow arrays. For executors: only pyarrow and confluent_kafka."""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

import pyarrow as pa
from confluent_kafka import Message

__all__ = ["BatchBuilder", "batch_builder", "bounded", "schema_of"]

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS = pa.list_(_HEADER)
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


_Stamps: TypeAlias = Sequence[tuple[int, int]]
"""(type as librdkafka numbers it, milliseconds since 1970) of each message."""
BatchBuilder: TypeAlias = Callable[[Sequence[Message]], pa.RecordBatch]


def schema_of(include_headers: bool) -> pa.Schema:
    fields = {**_FIELDS, "headers": _HEADERS} if include_headers else _FIELDS
    return pa.schema(list(fields.items()))


def batch_builder(schema: pa.Schema, columns: frozenset[str], topic: str, partition: int) -> BatchBuilder:
    """What turns messages into a batch: at most one call per message and used column, nulls for the other columns."""
    makers: dict[str, Callable[[Sequence[Message], _Stamps], pa.Array]] = {
        "key": lambda ms, _: pa.array(list(map(Message.key, ms)), pa.binary()),
        "value": lambda ms, _: pa.array(list(map(Message.value, ms)), pa.binary()),
        "topic": lambda ms, _: pa.repeat(topic, len(ms)),
        "partition": lambda ms, _: pa.repeat(pa.scalar(partition, pa.int32()), len(ms)),
        "offset": lambda ms, _: _offsets(ms),
        "timestamp": lambda _, stamps: _times(stamps),
        "timestampType": lambda _, stamps: _time_types(stamps),
        "headers": lambda ms, _: _headers(ms),
    }
    chosen = [(makers[f.name] if f.name in columns else None, f.type) for f in schema]
    timed = not columns.isdisjoint(("timestamp", "timestampType"))

    def build(messages: Sequence[Message]) -> pa.RecordBatch:
        stamps = list(map(Message.timestamp, messages)) if timed else []
        arrays = [pa.nulls(len(messages), kind) if make is None else make(messages, stamps) for make, kind in chosen]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return build


def bounded(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """``batch`` in parts of at most ``limit`` bytes, or of one record; nothing is copied."""
    if batch.num_rows <= 1 or batch.nbytes <= limit:
        yield batch
        return
    half = batch.num_rows // 2
    yield from bounded(batch.slice(0, half), limit)
    yield from bounded(batch.slice(half), limit)


def _times(stamps: _Stamps) -> pa.Array:
    return pa.array([at for _, at in stamps], pa.int64()).view(pa.timestamp("ms", tz="UTC")).cast(_FIELDS["timestamp"])


def _time_types(stamps: _Stamps) -> pa.Array:
    """Spark, like Java, counts from -1 (none); librdkafka from 0."""
    found = {kind for kind, _ in stamps}
    if len(found) == 1:
        return pa.repeat(pa.scalar(found.pop() - 1, pa.int32()), len(stamps))
    return pa.array([kind - 1 for kind, _ in stamps], pa.int32())


def _offsets(messages: Sequence[Message]) -> pa.Array:
    """Offsets only grow: as many as lie between the first and the last are all of them, and need not be asked for."""
    first, last = messages[0].offset(), messages[-1].offset()
    assert first is not None
    assert last is not None
    if last - first + 1 == len(messages):
        # an array of the standard library is filled several times faster than one of Arrow
        return pa.Array.from_buffers(
            pa.int64(), len(messages), [None, pa.py_buffer(array("q", range(first, last + 1)))]
        )
    return pa.array([m.offset() for m in messages], pa.int64())


def _headers(messages: Sequence[Message]) -> pa.Array:
    """Null for a record without headers, as in Spark's own source."""
    lists: list[Any] = [m.headers() for m in messages]
    flat = [pair for headers in lists if headers for pair in headers]
    if not flat:
        return pa.nulls(len(messages), _HEADERS)
    pairs = pa.StructArray.from_arrays(
        [pa.array([name for name, _ in flat], pa.string()), pa.array([value for _, value in flat], pa.binary())],
        fields=list(_HEADER),
    )
    ends = accumulate((len(headers) if headers else 0 for headers in lists), initial=0)
    without = pa.array([not headers for headers in lists], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, type=_HEADERS, mask=without)
