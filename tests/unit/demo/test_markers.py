"""Control records, decoded from bytes laid out as in Kafka's documentation."""

import struct

import pytest

from onceward.dev.demo.markers import End, Marker, markers_in

TRANSACTIONAL = 0x10
CONTROL = 0x20


def batch(base: int, *, attributes: int, records: bytes, producer: int = 7, epoch: int = 3, last: int = 0) -> bytes:
    """Return one record batch of format 2; its checksum is never checked."""
    body = struct.pack(">ibIhiqqqhii", 0, 2, 0, attributes, last, 0, 0, producer, epoch, -1, last + 1) + records
    return struct.pack(">qi", base, len(body)) + body


def control_record(kind: int, *, timestamp_delta: bytes = b"\x00") -> bytes:
    """Return a marker: key = version and type, value = version and coordinator epoch."""
    key = struct.pack(">hh", 0, kind)
    value = struct.pack(">hi", 0, 1)
    record = (
        b"\x00" + timestamp_delta + b"\x00" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\x00"
    )
    return bytes([2 * len(record)]) + record


@pytest.mark.parametrize(("kind", "end"), [(0, End.ABORT), (1, End.COMMIT)])
def test_a_marker_names_the_transaction_and_its_end(kind: int, end: End) -> None:
    log = batch(41, attributes=TRANSACTIONAL | CONTROL, records=control_record(kind), producer=1000, epoch=12)
    assert markers_in(log) == ([Marker(end=end, producer_id=1000, producer_epoch=12)], 42)


def test_data_is_passed_over() -> None:
    data = batch(10, attributes=TRANSACTIONAL, records=b"anything at all", last=4)
    marker = batch(15, attributes=TRANSACTIONAL | CONTROL, records=control_record(1))
    found, after = markers_in(data + marker)
    assert [one.end for one in found] == [End.COMMIT]
    assert after == 16


def test_a_cut_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    data = batch(10, attributes=0, records=b"x" * 100, last=9)
    marker = batch(20, attributes=TRANSACTIONAL | CONTROL, records=control_record(0))
    for missing in range(1, len(marker)):
        assert markers_in((data + marker)[:-missing]) == ([], 20)
    assert markers_in(data[:30]) == ([], -1)
    assert markers_in(b"") == ([], -1)


def test_numbers_of_several_bytes_before_the_key_are_skipped() -> None:
    record = control_record(1, timestamp_delta=b"\x80\x80\x01")
    found, _ = markers_in(batch(0, attributes=TRANSACTIONAL | CONTROL, records=record))
    assert [one.end for one in found] == [End.COMMIT]


def test_other_control_records_are_not_ends() -> None:
    found, after = markers_in(batch(0, attributes=CONTROL, records=control_record(2)))
    assert (found, after) == ([], 1)
