"""What a producer requests from the brokers before its first transaction."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onceward import KafkaCluster
from onceward.connections.rdkafka.library import lib
from onceward.dev.kafka import LocalKafka
from onceward.sinks.kafka.executor.producers import connected, producer_settings
from tests.support.sink_job import batch
from tests.support.topics import Topics


class Relay:
    """A relay in front of a bootstrap server that keeps the answers; the brokers advertise their own addresses."""

    def __init__(self, servers: str) -> None:
        host, port = servers.split(":")
        self._broker = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.servers = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.said = bytearray()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        try:
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._broker)
                for pair in ((client, broker, bytearray()), (broker, client, self.said)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()
        except OSError:
            return  # closed

    @staticmethod
    def _pass(from_: socket.socket, to: socket.socket, kept: bytearray) -> None:
        try:
            while data := from_.recv(65_536):
                kept += data
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one of them hung up


@pytest.fixture
def relay(topics: Topics) -> Iterator[Relay]:
    made = Relay(topics.servers)
    yield made
    made.close()


def started(servers: str, transactional_id: str, topics: list[str]) -> None:
    cluster = KafkaCluster(servers)
    settings = producer_settings(cluster, ())
    producer, _ = connected(cluster.client_config(**settings, **{"transactional.id": transactional_id}), topics)
    producer.init_transactions(30)


def test_a_producer_requests_metadata_only_of_its_own_topics(relay: Relay, topics: Topics) -> None:
    mine = [topics.create("mine"), topics.create("also-mine")]
    foreign = topics.create("foreign")
    for turn in range(30):  # whether it asks through the relay, or on the connection that stays, is chance
        started(relay.servers, f"{topics.prefix}.{turn}", mine)
        if all(topic.encode() in relay.said for topic in mine):
            break
    else:
        pytest.fail("it never asked through the relay")
    assert foreign.encode() not in relay.said


def test_a_transaction_begins_on_a_connection_that_stays(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client knows brokers by their numbers, and drops its connection to a bootstrap server, which has none."""
    numbers, ask = [], lib.metadata

    def asked(client: int, all_topics: int, topic: None, found: Any, timeout: int) -> int:
        code: int = ask(client, all_topics, topic, found, timeout)
        numbers.append(found._obj.contents.orig_broker_id)
        return code

    monkeypatch.setattr(lib, "metadata", asked)
    topic = topics.create()
    for turn in range(12):  # which connection answers first is chance
        started(topics.servers, f"{topics.prefix}.{turn}", [topic])
        assert numbers[-1] >= 0, "else init_transactions waits for half a second"


def test_a_deleted_topic_is_missed_and_not_recreated(job: str) -> None:
    """With brokers that create topics when a client asks for them, which is Kafka's default."""
    with LocalKafka(properties={"auto.create.topics.enable": "true"}, heap="256m") as obliging:
        topics = Topics(obliging.bootstrap_servers, job)
        topic = topics.create()
        topics.delete(topic)
        cluster = KafkaCluster(obliging.bootstrap_servers)
        producer, _ = connected(cluster.client_config(**producer_settings(cluster, ())), [topic])
        with pytest.raises(KafkaException) as caught:
            producer.produce(topic, batch(b"x"), lambda: producer.poll(1))
        assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert topic not in topics.admin.list_topics(timeout=30).topics
