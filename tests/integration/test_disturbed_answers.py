"""Answers that are slow, cut in the middle, or never come: the reader of our own reads every record once, in order."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition

from onceward import KafkaCluster
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.places import free_ports
from onceward.dev.toxiproxy import Link, LocalToxiproxy, Stream, Toxic
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from tests.support.topics import Topics
from tests.support.toxiproxy import toxiproxy_or_skip
from tests.support.waiting import wait_until

native = pytest.importorskip("onceward.sources.kafka.client.native.consumer", exc_type=ImportError)

pytestmark = pytest.mark.timeout(300)

SILENCE_S = 1
SETTINGS = {"socket.timeout.ms": f"{SILENCE_S}000", "socket.connection.setup.timeout.ms": f"{SILENCE_S}000"}
ROUNDS, RECORDS, PARTITIONS = 60, 100, 2
"""Transactions, of which every third is aborted, and how many records of 1 kB each has in a partition."""


Linked = tuple[LocalKafka, Link, Callable[[], int]]


class Fault(NamedTuple):
    toxics: Sequence[Toxic]
    breaks: bool = False
    """It ends connections, new ones too."""
    said: str = ""
    """Part of a line in the reader's log."""


def down(kind: str, **attributes: int) -> Sequence[Toxic]:
    return [Toxic(type=kind, stream=Stream.DOWN, attributes=attributes)]


def cut_after(size: int) -> Sequence[Toxic]:
    return down("limit_data", bytes=size)


FAULTS = {
    "late": Fault(down("latency", latency=100, jitter=90)),
    "slow": Fault(down("bandwidth", rate=200)),
    "in small pieces": Fault(down("slicer", average_size=1000, size_variation=990, delay=20)),
    "silent": Fault(down("timeout", timeout=0), said=f"no answer for {SILENCE_S} s"),
    "silent, then cut": Fault(down("timeout", timeout=100), breaks=True),
    "reset": Fault(down("reset_peer", timeout=30), breaks=True),
    "slow, then cut": Fault(
        [*down("bandwidth", rate=20), *cut_after(50_000)], breaks=True, said="the broker closed the connection"
    ),
    **{f"cut after {size} bytes": Fault(cut_after(size), breaks=True) for size in (3, 300, 3_000, 30_000, 100_000)},
}


@pytest.fixture(scope="module")
def linked_broker() -> Iterator[Linked]:
    """A broker, a link to it, and the number of connections that the link has accepted."""
    toxiproxy_or_skip()
    address = f"127.0.0.1:{free_ports(1, None)[0].client}"
    with LocalKafka(heap="256m", advertised={"CLIENTS": [address]}) as kafka, LocalToxiproxy() as proxies:
        link = proxies.link("clients", kafka.listening("CLIENTS")[0], address)
        yield kafka, link, lambda: proxies.accepted()[link.name]


@pytest.fixture
def linked(linked_broker: Linked) -> Iterator[Linked]:
    yield linked_broker
    linked_broker[1].heal()


def written(topics: Topics, topic: str) -> list[tuple[int, bytes]]:
    """Write committed and aborted transactions. Return what of them is to be read of each partition."""
    config = {"bootstrap.servers": topics.servers, "log_level": 0, "transactional.id": topic, "linger.ms": 5}
    producer = Producer({**config, "batch.size": 20_000})
    producer.init_transactions(30)
    kept, offset = [], 0
    for each in range(ROUNDS):
        producer.begin_transaction()
        for _ in range(RECORDS):
            value = b"%d" % offset + bytes(1000)
            for partition in range(PARTITIONS):
                producer.produce(topic, value, partition=partition)
            if each % 3 != 1:
                kept.append((offset, value))
            offset += 1
        if each % 3 == 1:
            assert producer.flush(30) == 0
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
        offset += 1  # the marker
    return kept


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.crash)])
def test_no_record_is_lost_or_doubled_while_answers_are_slow_cut_or_missing(
    linked: Linked, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    kafka, link, accepted = linked
    topics = Topics(kafka.bootstrap_servers, f"disturbed-{seed}")
    topic = topics.create("in", PARTITIONS)
    expected = written(topics, topic)
    got: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
    reader = KafkaSplitReader(cluster=KafkaCluster(link.address, config=SETTINGS), group_id="g")
    settings: dict[str, Any] = {**reader.settings(), "fetch.message.max.bytes": 40_000}

    with closing(native.NativeConsumer(settings, logger=logging.getLogger("onceward.kafka"))) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])

        def take() -> None:
            with consumer.fetched(20, 0.1) as fetched:
                for records in fetched.records:
                    got[records.partition] += zip(records.offsets.tolist(), records.values().to_pylist(), strict=True)

        def more_of_each(count: int) -> None:
            goals = [min(len(each) + count, len(expected)) for each in got]

            def reached() -> bool:
                take()
                return all(len(each) >= goal for each, goal in zip(got, goals, strict=True))

            wait_until(reached, f"{count} more records of each partition")

        def connected(number: int) -> bool:
            take()
            return accepted() >= number

        def says(what: str) -> bool:
            take()
            return what in caplog.text

        more_of_each(1)
        faults = [*FAULTS]
        random.Random(seed).shuffle(faults)
        for name in faults:
            fault = FAULTS[name]
            for toxic in fault.toxics:
                link.add(toxic)
            if fault.breaks:
                number = accepted() + 3
                link.drop()
                wait_until(partial(connected, number), f"{name}: the reader connects again and again")
            if fault.said:
                caplog.clear()
                wait_until(partial(says, fault.said), f"{name}: the log says {fault.said!r}")
            if not (fault.breaks or fault.said):
                more_of_each(100)
            link.heal()
            more_of_each(20)
        assert max(map(len, got)) < len(expected), "something was left to read under each fault"
        more_of_each(len(expected))
    for each in got:
        assert each == expected
