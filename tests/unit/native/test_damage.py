"""Batches that are not what a producer wrote: an error that says what and where, or a correct result, and no crash."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.support.record_batches import ABORT, CODECS, Batch, Record, compressed, marker, old_message, varint, with_crc
from tests.unit.native.strategies import logs

pytest.importorskip("onceward_native", reason="onceward-native is not built", exc_type=ImportError)

from onceward_native import (
    CodecError,
    DamagedBatchError,
    Decoder,
    OldFormatError,
    TooLargeError,
    UnsupportedCompressionError,
)
from onceward_native.library import lib
from tests.unit.native.reading import COLUMNS, FOREVER, encoded, expected, memory, rows

GOOD = Batch(records=[Record(n, 5, b"key", b"value", [("name", b"content")]) for n in range(3)])
MIXED = [
    Batch(records=[Record(n, n, None, b"v" * n, [("é", None)] * (n % 3)) for n in range(4)], codec=codec, base=0)
    for codec in CODECS
]


def opened(data: bytes, *, check_crc: bool = False, start: int = 0, aborted: Sequence[tuple[int, int]] = ()) -> Decoder:
    decoder = Decoder(COLUMNS, check_crc=check_crc)
    decoder.open(data, start=start, end=FOREVER, aborted=aborted)
    return decoder


def changed(batch: Batch, at: int, new: bytes) -> bytes:
    data = batch.encoded()
    return with_crc(data[:at] + new + data[at + len(new) :])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (changed(GOOD, 16, b"\3"), "its format is none of 0, 1 and 2"),
        (changed(GOOD, 8, struct.pack(">i", 48)), "its length is shorter than its header"),
        (changed(GOOD, 8, struct.pack(">i", -1)), "its length is shorter than its header"),
        (changed(GOOD, 0, struct.pack(">q", -1)), "its offsets are negative or too large"),
        (changed(GOOD, 23, struct.pack(">i", -1)), "its offsets are negative or too large"),
        (changed(GOOD, 0, struct.pack(">q", 2**63 - 2)), "its offsets are negative or too large"),
        (changed(GOOD, 57, struct.pack(">i", -1)), "it does not have as many records as its header says"),
        (changed(GOOD, 57, struct.pack(">i", 2)), "it does not have as many records as its header says"),
        (changed(GOOD, 57, struct.pack(">i", 4)), "a length in a record is wrong"),
        (changed(GOOD, 57, struct.pack(">i", 2**31 - 1)), "it does not have as many records as its header says"),
        (changed(GOOD, 61, varint(5)), "a length in a record is wrong"),
        (changed(GOOD, 61, varint(-1)), "a length in a record is wrong"),
        (changed(GOOD, 64, varint(3)), "the offset of a record is not between"),
        (changed(GOOD, 65, varint(60)), "a length in a record is wrong"),
        (changed(GOOD, 69, varint(63)), "a length in a record is wrong"),
        (changed(GOOD, 75, varint(-1)), "a length in a record's headers is wrong"),
        (changed(GOOD, 75, varint(2)), "a length in a record's headers is wrong"),
        (changed(GOOD, 75, varint(0)), "a length in a record is wrong"),
        (changed(GOOD, 76, varint(-1)), "a length in a record's headers is wrong"),
        (GOOD.encoded()[:-1] + b"?", "its checksum"),
    ],
)  # fmt: skip
def test_a_damaged_batch_is_reported_with_its_place_and_its_fault(data: bytes, what: str) -> None:
    before = Batch(records=[Record(0, 0, None, b"before")])
    decoder = opened(before.encoded() + data, check_crc=True)
    with pytest.raises(DamagedBatchError) as raised:
        rows(decoder)
    assert f"(byte {len(before.encoded())} of the answer" in str(raised.value)
    assert f"is damaged: {what}" in str(raised.value)
    assert raised.value.position == len(before.encoded())


def test_records_before_the_damage_are_returned_first_and_the_error_stays() -> None:
    broken = Batch(records=[Record(7, 0, b"", b"")]).encoded()[:-1] + b"\x08"
    decoder = opened(encoded(MIXED[:2]) + broken)
    chunk = decoder.read()
    assert chunk is not None
    assert chunk.records.num_rows == 8
    at = decoder.bytes_used
    for _ in range(3):
        with pytest.raises(DamagedBatchError, match=r"at offset 7 \(byte \d+ of the answer, record 0\)") as raised:
            decoder.read()
        assert (raised.value.offset, raised.value.position, raised.value.record) == (7, at, 0)
        assert (decoder.bytes_used, decoder.next_offset) == (at, 4)


def test_a_wrong_checksum_is_found_only_if_asked_for() -> None:
    data = GOOD.encoded().replace(b"content", b"CONTENT")
    assert len(rows(opened(data))) == 3
    with pytest.raises(DamagedBatchError, match="checksum"):
        opened(data, check_crc=True).read()


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_reported_as_such(magic: int) -> None:
    with pytest.raises(OldFormatError, match="is in format 0 or 1"):
        opened(old_message(magic)).read()


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_compression_is_reported(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionError, match="an unknown compression"):
        opened(changed(GOOD, 22, bytes([codec]))).read()


@pytest.mark.parametrize("codec", CODECS[1:])
def test_compressed_data_that_is_cut_off_changed_or_too_long_is_damaged(codec: str) -> None:
    good = Batch(records=[Record(n, 0, None, b"%d" % n * 9) for n in range(100)], codec=codec)
    header, payload = good.encoded()[:61], good.encoded()[61:]
    for wrong in (payload[:-5], payload[:1], b"", payload + b"12345", b"\xff" * 40):
        data = header[:8] + struct.pack(">i", 49 + len(wrong)) + header[12:] + wrong
        with pytest.raises(DamagedBatchError):
            opened(data).read()


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_compressed_data_in_two_parts_is_read(codec: str) -> None:
    """Streams of these codecs may follow each other, as some producers flush them."""
    raw = GOOD.encoded()
    whole = Batch(records=GOOD.records, codec=codec).encoded()
    payload = compressed(raw[61:80], codec) + compressed(raw[80:], codec)
    data = whole[:8] + struct.pack(">i", 49 + len(payload)) + whole[12:61] + payload
    assert rows(opened(data)) == expected([GOOD])


@pytest.mark.parametrize("codec", CODECS)
def test_more_bytes_than_a_column_may_hold_are_refused(codec: str) -> None:
    large = Batch(records=[Record(0, 0, None, bytes(3_000_000))], codec=codec, xerial=codec == "snappy")
    decoder = opened(large.encoded())
    lib.decoder_limit(decoder._made, 2_900_000)
    with pytest.raises(TooLargeError):
        decoder.read()
    lib.decoder_limit(decoder._made, 3_100_000)
    assert decoder.read() is not None


def test_a_marker_without_a_type_is_damaged() -> None:
    for key in (None, b"", b"\0\0\0"):
        wrong = Batch(records=[Record(0, 0, key, b"")], control=True, transactional=True, producer=1)
        with pytest.raises(DamagedBatchError, match="should end a transaction"):
            opened(wrong.encoded(), aborted=[(1, 0)]).read()


def outcome(data: bytes, aborted: Sequence[tuple[int, int]] = ()) -> str:
    try:
        rows(opened(data, aborted=aborted), 50)
    except CodecError as error:
        return type(error).__name__
    return "read"


@pytest.mark.parametrize("log", [[GOOD], *([batch] for batch in MIXED), [MIXED[0], marker(4, 1, ABORT)]])
def test_every_byte_with_every_value_is_an_error_or_a_result(log: Sequence[Batch]) -> None:
    data = encoded(log)
    interesting = (0, 1, 0x7F, 0x80, 0xFF)
    for at in range(len(data)):
        for new in {*interesting, data[at] ^ 1, data[at] ^ 0x80, data[at] + 1 & 0xFF}:
            outcome(data[:at] + bytes([new]) + data[at + 1 :], [(1, 0)])


@pytest.mark.parametrize("log", [[GOOD], *([batch] for batch in MIXED)])
def test_every_change_is_found_by_the_checksum(log: Sequence[Batch]) -> None:
    """Bytes before the checksum are not covered by it: offset, length, epoch and format."""
    data = encoded(log)
    for at in range(17, len(data)):
        wrong = data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :]
        with pytest.raises(DamagedBatchError, match="checksum"):
            opened(wrong, check_crc=True).read()


def with_length(data: bytes, at: int, size: int) -> bytes:
    """Put a varint of any length where one of a byte is."""
    made = data[:at] + varint(size) + data[at + 1 :]
    return made[:8] + struct.pack(">i", len(made) - 12) + made[12:]


@pytest.mark.parametrize("place", [61, 63, 64, 65, 69, 75, 76, 81], ids=lambda at: f"byte-{at}")
def test_lengths_of_all_sizes_are_an_error_or_a_result(place: int) -> None:
    data = GOOD.encoded()
    sizes = [sign * (1 << bits) + more for bits in range(63) for sign in (1, -1) for more in (-1, 0, 1)]
    assert "read" not in {outcome(with_length(data, place, size)) for size in sizes if size > 1 << 20} - (
        {"read"} if place == 63 else set()  # a time may be any number
    )
    for size in sizes:
        outcome(with_length(data, place, size))


@settings(max_examples=examples(200))
@given(logs(), st.data())
def test_random_damage_is_an_error_or_a_result(log: Sequence[Batch], data: st.DataObject) -> None:
    raw = bytearray(encoded(log))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, min(len(raw) - 1, 120)) | st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    outcome(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@given(st.binary(max_size=300))
def test_any_bytes_are_an_error_or_a_result(data: bytes) -> None:
    outcome(data)
    for codec in range(1, 5):  # as compressed data
        header = GOOD.encoded()[:61]
        outcome(header[:8] + struct.pack(">i", 49 + len(data)) + header[12:21] + bytes([0, codec]) + header[23:] + data)


def test_memory_of_rejected_batches_is_freed() -> None:
    broken = Batch(records=[Record(0, 0, None, bytes(1_000_000)), Record(1, 0, None, b"last")]).encoded()
    data = with_length(broken, len(broken) - 6, 9)

    def read() -> int:
        for _ in range(50):
            assert outcome(data) == "DamagedBatchError"
        return memory()

    before = read()
    assert read() < before + 20_000_000
