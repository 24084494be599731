"""Records become the columns of Spark's own source: types, nulls, and columns that a reader did not request."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.sources.kafka.client import Headers, Records
from onceward.sources.kafka.client.fetched import MessageRecords
from onceward.sources.kafka.executor.columns import COLUMNS, HEADERS, batch_builder, bounded, ddl_of, schema_of
from tests.unit.sources.memory import Memory

ALL = (*COLUMNS, HEADERS)
ROWS = [(7, b"k", b"v"), (9, None, b""), (10, b"", None)]


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Iterator[Records]:
    """Three records with fields that only librdkafka's own messages have: times and headers."""
    kinds, times = np.array([1, 0, 2], np.intc), np.array([1735689600005, -1, 0], np.int64)
    counts, names = np.array([2, 0, 1], np.int64), ["a", "a", ""]
    headers = Headers(counts, names, pa.array([b"1", None, b""], pa.binary()))
    monkeypatch.setattr(MessageRecords, "timestamps", lambda _: (kinds, times))
    monkeypatch.setattr(MessageRecords, "headers", lambda _: headers)
    memory = Memory()
    yield memory.records("orders", 3, ROWS)
    memory.forget()


def built(records: Records, *wanted: str, names: tuple[str, ...] = ALL) -> pa.RecordBatch:
    batch = batch_builder(schema_of(names), frozenset(wanted))(records)
    batch.validate(full=True)
    assert batch.schema.equals(schema_of(names))
    return batch


def test_every_column_is_as_in_sparks_own_source(records: Records) -> None:
    millisecond = datetime(2025, 1, 1, 0, 0, 0, 5000, tzinfo=UTC)
    assert built(records, *ALL).to_pydict() == {
        "key": [b"k", None, b""],
        "value": [b"v", b"", None],
        "topic": ["orders"] * 3,
        "partition": [3] * 3,
        "offset": [7, 9, 10],
        "timestamp": [millisecond, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC), datetime(1970, 1, 1, tzinfo=UTC)],
        "timestampType": [0, -1, 1],
        "headers": [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, [{"key": "", "value": b""}]],
    }


def test_a_time_that_microseconds_cannot_hold_becomes_the_nearest_that_they_do(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = 2**63 // 1000
    times = np.array([last + 1, -last - 1, last], np.int64)
    monkeypatch.setattr(MessageRecords, "timestamps", lambda _: (np.zeros(3, np.intc), times))
    made = built(records, *ALL).column("timestamp").cast(pa.int64()).to_pylist()
    assert made == [last * 1000, -last * 1000, last * 1000]


def test_the_records_of_several_partitions_make_one_batch() -> None:
    memory = Memory()
    rows = [(0, 5, b"a"), (0, 6, None), (2, 1, b"c")]
    parts = [
        memory.records("orders", partition, [(offset, None, value) for of, offset, value in rows if of == partition])
        for partition in (0, 2)
    ]
    batch = built(MessageRecords.together(parts), "topic", "partition", "offset", "value")
    assert batch["topic"].to_pylist() == ["orders"] * 3
    assert [tuple(row[name] for name in ("partition", "offset", "value")) for row in batch.to_pylist()] == rows
    assert MessageRecords.together(parts[:1]) is parts[0]


@pytest.mark.parametrize("wanted", ALL)
def test_an_unused_column_is_null_and_the_others_are_unchanged(records: Records, wanted: str) -> None:
    whole, one = built(records, *ALL), built(records, wanted)
    assert one.column(wanted).equals(whole.column(wanted))
    assert all(one.column(name).null_count == 3 for name in ALL if name != wanted)


def test_columns_come_in_the_order_of_the_reader(records: Records) -> None:
    batch = built(records, "offset", "key", names=("offset", "value", "key"))
    assert batch.to_pydict() == {"offset": [7, 9, 10], "value": [None] * 3, "key": [b"k", None, b""]}
    assert ddl_of(("offset", "headers")) == "offset bigint, headers array<struct<key: string, value: binary>>"


def test_without_any_header_the_column_is_null(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    none = Headers(np.zeros(3, np.int64), [], pa.array([], pa.binary()))
    monkeypatch.setattr(MessageRecords, "headers", lambda _: none)
    assert built(records, HEADERS)["headers"].to_pylist() == [None] * 3


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 200))
def test_a_batch_is_cut_where_it_is_too_large_and_nothing_is_lost_doubled_or_moved(
    sizes: list[int], limit: int
) -> None:
    values = [bytes([number]) * size for number, size in enumerate(sizes)]
    whole = pa.record_batch([pa.array(values, pa.binary())], ["value"])
    parts: list[Any] = list(bounded(whole, limit))
    assert [value for part in parts for value in part["value"].to_pylist()] == values
    assert all(part.num_rows == 1 or part.nbytes <= limit for part in parts if part.num_rows)
    assert (len(parts) == 1) is (whole.num_rows <= 1 or whole.nbytes <= limit)
