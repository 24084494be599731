"""Batches that kafka-python writes, read by the codec, and the other way round."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import kafka.codec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import default_records
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from tests.support.record_batches import CODECS, Batch
from tests.unit.native.strategies import HEADERS, OPTIONAL_BYTES, batches

pytest.importorskip("onceward_native", reason="onceward-native is not built", exc_type=ImportError)

from onceward_native import Compression, Decoder, Encoder, columns_schema
from tests.unit.native.reading import COLUMNS, FOREVER, encoded, expected, rows

RECORDS = st.lists(st.tuples(st.integers(0, 2**41), OPTIONAL_BYTES, OPTIONAL_BYTES, HEADERS), min_size=1, max_size=20)


@pytest.fixture(autouse=True, scope="module")
def _codecs() -> Any:
    """Give kafka-python its optional codecs, by Arrow's: each is in a package of its own, which nothing else needs."""

    def compress(codec: str) -> Any:
        return lambda data: pa.Codec(codec).compress(data, asbytes=True)

    def decompress(codec: str) -> Any:
        return lambda data: pa.CompressedInputStream(pa.BufferReader(data), codec).read()

    def unsnap(data: bytes) -> bytes:
        size = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(size_of(data)))
        return bytes(pa.Codec("snappy").decompress(data, size, asbytes=True))

    def size_of(data: bytes) -> bytes:
        return data[: next(at for at, byte in enumerate(data) if byte < 0x80) + 1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka.codec, "snappy", SimpleNamespace(compress=compress("snappy"), decompress=unsnap))
        for codec in ("lz4", "zstd"):
            patch.setattr(kafka.codec, f"has_{codec}", lambda: True)
            patch.setattr(default_records, f"{codec}_encode", compress(codec))
            patch.setattr(default_records, f"{codec}_decode", decompress(codec))
        yield


def read_by_kafka_python(data: bytes) -> list[tuple[Any, ...]]:
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    return [(r.offset, r.key, r.value, r.timestamp, r.timestamp_type, [*map(tuple, r.headers)] or None) for r in batch]


@given(RECORDS, st.sampled_from(CODECS), st.booleans())
def test_what_kafka_python_writes_is_read(some: Sequence[Any], codec: str, transactional: bool) -> None:
    builder = DefaultRecordBatchBuilder(2, CODECS.index(codec), transactional, 5, 1, 0, 1 << 30)
    for offset, (timestamp, key, value, headers) in enumerate(some):
        builder.append(offset, timestamp, key, value, headers)
    decoder = Decoder(COLUMNS, check_crc=True)
    data = bytes(builder.build())
    decoder.open(data, start=0, end=FOREVER)
    assert rows(decoder) == read_by_kafka_python(data)
    assert rows(decoder) == []
    assert decoder.next_offset == len(some)


@given(RECORDS, st.sampled_from(CODECS), st.booleans())
def test_what_is_written_kafka_python_reads(some: Sequence[Any], codec: Compression, transactional: bool) -> None:
    encoder = Encoder(1, most_bytes=1 << 30, compression=codec, transactional=transactional)
    encoder.begin(77, 3)
    timestamps, keys, values, headers = zip(*some, strict=True)
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "timestamp": pa.array(timestamps, pa.int64()),
        "headers": pa.array([[*map(tuple, each)] for each in headers], columns_schema(["headers"])[0].type),
    }
    encoder.add(pa.record_batch(columns), keyless=0)
    [batch] = encoder.take()
    read = DefaultRecordBatch(bytes(batch.data))
    assert read_by_kafka_python(bytes(batch.data)) == [
        (n, key, value, timestamp, 0, [*map(tuple, pairs)] or None)
        for n, (timestamp, key, value, pairs) in enumerate(some)
    ]
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (77, 3, 0)
    assert (read.base_offset, read.last_offset, read.records_count) == (0, len(some) - 1, len(some))
    assert (read.is_transactional, read.is_control_batch) == (transactional, False)
    assert (read.first_timestamp, read.max_timestamp) == (timestamps[0], max(timestamps))
    assert read.size_in_bytes == batch.data.size


@given(batches().filter(lambda batch: batch.records))
def test_both_read_the_same(batch: Batch) -> None:
    """Also what no producer writes but a log has: gaps, and the broker's time."""
    in_range = [r._replace(timestamp=abs(r.timestamp) >> 20) for r in batch.records]  # kafka-python does not wrap
    log = [Batch(**{**vars(batch), "records": in_range, "base_timestamp": None})]
    decoder = Decoder(COLUMNS)
    decoder.open(data := encoded(log), start=0, end=FOREVER)
    assert rows(decoder) == read_by_kafka_python(data) == expected(log)


def test_the_codecs_of_kafka_python_are_in_use() -> None:
    """Else the tests above would compare uncompressed batches."""
    for number, codec in enumerate(CODECS):
        builder = DefaultRecordBatchBuilder(2, number, False, -1, -1, -1, 1 << 30)
        builder.append(0, 0, None, bytes(1000), [])
        data = bytes(builder.build())
        assert data[22] == number
        assert read_by_kafka_python(data)[0][2] == bytes(1000)
        assert (data[61:].startswith(b"\x82SNAPPY")) == (codec == "snappy")
