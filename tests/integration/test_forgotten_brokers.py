"""All brokers are fenced for a moment: answers name no broker, and clients forget the brokers that they knew."""

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING

from onceward import KafkaCluster
from onceward.common.errors import CheckpointFailedError
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.places import free_ports
from onceward.operate.verify.cluster import ClusterView, Reader
from onceward.operate.verify.history import Lane
from onceward.sinks.kafka.client import new_producer
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor.delivery import Delivery
from onceward.sources.kafka.control.metadata import BrokerView
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from onceward.sources.kafka.positions import Partition
from tests.support.relay import Asked, Relay
from tests.support.topics import Topics
from tests.support.waiting import wait_until

RECORDS = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
_METADATA = 3
_FLEXIBLE = 9
"""The first version of Metadata with the encoding that `_without_brokers` reads."""


class Hiding(Relay):
    """While ``hides`` is set, its answers name no broker, as when all are fenced."""

    def __init__(self, address: str, upstream: str) -> None:
        self.hides = False
        self.hidden: Counter[str] = Counter()
        """Number of answers without brokers, by client id."""
        super().__init__(address, upstream)

    def answered(self, request: Asked, answer: bytes) -> bytes:
        if request.api != _METADATA or not self.hides:
            return answer
        assert request.version >= _FLEXIBLE
        self.hidden[request.client] += 1
        return _without_brokers(answer)


def _without_brokers(answer: bytes) -> bytes:
    """Remove the brokers from a Metadata answer of version 9 or later: correlation id, tags, throttle time, then the
    brokers, each with an id, a host, a port, a rack and tags. Lengths are below 127, and each is encoded plus one."""
    brokers = at = 4 + 1 + 4
    count = answer[at] - 1
    at += 1
    for _ in range(count):
        at += 4
        at += answer[at] + 4  # the host with its length, and the port
        at += max(answer[at], 1) + 1
    return answer[:brokers] + b"\x01" + answer[at:]


@pytest.fixture(scope="module")
def relayed() -> Iterator[tuple[LocalKafka, Hiding, str]]:
    address = f"127.0.0.1:{free_ports(1, None)[0].client}"
    with (
        LocalKafka(heap="256m", advertised={"CLIENTS": [address]}) as kafka,
        closing(Hiding(address, kafka.listening("CLIENTS")[0])) as relay,
    ):
        yield kafka, relay, address


def _cluster(address: str, client: str) -> KafkaCluster:
    return KafkaCluster(address, config={"client.id": client, "topic.metadata.refresh.interval.ms": 100})


@contextmanager
def _hidden(relay: Hiding, client: str) -> Iterator[None]:
    """Name no broker to any client; enter when ``client`` has received such an answer."""
    relay.hides = True
    try:
        wait_until(lambda: relay.hidden[client], "metadata without brokers has reached the client")
        yield
    finally:
        relay.hides = False


@pytest.mark.parametrize("each_writer", ["librdkafka"], indirect=True)  # the other one keeps the addresses it knows
def test_a_writer_whose_metadata_named_no_broker_finds_them_again(
    relayed: tuple[LocalKafka, Hiding, str], each_writer: str
) -> None:
    kafka, relay, address = relayed
    topic = Topics(kafka.bootstrap_servers, f"writer-{each_writer}").create("out")
    config = _cluster(address, each_writer).client_config()
    config |= {"enable.idempotence": True, "transactional.id": each_writer, "transaction.timeout.ms": 120_000}
    producer = new_producer(config, topics=[topic], failed=print, logger=logging.getLogger())
    producer.load_metadata(30)
    producer.init_transactions(30)
    producer.begin_transaction()
    delivery = Delivery(producer, [], topic=topic, topics=(topic,), limit_ms=120_000, failed=DeliveryError)
    delivery.produce(RECORDS)
    delivery.flush()
    with _hidden(relay, each_writer):
        delivery.produce(RECORDS)
        assert producer.flush(1.0)
    delivery.flush()  # gives up a client that delivers nothing for a minute
    producer.abort_transaction(30)


def test_a_reader_whose_metadata_named_no_broker_finds_them_again(
    relayed: tuple[LocalKafka, Hiding, str], each_reader: str
) -> None:
    kafka, relay, address = relayed
    topics = Topics(kafka.bootstrap_servers, each_reader)
    topic = topics.create("in")
    reader = KafkaSplitReader(cluster=_cluster(address, each_reader), group_id="g")
    split = {"topic": topic, "partition": 0, "start": 0, "end": 1}
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(lambda: sum(batch.num_rows for batch in reader(split, frozenset({"value"}))))
        with _hidden(relay, each_reader), pytest.raises(TimeoutError):
            read.result(1.0)
        topics.fill(topic, [b"after"])
        assert read.result(120) == 1  # a task that receives nothing for a minute fails


def test_a_driver_whose_metadata_named_no_broker_finds_them_again(relayed: tuple[LocalKafka, Hiding, str]) -> None:
    kafka, relay, address = relayed
    topic = Topics(kafka.bootstrap_servers, "driver").create("in")
    view = BrokerView(_cluster(address, "driver"), request_timeout=1.0)
    partition = Partition(topic, 0)

    def answered() -> bool:
        with suppress(CheckpointFailedError):
            return view.topics([topic]).keys() == {topic} and view.committed_ends([partition]) == {partition: 0}
        return False

    assert answered()
    with _hidden(relay, "driver"):
        wait_until(lambda: not answered(), "the driver is not answered")
    wait_until(answered, "the driver is answered again")


def test_a_verifier_whose_metadata_named_no_broker_finds_them_again(relayed: tuple[LocalKafka, Hiding, str]) -> None:
    kafka, relay, address = relayed
    topics = Topics(kafka.bootstrap_servers, "verifier")
    topic = topics.create("out")
    cluster = _cluster(address, "verifier")
    with Reader(cluster) as reader:
        reader.add({Lane(topic, 0): OFFSET_BEGINNING})
        with _hidden(relay, "verifier"):
            assert not reader.read(1.0)
        topics.fill(topic, [b"after"])
        wait_until(reader.read, "the record arrives")
        assert ClusterView(cluster).beginnings([topic]) == {Lane(topic, 0): 0}
