"""Arrow columns as record batches: what was written is read, in the partitions and the order of Java's producers."""

import struct
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.sinks.kafka.client.partitioner import partitions as existing_partitions
from tests.conftest import examples
from tests.unit.native.strategies import HEADERS, OPTIONAL_BYTES, TIMESTAMPS

pytest.importorskip("onceward_native", reason="onceward-native is not built", exc_type=ImportError)

from onceward_native import (
    Batch,
    Compression,
    Decoder,
    Encoder,
    RecordTooLargeError,
    UnfitRecordError,
    columns_schema,
    compressions,
)
from tests.support.record_batches import crc32c
from tests.unit.native.reading import COLUMNS, FOREVER, memory, rows

Row = Mapping[str, Any]
NOW = 1_700_000_000_000
HEADERS_TYPE = columns_schema(["headers"]).field("headers").type
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ("headers", HEADERS_TYPE),
    ]
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": OPTIONAL_BYTES,
            "value": OPTIONAL_BYTES,
            "partition": st.none() | st.integers(0, 4),
            "timestamp": st.none() | TIMESTAMPS,
            "headers": st.none() | HEADERS.map(lambda pairs: [{"key": name, "value": value} for name, value in pairs]),
        }
    ),
    max_size=20,
)
NAMES = st.lists(st.sampled_from(SCHEMA.names), unique=True)


def columns(some: Sequence[Row], names: Sequence[str] = SCHEMA.names) -> pa.RecordBatch:
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return pa.RecordBatch.from_arrays([pa.array([r[f.name] for r in some], f.type) for f in schema], schema=schema)


def batch_of(**of: Sequence[Any]) -> pa.RecordBatch:
    names = [*of]
    return columns([dict(zip(names, values, strict=True)) for values in zip(*of.values(), strict=True)], names)


def read(batches: Sequence[Batch]) -> dict[int, list[Any]]:
    """Read each partition's records, without their offsets."""
    found: dict[int, list[Any]] = defaultdict(list)
    decoder = Decoder(COLUMNS, check_crc=True)
    for batch in batches:
        decoder.open(batch.data, start=0, end=FOREVER)
        got = rows(decoder)
        assert [row[0] for row in got] == [*range(batch.records)]
        assert max(row[3] for row in got) == batch.max_timestamp
        assert decoder.bytes_used == batch.data.size
        found[batch.partition] += [row[1:] for row in got]
    return found


def murmur2_partition(key: bytes, count: int) -> int:
    data = np.frombuffer(key or b"\0", np.uint8)
    return int(existing_partitions(data, np.zeros(1, np.int64), np.array([len(key)], np.int64), count)[0])


def as_written(row: Row, names: Sequence[str], keyless: int) -> tuple[int, Any]:
    """The partition of a row, and its record as it is read."""
    has = {name: row[name] for name in names}
    partition, key = has.get("partition"), has.get("key")
    if partition is None:
        partition = keyless if key is None else murmur2_partition(key, 5)
    time = has.get("timestamp")
    headers = [(pair["key"], pair["value"]) for pair in has.get("headers") or []] or None
    return partition, (key, has.get("value"), NOW if time is None else time, 0, headers)


@settings(max_examples=examples(300))
@given(st.lists(ROWS, max_size=3), st.sampled_from(compressions()), st.integers(4000, 20_000), NAMES, st.data())
def test_what_is_written_is_read(
    parts: list[list[Row]], compression: Compression, most: int, names: list[str], data: st.DataObject
) -> None:
    encoder = Encoder(5, most_bytes=most, compression=compression)
    encoder.begin(1, 1)
    expected, written = defaultdict(list), []
    for part in parts:
        if not names:  # Arrow keeps no number of rows without a column
            continue
        start = data.draw(st.integers(0, len(part)))
        length = data.draw(st.integers(0, len(part) - start))
        try:
            written += encoder.add(columns(part, names).slice(start, length), keyless=3, now_ms=NOW)
        except RecordTooLargeError:
            return
        if data.draw(st.booleans()):
            written += encoder.take(data.draw(st.sampled_from([0, 1000])))
        for row in part[start : start + length]:
            partition, record = as_written(row, names, 3)
            expected[partition].append(record)
    written += encoder.take()
    assert encoder.take() == []
    assert read(written) == expected
    sequences: dict[int, int] = defaultdict(int)
    for batch in written:
        assert batch.data.size <= most
        assert batch.base_sequence == sequences[batch.partition]
        sequences[batch.partition] += batch.records


@given(st.lists(st.binary(max_size=30) | st.binary(min_size=250, max_size=270), min_size=1), st.integers(1, 1000))
def test_keys_are_in_the_partitions_of_javas_producers(keys: list[bytes], count: int) -> None:
    """As the present writer computes them, which is held against librdkafka's."""
    encoder = Encoder(count, most_bytes=1_000_000)
    encoder.add(batch_of(key=keys), keyless=0)
    found = [(row[0], partition) for partition, records in read(encoder.take()).items() for row in records]
    assert sorted(found) == sorted((key, murmur2_partition(key, count)) for key in keys)


def header(batch: Batch) -> tuple[Any, ...]:
    return struct.unpack(">qiiBIhiqqqhii", bytes(batch.data)[:61])


def test_the_header_says_what_a_broker_checks() -> None:
    encoder = Encoder(2, most_bytes=10_000, compression="gzip")
    encoder.begin(7_000_000_000, 12)
    times = batch_of(value=[b"x" * 100] * 3, timestamp=[5, 9, 7])
    first = encoder.add(times, keyless=1) + encoder.take()
    second = encoder.add(times, keyless=1) + encoder.take()
    for batch, sequence in ((first[0], 0), (second[0], 3)):
        data = bytes(batch.data)
        assert header(batch) == (
            *(0, len(data) - 12, -1, 2, crc32c(data[21:]), 0x10 | 1),
            *(2, 5, 9, 7_000_000_000, 12, sequence, 3),
        )
        assert len(zlib.decompress(data[61:], 31)) == 3 * (1 + 1 + 1 + 1 + 1 + 2 + 100 + 1) + 3
    encoder.begin(7_000_000_000, 13)
    encoder.add(times, keyless=1)
    assert encoder.take()[0].base_sequence == 0


def test_without_a_producer_there_are_no_sequences() -> None:
    encoder = Encoder(1, most_bytes=10_000, transactional=False)
    for _ in range(2):
        encoder.add(batch_of(value=[b"x"]), keyless=0)
        [batch] = encoder.take()
        assert header(batch)[5] == 0
        assert header(batch)[9:12] == (-1, -1, -1)
        assert batch.base_sequence == -1


def test_a_batch_is_filled_to_its_limit_and_not_beyond() -> None:
    for most in range(61 + 8, 61 + 40):
        encoder = Encoder(1, most_bytes=most)
        batches = encoder.add(batch_of(value=[b"x"] * 50), keyless=0) + encoder.take()
        assert sum(batch.records for batch in batches) == 50
        for batch in batches[:-1]:
            assert most - 8 < batch.data.size <= most


@pytest.mark.parametrize("compression", compressions())
def test_what_does_not_compress_stays_within_the_limit(compression: Compression) -> None:
    noise = np.random.default_rng(1).bytes(50_000)
    encoder = Encoder(1, most_bytes=10_000, compression=compression)
    values = [noise[at : at + 2400] for at in range(0, 48_000, 2400)]
    batches = encoder.add(batch_of(value=values), keyless=0, now_ms=NOW) + encoder.take()
    assert [row[1] for row in read(batches)[0]] == values
    for batch in batches:
        assert batch.data.size <= 10_000
        assert header(batch)[5] & 7 == 0, "it became no smaller, so it is not compressed"


def test_batches_are_taken_from_a_size_on() -> None:
    encoder = Encoder(3, most_bytes=1000)
    encoder.add(batch_of(partition=[0, 1, 1], value=[b"x", b"x", b"x"]), keyless=0)
    assert encoder.take(61 + 17) == []
    assert [(batch.partition, batch.data.size) for batch in encoder.take(61 + 16)] == [(1, 61 + 16)]
    assert [(batch.partition, batch.data.size) for batch in encoder.take()] == [(0, 61 + 8)]


def test_a_record_that_fits_into_no_batch_is_refused_with_its_size() -> None:
    encoder = Encoder(1, most_bytes=100)
    with pytest.raises(RecordTooLargeError, match="Row 1 is too large: a batch with it alone has 2070 bytes") as raised:
        encoder.add(batch_of(value=[b"x", b"y" * 2000]), keyless=0, now_ms=0)
    assert (raised.value.row, raised.value.bytes) == (1, 2070)
    fitting = Encoder(1, most_bytes=2070)
    fitting.add(batch_of(value=[b"y" * 2000]), keyless=0, now_ms=0)
    assert fitting.take()[0].data.size == 2070


@pytest.mark.parametrize("partition", [-1, 2, 2**31 - 1, -(2**31)])
def test_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    encoder = Encoder(2, most_bytes=1000)
    with pytest.raises(UnfitRecordError, match=f"Row 1 names partition {partition}, and the topic has 2") as raised:
        encoder.add(batch_of(partition=[1, partition]), keyless=0)
    assert raised.value.row == 1


def test_a_header_without_a_name_is_refused() -> None:
    for headers in ([{"key": None, "value": b""}], [None]):
        with pytest.raises(UnfitRecordError, match="Row 1 has a header without a name"):
            Encoder(1, most_bytes=1000).add(batch_of(headers=[None, headers]), keyless=0)


def test_a_header_is_null_where_its_own_slice_says_so() -> None:
    pairs = pa.array([None, {"key": "a", "value": b"1"}, None], HEADERS_TYPE.value_type)[1:]
    fitting = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pairs)
    encoder = Encoder(1, most_bytes=1000)
    encoder.add(pa.record_batch({"headers": fitting}), keyless=0, now_ms=0)
    assert read(encoder.take())[0][0][-1] == [("a", b"1")]
    unfit = pa.ListArray.from_arrays(pa.array([1, 2], pa.int32()), pairs)
    with pytest.raises(UnfitRecordError, match="Row 0 has a header without a name"):
        encoder.add(pa.record_batch({"headers": unfit}), keyless=0)


def test_headers_of_any_shape_of_slice_are_written() -> None:
    """Lists, pairs, names and values may each begin anywhere in their memory, and nulls may hide something."""
    names, values = pa.array(["hidden", "a", "b", "c", "d"])[1:], pa.array([b"0", b"1", None, b"3", b"4"])[1:]
    names, values = (pa.concat_arrays([each[:1], each]) for each in (names, values))
    pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])[1:]
    ends, none = pa.array([0, 1, 2, 2, 4], pa.int32()), pa.array([False, True, False, False])
    lists = pa.ListArray.from_arrays(ends, pairs, mask=none)
    for start in range(4):
        encoder = Encoder(1, most_bytes=1000)
        encoder.add(pa.record_batch({"headers": lists.slice(start)}), keyless=0, now_ms=0)
        found = [row[-1] for row in read(encoder.take())[0]]
        assert found == [[("a", b"1")], None, None, [("c", b"3"), ("d", b"4")]][start:]


def test_types_as_spark_and_others_name_them_are_taken() -> None:
    pair = pa.struct([pa.field("name", pa.binary(), nullable=False), pa.field("content", pa.string())])
    headers = pa.array([[{"name": b"n", "content": "c"}]], pa.list_(pa.field("element", pair, nullable=False)))
    taken = pa.record_batch(
        {
            "key": pa.array(["text"]),
            "value": pa.array(["text"]),
            "headers": headers,
            "timestamp": pa.array([5], pa.timestamp("ms", "UTC")),
        }
    )
    encoder = Encoder(1, most_bytes=1000)
    encoder.add(taken, keyless=0)
    assert read(encoder.take()) == {0: [(b"text", b"text", 5, 0, [("n", b"c")])]}


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("value", pa.array([b"x"], pa.large_binary())),
        ("key", pa.array([1])),
        ("partition", pa.array([1], pa.int64())),
        ("timestamp", pa.array([1], pa.timestamp("us"))),
        ("headers", pa.array([["x"]])),
        ("topic", pa.array(["x"])),
    ],
)
def test_other_columns_and_types_are_refused(name: str, column: pa.Array) -> None:
    with pytest.raises(ValueError, match=r"columns must be different ones of|must be "):
        Encoder(1, most_bytes=1000).add(pa.record_batch({name: column}), keyless=0)


def test_wrong_arguments_are_refused() -> None:
    wrong: list[tuple[Mapping[str, Any], str]] = [
        ({"partitions": 0}, "at least one partition"),
        ({"most_bytes": 0}, "most_bytes must be"),
        ({"most_bytes": 2**31}, "most_bytes must be"),
        ({"compression": "brotli"}, "compression must be one of none, gzip"),
        ({"compression": "snappy", "level": 1}, "snappy has no level 1"),
        ({"compression": "zstd", "level": 23}, "zstd has no level 23"),
    ]
    for arguments, what in wrong:
        with pytest.raises(ValueError, match=what):
            Encoder(**{"partitions": 1, "most_bytes": 1000, **arguments})


def test_a_level_changes_the_size() -> None:
    text = b" ".join(b"%d" % (n * n) for n in range(20_000))
    for compression, low, high in (("gzip", 1, 9), ("lz4", 1, 12), ("zstd", 1, 19)):
        sizes = []
        for level in (low, high):
            encoder = Encoder(1, most_bytes=1_000_000, compression=compression, level=level)  # type: ignore[arg-type]
            encoder.add(batch_of(value=[text]), keyless=0)
            sizes.append(encoder.take()[0].data.size)
        assert sizes[0] > sizes[1]


def test_batches_live_without_their_encoder_and_are_freed_with_their_last_reference() -> None:
    records = batch_of(value=[b"x" * 100_000] * 50)

    def write() -> int:
        for _ in range(20):
            encoder = Encoder(4, most_bytes=1_000_000)
            batches = encoder.add(records, keyless=2, now_ms=NOW) + encoder.take()
            del encoder
            assert len(read(batches)[2]) == 50
        return memory()

    before = write()
    assert write() < before + 50_000_000  # 100 MB if they stayed


@given(st.binary(max_size=5000), st.integers(0, 20))
def test_checksums_are_equal_with_and_without_the_instruction(data: bytes, times: int) -> None:
    from onceward_native.library import lib

    for some in (data, data * times):
        assert lib.crc32c(some, len(some), 0) == lib.crc32c(some, len(some), 1)
    assert lib.crc32c(data[:100], len(data[:100]), 0) == crc32c(data[:100])


@given(st.binary(max_size=300), st.integers(1, 400))
def test_snappy_is_what_other_libraries_read(piece: bytes, times: int) -> None:
    value = piece * times
    encoder = Encoder(1, most_bytes=1_000_000, compression="snappy")
    encoder.add(batch_of(value=[value]), keyless=0, now_ms=0)
    [batch] = encoder.take()
    if header(batch)[5] & 7:
        plain = Encoder(1, most_bytes=1_000_000)
        plain.add(batch_of(value=[value]), keyless=0, now_ms=0)
        raw = bytes(plain.take()[0].data)[61:]
        assert pa.Codec("snappy").decompress(bytes(batch.data)[61:], len(raw), asbytes=True) == raw
