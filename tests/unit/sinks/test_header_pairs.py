"""Headers leave Arrow as pairs, record by record, whatever part of a batch they come from."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.kafka.records import _headers

KINDS = [
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
]
pairs = st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3))
rows = st.lists(st.none() | st.lists(pairs, max_size=3), max_size=8)


@pytest.mark.parametrize("kind", KINDS, ids=["narrow", "wide"])
@settings(deadline=None)  # what is slow here is the machine
@given(records=rows, start=st.integers(0, 8), length=st.integers(0, 8))
def test_each_record_keeps_its_own_headers(
    kind: pa.DataType, records: list[list[tuple[str, bytes | None]] | None], start: int, length: int
) -> None:
    column = pa.array(
        [None if record is None else [{"key": k, "value": v} for k, v in record] for record in records], kind
    )
    part = column.slice(min(start, len(column)), length)
    assert list(_headers(part)) == records[start : start + length]


def test_headers_behind_a_null_are_not_taken_for_the_next_record_s() -> None:
    """Arrow may keep values under a null."""
    whole = pa.array([[{"key": "a", "value": b"1"}], [{"key": "b", "value": b"2"}]], KINDS[0])
    hidden = pa.ListArray.from_arrays(whole.offsets, whole.values, type=KINDS[0], mask=pa.array([True, False]))
    assert list(_headers(hidden)) == [None, [("b", b"2")]]
