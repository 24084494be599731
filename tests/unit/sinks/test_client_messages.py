"""Arrow columns reach the client unchanged: every value, key and header, from any part of a batch."""

import ctypes
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.connections.rdkafka.library import MESSAGE, VALUE_UNION, ValueType
from onceward.sinks.kafka.client import UnfitRecordError
from onceward.sinks.kafka.client.messages import Partitioning, argument_lists, by_partition
from onceward.sinks.kafka.client.partitioner import LONGEST_KEY, murmur2
from onceward.sinks.kafka.client.producer import _places as next_places

PARTITIONS = 7
KEYLESS = 3
PLACES = Partitioning(PARTITIONS, KEYLESS)
TOPIC = 12345
BINARY = [pa.binary(), pa.large_binary()]
TEXT = [pa.string(), pa.large_string()]
HEADERS = [
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
]
anything = (
    st.none()
    | st.binary(max_size=40)
    | st.builds(lambda start, more: start + bytes(more), st.binary(max_size=9), st.integers(0, LONGEST_KEY + 8))
)
headers = st.none() | st.lists(
    st.tuples(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=3), anything), max_size=3
)
rows = st.lists(
    st.tuples(anything, anything, st.none() | st.integers(0, 9), st.none() | st.integers(1, 2**40), headers),
    max_size=12,
)
parts = st.tuples(st.integers(0, 12), st.integers(0, 12))


def pointed(address: int, size: int) -> bytes | None:
    return ctypes.string_at(address, size) if address else None


def batch(records: list[Any], kind: int, part: tuple[int, int]) -> tuple[pa.RecordBatch, list[Any]]:
    """Return a part of a larger batch, and the records in that part."""
    values, keys, partitions, stamps, named = zip(*records, strict=True) if records else [()] * 5
    pairs = [None if of is None else [{"key": k, "value": v} for k, v in of] for of in named]
    whole = pa.record_batch(
        {
            "value": pa.array(values, BINARY[kind]),
            "key": pa.array(keys, BINARY[kind]),
            "partition": pa.array(partitions, pa.int32()),
            "timestamp": pa.array(stamps, pa.timestamp("ms", "UTC")),
            "headers": pa.array(pairs, HEADERS[kind]),
        }
    )
    start, length = min(part[0], len(records)), part[1]
    return whole.slice(start, length), records[start : start + length]


def hashed(key: bytes) -> int:
    """Java's murmur2, byte by byte."""
    length, m, mask = len(key), 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ length
    for i in range(0, length - length % 4, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = key[length - length % 4 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def place(key: bytes | None, partition: int | None) -> int:
    if partition is not None:
        return partition
    return KEYLESS if key is None else (hashed(key) & 0x7FFFFFFF) % PARTITIONS


@pytest.mark.parametrize("kind", [0, 1], ids=["narrow", "wide"])
@settings(deadline=None)  # only the machine is slow here
@given(records=rows, part=parts)
def test_messages_hold_the_records_of_each_partition_in_order(
    kind: int, records: list[Any], part: tuple[int, int]
) -> None:
    given_batch, expected = batch(records, kind, part)
    found = [
        (partition, pointed(int(m["payload"]), int(m["len"])), pointed(int(m["key"]), int(m["key_len"])))
        for partition, messages in by_partition(given_batch, PLACES)
        for m in messages
    ]
    wanted = [(place(key, partition), value, key) for value, key, partition, _, _ in expected]
    assert found == sorted(wanted, key=lambda record: record[0])


def topic(leaders: list[int], error: int = 0) -> Any:
    """Metadata of a topic."""
    parts = [SimpleNamespace(id=number, leader=leader) for number, leader in enumerate(leaders)]
    return SimpleNamespace(partition_cnt=len(parts), partitions=parts, err=error)


def test_records_without_a_key_go_to_each_partition_that_has_a_leader_in_turn() -> None:
    said = next_places(topic([1, -1, 2, 1]))
    assert not isinstance(said, KafkaError)
    six = list(itertools.islice(said, 6))
    assert [places.partitions for places in six] == [4] * 6
    assert sorted(places.keyless for places in six[:3]) == [0, 2, 3]
    assert six[3:] == six[:3]


def test_while_no_partition_has_a_leader_records_without_a_key_wait_for_one() -> None:
    said = next_places(topic([-1, -1]))
    assert not isinstance(said, KafkaError)
    assert {places.keyless for places in itertools.islice(said, 2)} == {0, 1}


@pytest.mark.parametrize("error", [0, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_topic_without_partition_metadata_is_an_error(error: int) -> None:
    said = next_places(topic([], error))
    assert isinstance(said, KafkaError)
    assert said.code() == (error or KafkaError.LEADER_NOT_AVAILABLE)


def decoded(arguments: Any) -> Iterator[tuple[Any, ...]]:
    for first, count in zip(arguments.firsts, arguments.counts, strict=True):
        memory = (ctypes.c_char * (count * VALUE_UNION.itemsize)).from_address(first)
        said, named = {}, []
        for union in np.frombuffer(memory, VALUE_UNION):
            if union["vtype"] == ValueType.HEADER:
                name = ctypes.string_at(int(union["ptr"])).decode()  # up to the NUL
                named.append((name, pointed(int(union["val"]), int(union["val_size"]))))
            else:
                said[int(union["vtype"])] = union
        assert said[ValueType.TOPIC]["ptr"] == TOPIC
        yield (
            pointed(int(said[ValueType.VALUE]["ptr"]), int(said[ValueType.VALUE]["size"])),
            pointed(int(said[ValueType.KEY]["ptr"]), int(said[ValueType.KEY]["size"])),
            int(said[ValueType.PARTITION]["i32"]),
            int(said[ValueType.TIMESTAMP]["i64"]),
            named,
        )


@pytest.mark.parametrize("kind", [0, 1], ids=["narrow", "wide"])
@settings(deadline=None)
@given(records=rows, part=parts)
def test_arguments_hold_headers_and_timestamps_of_each_record(
    kind: int, records: list[Any], part: tuple[int, int]
) -> None:
    given_batch, expected = batch(records, kind, part)
    made = argument_lists(TOPIC, given_batch, PLACES)
    assert list(decoded(made)) == [
        (value, key, place(key, partition), stamp or 0, named or []) for value, key, partition, stamp, named in expected
    ]
    assert made.partitions == {place(key, partition) for _, key, partition, _, _ in expected}


def test_bytes_under_an_arrow_null_are_not_written() -> None:
    whole = pa.array([b"seen", b"hidden"])
    values = pa.Array.from_buffers(pa.binary(), 2, [pa.array([True, False]).buffers()[1], *whole.buffers()[1:]])
    named = pa.array([[{"key": "a", "value": b"1"}], [{"key": "b", "value": b"2"}]], HEADERS[0])
    hidden = pa.ListArray.from_arrays(named.offsets, named.values, type=HEADERS[0], mask=pa.array([True, False]))
    records = pa.record_batch({"value": values, "headers": hidden})
    [first, second] = decoded(argument_lists(TOPIC, records, PLACES))
    assert (first[0], first[4]) == (b"seen", [])
    assert (second[0], second[4]) == (None, [("b", b"2")])


@pytest.mark.parametrize("kind", TEXT, ids=str)
def test_text_is_written_as_utf_8_and_empty_is_not_null(kind: pa.DataType) -> None:
    for values in (["é", "", None], ["", ""]):
        records = pa.record_batch({"value": pa.array(values, kind)})
        [(_, messages)] = by_partition(records, PLACES)
        found = [pointed(int(m["payload"]), int(m["len"])) for m in messages]
        assert found == [None if value is None else value.encode() for value in values]


@pytest.mark.parametrize(
    ("key", "hash_"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_hash_as_in_javas_own_test(key: bytes, hash_: int) -> None:
    """The cases of org.apache.kafka.common.utils.UtilsTest."""
    data, nothing = np.frombuffer(key, np.uint8), np.zeros(1, np.int64)
    assert murmur2(data, nothing, np.array([len(key)])).astype(np.int32).tolist() == [hash_]
    assert hashed(key) == hash_ % 2**32


@pytest.mark.parametrize(
    ("header", "why"), [({"key": None, "value": b"1"}, "has no name"), ({"key": "a\0b", "value": b"1"}, "NUL")]
)
def test_a_header_that_cannot_be_written_is_refused(header: dict[str, Any], why: str) -> None:
    records = pa.record_batch({"value": [b"x"], "headers": pa.array([[header]], HEADERS[0])})
    with pytest.raises(UnfitRecordError, match=why):
        argument_lists(TOPIC, records, PLACES)


@pytest.mark.parametrize(
    ("unit", "at", "written"),
    [("ms", 0, 1), ("us", 999, 1), ("ns", 999_999, 1), ("us", -1, -1), ("ms", -1, -1), ("s", -1, -1000), ("ms", 2, 2)],
)
def test_times_up_to_1970_are_written_though_the_client_takes_0_for_now(unit: str, at: int, written: int) -> None:
    records = pa.record_batch({"value": [b"x"], "timestamp": pa.array([at], pa.timestamp(unit, "UTC"))})
    made = argument_lists(TOPIC, records, PLACES)
    assert made.unions[made.unions["vtype"] == ValueType.TIMESTAMP]["i64"].tolist() == [written]


def test_the_structures_have_the_sizes_of_the_c_interface() -> None:
    assert (MESSAGE.itemsize, VALUE_UNION.itemsize) == (72, 72)
