"""Messages at any address become the right columns.

tests/integration/test_kafka_source.py tests librdkafka's own messages on a broker.
"""

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

from onceward.connections.rdkafka.client import PRODUCER, Callbacks, new_client
from onceward.connections.rdkafka.library import lib
from onceward.sources.kafka.client import consumer, slow_release
from onceward.sources.kafka.client.fetched import fetched
from onceward.sources.kafka.driver.checks import client_findings
from tests.unit.sources.memory import Memory, Row

CONTENT = st.none() | st.binary(max_size=40)


@pytest.fixture(scope="module")
def topics() -> Iterator[dict[str, int]]:
    """Handles of a client without a broker."""
    callbacks = Callbacks.of(logging.getLogger("unheard"))
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


def test_values_far_apart_take_no_more_memory_than_they_need() -> None:
    """Values in the process's heap and in a thread's heap can be terabytes apart."""
    apart = mmap(-1, 5 << 29)
    ends = [b"one", b"the other end, which is too long for a view", b"", bytes(20_000)]
    places, wanted = [], []
    for at in (0, (1 << 30) - 10_000, (3 << 29) + 1, (2 << 30) - 1, len(apart) - 30_000):
        for value in ends:
            apart[at : at + len(value)] = value
            places.append(at)
            wanted.append(value)
            at += len(value)
    order = np.random.default_rng(1).permutation(len(places))
    room = (ctypes.c_char * len(apart)).from_buffer(apart)
    records = Memory().records("t", 0, [(number, None, None) for number in range(len(places))])
    messages = records.messages.copy()
    messages["payload"] = ctypes.addressof(room) + np.array(places)[order]
    messages["len"] = [len(wanted[number]) for number in order]
    before = pa.default_memory_pool().max_memory()
    values = replace(records, messages=messages).values()
    values.validate(full=True)
    assert values.to_pylist() == [wanted[number] for number in order], "in their order, not in that of the memory"
    assert pa.default_memory_pool().max_memory() - before < 3 * len(b"".join(wanted)) + 10_000


@pytest.mark.parametrize("length", range(20))
def test_no_byte_around_a_value_is_read(length: int) -> None:
    """Each value ends right before an unreadable page, or begins right behind one."""
    page = 4096
    memory = mmap(-1, 3 * page)
    first = ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
    memory[page : 2 * page] = bytes(number % 251 for number in range(page))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for closed in (first, first + 2 * page):
        assert protect(ctypes.c_void_p(closed), page, 0) == 0
    try:
        records = Memory().records("t", 0, [(0, None, None), (1, None, None)])
        messages = records.messages.copy()
        messages["payload"], messages["len"] = [first + page, first + 2 * page - length], length
        middle = ctypes.string_at(first + page, page)
        assert replace(records, messages=messages).values().to_pylist() == [middle[:length], middle[page - length :]]
    finally:
        for closed in (first, first + 2 * page):
            assert protect(ctypes.c_void_p(closed), page, 3) == 0


def test_messages_of_a_partition_are_put_together_in_order(topics: dict[str, int]) -> None:
    memory = Memory()
    places = [("a", 0), ("a", 0), ("a", 1), ("b", 1), ("a", 0), ("a", 1), ("a", 0)]
    addresses = [
        memory.message((offset, None, b"%d" % offset), topic=topics[topic], partition=partition)
        for offset, (topic, partition) in enumerate(places)
    ]
    got = fetched(np.array(addresses, np.intp))
    assert sorted((each.topic, each.partition, each.values().to_pylist()) for each in got.records) == [
        ("a", 0, [b"0", b"1", b"4", b"6"]),
        ("a", 1, [b"2", b"5"]),
        ("b", 1, [b"3"]),
    ]
    assert got.events == []


def test_a_message_that_is_no_record_is_an_event_and_in_no_column(topics: dict[str, int]) -> None:
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


def test_messages_below_an_offset_are_split_off() -> None:
    memory = Memory()
    records = memory.records("t", 3, [(4, None, b"4"), (7, None, b"7"), (9, None, b"9")])
    below = records.below(9)
    assert below.values().to_pylist() == [b"4", b"7"]
    assert below.addresses.tolist() == records.addresses[:2].tolist()
    assert len(records.below(4)) == 0


def test_the_library_accepts_a_list_of_messages_as_its_own() -> None:
    """Otherwise each message is released alone: correct, but slower. A newer library may need another way."""
    assert consumer._TOGETHER
    assert slow_release() is None
    assert list(client_findings()) == []


@pytest.mark.parametrize("version", [0x020F00FF, 0x021100FF])
def test_a_library_of_another_version_is_given_messages_one_by_one(version: int) -> None:
    assert not consumer._given_back_together(version)


@pytest.mark.parametrize("broken", ["messages_destroy", "messages_count", "messages_get"])
def test_a_library_with_another_list_layout_gets_messages_one_by_one(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = consumer._LISTS_KNOWN[0]
    assert consumer._given_back_together(known)
    for other in (None, lambda *_: 1):
        if other is None or broken != "messages_destroy":  # messages_destroy cannot be tried
            monkeypatch.setattr(lib, broken, other)
            assert not consumer._given_back_together(known)


def test_the_slow_release_of_messages_is_reported_before_a_job_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "_TOGETHER", False)
    (finding,) = client_findings()
    assert "one by one" in finding.message


_FORKED = """
import logging, os
from onceward.sources.kafka.client import ArrowConsumer

logging.disable()
consumer = ArrowConsumer({"group.id": "g"}, logger=logging.getLogger())
child = os.fork()
consumer.close()
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""


def test_a_fork_can_release_a_client_whose_threads_it_lacks() -> None:
    """Spark's workers are forks."""
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


_COLLECTED = """
import gc, logging
from unittest.mock import patch

from onceward import KafkaCluster
from onceward.sources.kafka.executor.clients import LARGE, Client, take
from onceward.sources.kafka.executor.ranges import Range
from onceward.sources.kafka.executor.columns import COLUMNS, schema_of
from onceward.sources.kafka.executor.reader import KafkaSplitReader

logging.disable()
split = {"topic": "t", "partition": 0, "start": 0, "end": 2, "epoch": None}
ranges = [Range.of(split, schema_of(COLUMNS), frozenset({"offset"}))]
reader = KafkaSplitReader(cluster=KafkaCluster("127.0.0.1:9"), group_id="g")
with patch.object(KafkaSplitReader, "_batches", lambda *_: iter("ab")):
    for _ in range(3):
        reading = reader._together(ranges, LARGE)
        assert next(reading) == "a"
        cycle = [reading]  # as the traceback of an error that is kept
        cycle.append(cycle)
        del reading, cycle
        gc.collect()
        kept = take(Client(reader.cluster, "g", LARGE))
        assert kept is None or not kept.closed
"""


def test_a_read_that_is_collected_amid_its_records_uses_no_client_that_is_gone() -> None:
    """The garbage collector clears weak references before generators end, so it frees the client first."""
    done = subprocess.run([sys.executable, "-c", _COLLECTED], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
