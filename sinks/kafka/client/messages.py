"""Arrow columns as the structures that librdkafka reads: addresses and lengths, no Python object per record. Pure.

The returned structures point into the columns, which must live until the client has taken the records.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceward.connections.rdkafka.library import COPY, MESSAGE, VALUE_UNION, ValueType
from onceward.sinks.kafka.client.interface import UnfitRecordError
from onceward.sinks.kafka.client.partitioner import partitions

__all__ = [
    "Arguments",
    "Partitioning",
    "argument_lists",
    "by_partition",
    "column_of",
    "record_sizes",
    "wrongly_named",
]

Messages: TypeAlias = npt.NDArray[Any]
"""An array of `MESSAGE`."""

_NOTHING = np.zeros(1, np.uint8)
"""The address of empty values. It is not NULL, because NULL means no value."""
_NOW = 0


class Partitioning(NamedTuple):
    """Where records without a partition go. The partition of every record is chosen here: if the client chose some of
    them, those records would overtake the others or be overtaken."""

    partitions: int
    """Number of partitions of the topic."""
    keyless: int
    """The partition for records without a key."""


@dataclass(frozen=True)
class _Bytes:
    """A binary or string column: the location of each value."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    """Offsets in `data`."""
    lengths: npt.NDArray[np.int64]
    """0 for null."""
    valid: npt.NDArray[np.bool_] | None
    """None if all are valid."""

    @classmethod
    def of(cls, column: pa.Array) -> "_Bytes":
        wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
        _, offsets, data = column.buffers()
        if not len(column):
            return cls(_NOTHING, np.zeros(0, np.int64), np.zeros(0, np.int64), None)
        every = np.frombuffer(
            offsets, np.int64 if wide else np.int32, len(column) + 1, column.offset * (8 if wide else 4)
        )
        valid = np.asarray(column.is_valid()) if column.null_count else None
        lengths = np.diff(every).astype(np.int64)
        if valid is not None:
            lengths[~valid] = 0  # Arrow may keep a value under a null
        # a buffer of no bytes may be absent, or its address may be invalid
        present = data is not None and data.size > 0
        return cls(np.frombuffer(data, np.uint8) if present else _NOTHING, every[:-1].astype(np.int64), lengths, valid)

    @property
    def addresses(self) -> npt.NDArray[np.uintp]:
        """NULL for null values only."""
        found = (self.starts + self.data.ctypes.data).astype(np.uintp)
        if self.valid is not None:
            found[~self.valid] = 0
        return found


def by_partition(records: pa.RecordBatch, places: Partitioning) -> list[tuple[int, Messages]]:
    """Convert ``records`` to messages, grouped by partition and in order within each. Reads the columns ``value``,
    ``key`` and ``partition``."""
    values, key = _values_and_key(records)
    messages = np.zeros(records.num_rows, MESSAGE)
    messages["payload"], messages["len"] = values.addresses, values.lengths
    if key is not None:
        messages["key"], messages["key_len"] = key.addresses, key.lengths
    where = _partitions(records, key, places)
    if (where == where[:1]).all():
        return [(int(where[0]), messages)] if len(where) else []
    # numpy sorts small integers by counting, and takes rows of words ten times faster than structures
    small = np.int16 if where.max() <= np.iinfo(np.int16).max else np.int32
    order = np.argsort(where.astype(small), kind="stable")
    words = messages.view(np.int64).reshape(len(messages), -1).take(order, axis=0)
    messages, where = words.view(MESSAGE).reshape(-1), where[order]
    cuts = np.flatnonzero(np.diff(where)) + 1
    firsts = [0, *cuts.tolist()]
    return [(int(where[first]), part) for first, part in zip(firsts, np.split(messages, cuts), strict=True)]


@dataclass(frozen=True)
class Arguments:
    """Arguments of ``rd_kafka_produceva`` for a batch of records."""

    unions: npt.NDArray[Any]
    """`VALUE_UNION` structures of all records."""
    firsts: list[int]
    """Address of the first union of each record."""
    counts: list[int]
    kept: tuple[Any, ...]
    """Objects that the addresses point into, besides the records."""
    partitions: frozenset[int]
    """Those of all records."""


_FIXED = 6
"""Number of unions that every record has."""


def argument_lists(topic: int, records: pa.RecordBatch, places: Partitioning) -> Arguments:
    """Build arguments for records with headers or timestamps, which a message cannot carry. ``topic``: address of its
    handle. Raises UnfitRecordError."""
    rows = records.num_rows
    values, key = _values_and_key(records)
    headers = column_of(records, "headers")
    each = np.zeros(rows, np.int64) if headers is None else _lengths(headers)
    counts = each + _FIXED
    firsts = np.cumsum(counts) - counts
    unions = np.zeros(int(counts.sum()), VALUE_UNION)

    def say(offset: int, kind: int, **members: Any) -> None:
        at = firsts + offset
        unions["vtype"][at] = kind
        for name, column in members.items():
            unions[name][at] = column

    where = _partitions(records, key, places)
    say(0, ValueType.TOPIC, ptr=topic)
    say(1, ValueType.PARTITION, i32=where)
    say(2, ValueType.FLAGS, i32=COPY)
    say(3, ValueType.VALUE, ptr=values.addresses, size=values.lengths)
    say(4, ValueType.KEY, ptr=0 if key is None else key.addresses, size=0 if key is None else key.lengths)
    say(5, ValueType.TIMESTAMP, i64=_milliseconds(column_of(records, "timestamp")))
    kept: tuple[Any, ...] = ()
    if headers is not None:
        names, contents = _headers(headers)
        kept = (names, contents)
        # headers of one record follow its fixed arguments, in the order of the column
        inside = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
        at = np.repeat(firsts + _FIXED, each) + inside
        name, content = _Bytes.of(names), _Bytes.of(contents)
        unions["vtype"][at] = ValueType.HEADER
        unions["ptr"][at] = name.addresses
        unions["val"][at], unions["val_size"][at] = content.addresses, content.lengths
    first = unions.ctypes.data
    addresses = (first + firsts * VALUE_UNION.itemsize).tolist()
    return Arguments(unions, addresses, counts.tolist(), kept, frozenset(np.unique(where).tolist()))


class Sizes(NamedTuple):
    """Bytes of each record, before compression."""

    at_client: npt.NDArray[np.int64]
    """What the client compares with ``message.max.bytes``: ``rd_kafka_msg_max_wire_size`` in rdkafka_msg.h."""
    in_batch: npt.NDArray[np.int64]
    """In a batch of its own, without what the batch itself takes."""


_MOST_AROUND = 36
"""``RD_KAFKAP_MESSAGE_V2_MAX_OVERHEAD`` in rdkafka_proto.h."""
_AROUND = 3
"""Attributes, and two differences of 0 to the batch's first timestamp and offset."""


def record_sizes(records: pa.RecordBatch) -> Sizes:
    """Return the size of each of ``records``, which has the sink's columns."""
    values, key = _values_and_key(records)
    keys = np.zeros(records.num_rows, np.int64) if key is None else key.lengths
    count, inside = np.zeros(records.num_rows, np.int64), np.zeros(records.num_rows, np.int64)
    if (headers := column_of(records, "headers")) is not None:
        count = _lengths(headers)
        names, contents = headers.flatten().flatten()
        lengths = [np.asarray(pc.binary_length(one).fill_null(0)).astype(np.int64) for one in (names, contents)]
        ends = np.concatenate([[0], np.cumsum(sum(_varint(each) + each for each in lengths))])
        inside = ends[np.cumsum(count)] - ends[np.cumsum(count) - count]
    content = keys + values.lengths + inside
    body = _AROUND + _varint(keys) + _varint(values.lengths) + _varint(count) + content
    return Sizes(content + _MOST_AROUND, _varint(body) + body)


def _varint(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes of each number as Kafka writes it, with its sign."""
    return np.searchsorted(np.array([1 << 6, 1 << 13, 1 << 20, 1 << 27], np.int64), numbers, side="right") + 1


def wrongly_named(records: pa.RecordBatch) -> list[int]:
    """Return the records of which a header has no name, or one that the client would cut."""
    headers = column_of(records, "headers")
    if headers is None:
        return []
    names = headers.flatten().flatten()[0]
    wrong = pc.or_(names.is_null(), pc.match_substring(names, "\0").fill_null(False))
    if not pc.any(wrong).as_py():
        return []
    counts = _lengths(headers)
    return sorted({*np.repeat(np.arange(len(counts)), counts)[np.asarray(wrong)].tolist()})


def _values_and_key(records: pa.RecordBatch) -> tuple[_Bytes, _Bytes | None]:
    key = column_of(records, "key")
    return _Bytes.of(records.column("value")), None if key is None else _Bytes.of(key)


def column_of(records: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return the column, or None if it is absent or holds only nulls."""
    if name not in records.schema.names:
        return None
    column = records.column(name)
    return None if column.null_count == len(column) else column


def _partitions(records: pa.RecordBatch, key: _Bytes | None, places: Partitioning) -> npt.NDArray[np.int32]:
    """Use the ``partition`` column; where it is null, the key's partition; without a key, the keyless partition."""
    given = column_of(records, "partition")
    if given is not None and not given.null_count:
        return np.asarray(given)
    found = np.full(records.num_rows, places.keyless, np.int32)
    if key is not None:
        keyed = slice(None) if key.valid is None else key.valid
        found[keyed] = partitions(key.data, key.starts[keyed], key.lengths[keyed], places.partitions)
    if given is None:
        return found
    return np.where(np.asarray(given.is_valid()), np.asarray(given.fill_null(0)), found)


_PER_MS = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}


def _milliseconds(column: pa.Array | None) -> npt.NDArray[np.int64] | int:
    """Return whole milliseconds since 1970, rounded down; `_NOW` for null. The client takes 0 for now, too: the first
    millisecond of 1970 becomes the second. -1 is Kafka's "no timestamp", and stays that."""
    if column is None:
        return _NOW
    valid, raw = np.asarray(column.is_valid()), np.asarray(column.cast(pa.int64()).fill_null(0))
    per_ms = _PER_MS[column.type.unit]
    result = raw * 1_000 if per_ms == 0 else raw // per_ms
    return np.where(valid, np.where(result == 0, 1, result), _NOW)


def _lengths(headers: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.list_value_length(headers).fill_null(0)).astype(np.int64)


def _headers(headers: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the names, each terminated by NUL as C requires, and the contents of all records' headers, in order."""
    names, contents = headers.flatten().flatten()
    if names.null_count:
        raise UnfitRecordError("a header has no name; give it one, or leave the header out")
    if pc.any(pc.match_substring(names, "\0")).as_py():
        raise UnfitRecordError("a header's name holds a NUL character, which the client takes for its end")
    end, nothing = (pa.scalar(text, pa.large_string()) for text in ("\0", ""))
    return pc.binary_join_element_wise(names.cast(pa.large_string()), end, nothing), contents
