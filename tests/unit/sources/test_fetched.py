"""Messages anywhere in memory become the columns that they are; with librdkafka's own messages it is tested on a broker
(tests/integration/test_kafka_source.py)."""

import ctypes
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from mmap import mmap

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from connections.rdkafka.client import PRODUCER, Callbacks, new_client
from connections.rdkafka.library import lib
from sources.kafka.client import consumer
from sources.kafka.client.fetched import fetched
from tests.unit.sources.memory import Memory, Row

CONTENT = st.none() | st.binary(max_size=40)


@pytest.fixture(scope="module")
def topics() -> Iterator[dict[str, int]]:
    """Handles of a client without a broker."""
    callbacks = Callbacks.of(logging.getLogger("nobody"))
    client = new_client(PRODUCER, {}, callbacks)
    handles = {name: lib.topic_new(client, name.encode(), None) for name in ("a", "b")}
    yield handles
    for handle in handles.values():
        lib.topic_destroy(handle)
    lib.destroy(client)


@given(st.lists(st.tuples(CONTENT, CONTENT), max_size=30))
def test_keys_and_values_are_as_they_were_wherever_they_lie_and_stay(
    pairs: list[tuple[bytes | None, bytes | None]],
) -> None:
    memory = Memory()
    rows: list[Row] = [(offset, key, value) for offset, (key, value) in enumerate(pairs)]
    records = memory.records("t", 0, rows)
    keys, values, offsets = records.keys(), records.values(), records.offsets
    assert records.value_bytes() == sum(len(value or b"") for _, value in pairs)
    memory.forget()
    for column in (keys, values):
        column.validate(full=True)
        assert column.type == pa.binary()
    assert keys.to_pylist() == [key for key, _ in pairs]
    assert values.to_pylist() == [value for _, value in pairs]
    assert offsets.tolist() == list(range(len(pairs)))


def test_no_more_memory_is_taken_than_the_values_need_however_far_apart_they_lie() -> None:
    apart = mmap(-1, 1_000_000_000)
    apart[:3], apart[-3:] = b"one", b"two"
    room = (ctypes.c_char * len(apart)).from_buffer(apart)
    first, last = ctypes.addressof(room), ctypes.addressof(room) + len(apart) - 3
    records = Memory().records("t", 0, [(0, None, None), (1, None, None), (2, None, None)])
    messages = records.messages.copy()
    messages["payload"], messages["len"] = [first, last, first], 3
    before = pa.default_memory_pool().max_memory()
    values = replace(records, messages=messages).values()
    assert values.to_pylist() == [b"one", b"two", b"one"], "in their order, not in that of the memory"
    assert pa.default_memory_pool().max_memory() - before < 10_000


def test_messages_are_told_apart_by_partition_and_topic_in_their_order(topics: dict[str, int]) -> None:
    memory = Memory()
    places = [("a", 0), ("a", 0), ("a", 1), ("b", 1), ("a", 0)]
    addresses = [
        memory.message((offset, None, b"%d" % offset), topic=topics[topic], partition=partition)
        for offset, (topic, partition) in enumerate(places)
    ]
    got = fetched(np.array(addresses, np.intp))
    assert [(each.topic, each.partition, each.values().to_pylist()) for each in got.records] == [
        ("a", 0, [b"0", b"1"]),
        ("a", 1, [b"2"]),
        ("b", 1, [b"3"]),
        ("a", 0, [b"4"]),
    ]
    assert got.events == []


def test_what_is_no_record_is_an_event_and_in_no_column(topics: dict[str, int]) -> None:
    memory = Memory()
    handle = topics["a"]
    end, broken = KafkaError._PARTITION_EOF, KafkaError._TRANSPORT
    addresses = [
        memory.message((6, None, b"six"), topic=handle),
        memory.message((9, None, b"the end\0"), topic=handle, error=end),
        memory.message((7, None, b"seven"), topic=handle),
        memory.message((-1, None, b"no connection\0"), partition=-1, error=broken),
    ]
    got = fetched(np.array(addresses, np.intp))
    assert [each.values().to_pylist() for each in got.records] == [[b"six", b"seven"]]
    assert [(each.topic, each.partition, each.offset, each.error.code()) for each in got.events] == [
        ("a", 0, 9, end),
        (None, -1, -1, broken),
    ]
    assert "no connection" in got.events[1].error.str()


def test_nothing_is_nothing() -> None:
    assert fetched(np.zeros(0, np.intp)) == ([], [])


def test_what_is_below_an_offset_has_its_own_messages() -> None:
    memory = Memory()
    records = memory.records("t", 3, [(4, None, b"4"), (7, None, b"7"), (9, None, b"9")])
    below = records.below(9)
    assert below.values().to_pylist() == [b"4", b"7"]
    assert below.addresses.tolist() == records.addresses[:2].tolist()
    assert len(records.below(4)) == 0


def test_the_library_takes_a_list_of_messages_as_its_own() -> None:
    """Else each is given back alone: right, and slower. A newer library may need another way."""
    assert consumer._TOGETHER


_FORKED = """
import logging, os
from sources.kafka.client import ArrowConsumer

logging.disable()
consumer = ArrowConsumer({"group.id": "g"}, logger=logging.getLogger())
child = os.fork()
consumer.close()
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""


def test_a_fork_can_let_go_of_a_client_whose_threads_it_does_not_have() -> None:
    """Spark's workers are forks."""
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
