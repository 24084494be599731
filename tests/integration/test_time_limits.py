"""Peers that are silent, hang up or are slow: clients notice in time, retry with pauses, and recover."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from onceward import KafkaCluster
from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.common.errors import CheckpointFailedError, CoordinatorLostError, PreflightError
from onceward.common.links import Links
from onceward.connections.admin import reach
from onceward.dev.kafka import LocalKafka
from onceward.dev.toxiproxy import Link, LocalToxiproxy, Stream, Toxic, ToxiproxyError, toxiproxy_server
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sources.kafka.control.metadata import BrokerView
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from onceward.sources.kafka.positions import Partition
from tests.support.scripted import SINK, SOURCE, CoordinatorProcess
from tests.support.shared_kafka import SharedKafka
from tests.support.topics import Topics
from tests.support.waiting import wait_until

WATCHED_S = 10.0
"""How long clients try to use an unusable peer."""
GENEROUS_S = 45.0
"""Three times the limit for noticing: the machine may be busy. The other assertions check the mechanism."""


class Peer:
    """A server that accepts connections and stays silent, or hangs up at once; counts its connections."""

    def __init__(self, *, hangs_up: bool) -> None:
        self.accepted = 0
        self._hangs_up = hangs_up
        self._kept: list[socket.socket] = []
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.accepted += 1
            if self._hangs_up:
                connection.close()
            else:
                self._kept.append(connection)

    def close(self) -> None:
        self.socket.close()
        for connection in self._kept:
            connection.close()


def _cluster(peer: Peer, **config: str) -> KafkaCluster:
    return KafkaCluster(peer.address, config={key.replace("_", "."): value for key, value in config.items()})


def _reaching(peer: Peer) -> None:
    with pytest.raises(PreflightError, match=r"cannot be reached|closes the connection"):
        reach(_cluster(peer), timeout=WATCHED_S)


def _controlling(peer: Peer) -> None:
    with closing(ControlPlane(_cluster(peer))) as control:
        limit = time.monotonic() + WATCHED_S
        while time.monotonic() < limit:
            with pytest.raises(ControlPlaneError):
                control.cluster_id()


def _producing(peer: Peer) -> None:
    producer = Producer({**_cluster(peer).client_config(), "transactional.id": "t", "log_level": 0})
    with pytest.raises(KafkaException):
        producer.init_transactions(WATCHED_S)


def _reading(peer: Peer) -> None:
    settings = KafkaSplitReader(cluster=_cluster(peer), group_id="g").settings()
    with closing(Consumer({**settings, "log_level": 0})) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        limit = time.monotonic() + WATCHED_S
        while time.monotonic() < limit:
            consumer.consume(10, 0.02)


def _reading_natively(peer: Peer) -> None:
    from onceward.sources.kafka.client.native.consumer import NativeConsumer

    settings = KafkaSplitReader(cluster=_cluster(peer), group_id="g").settings()
    with closing(NativeConsumer(settings, logger=logging.getLogger())) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        limit = time.monotonic() + WATCHED_S
        while time.monotonic() < limit:
            consumer.rebootstrap()
            with consumer.fetched(10, 0.02) as got:
                assert not got.records


def _asking_for_jobs(peer: Peer) -> None:
    with OperatorClient(peer.address, patience=f"{WATCHED_S:g}s") as people, pytest.raises(CoordinatorLostError):
        people.jobs()


def _shaking_hands(peer: Peer) -> None:
    control = ControlPlane(_cluster(peer, security_protocol="SSL"))
    with closing(control), pytest.raises(ControlPlaneError):
        control.cluster_id()


CLIENTS: dict[str, Callable[[Peer], None]] = {
    "reach": _reaching,
    "control plane": _controlling,
    "producer": _producing,
    "reader": _reading,
    "coordinator": _asking_for_jobs,
}
if find_spec("onceward_native"):
    CLIENTS["native reader"] = _reading_natively


@dataclass(frozen=True, kw_only=True)
class Met:
    """The result of a client that tried to use its own peer."""

    seconds: float
    connections: int
    """Connections that the peer has accepted."""


@dataclass(frozen=True, kw_only=True)
class Meetings:
    hanging_up: Mapping[str, Future[Met]]
    silent: Mapping[str, Future[Met]]
    handshake: Future[Met]


@pytest.fixture(scope="module", autouse=True)
def meetings() -> Iterator[Meetings]:
    """Let all clients try all peers at the same time, beside the other tests of this module: they only wait."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2 * len(CLIENTS) + 1))

        def begun(meet: Callable[[Peer], None], *, hangs_up: bool) -> Future[Met]:
            return pool.submit(_met, meet, stack.enter_context(closing(Peer(hangs_up=hangs_up))))

        yield Meetings(
            hanging_up={name: begun(meet, hangs_up=True) for name, meet in CLIENTS.items()},
            silent={name: begun(meet, hangs_up=False) for name, meet in CLIENTS.items()},
            handshake=begun(_shaking_hands, hangs_up=False),
        )


def _met(meet: Callable[[Peer], None], peer: Peer) -> Met:
    begun = time.monotonic()
    meet(peer)
    return Met(seconds=time.monotonic() - begun, connections=peer.accepted)


def _connections(meeting: Future[Met]) -> int:
    """The number of connections of a meeting, which must end in time."""
    met = meeting.result(timeout=WATCHED_S + GENEROUS_S)
    assert met.seconds < WATCHED_S + GENEROUS_S
    return met.connections


@pytest.fixture(scope="module")
def proxies() -> Iterator[LocalToxiproxy]:
    try:
        toxiproxy_server()
    except ToxiproxyError as error:
        pytest.skip(str(error))
    with LocalToxiproxy() as made:
        yield made


SILENT = (
    Toxic(type="timeout", stream=Stream.DOWN, attributes={"timeout": 0}),
    Toxic(type="timeout", stream=Stream.UP, attributes={"timeout": 0}),
)


@contextmanager
def silent_both_ways(link: Link) -> Iterator[None]:
    for toxic in SILENT:
        link.add(toxic)
    try:
        yield
    finally:
        link.heal()


def test_a_black_holed_stream_is_noticed_reported_and_replaced(
    proxies: LocalToxiproxy, tmp_path: Path, job: str
) -> None:
    """Neither side hears the other: both notice, the driver reports it, nothing piles up, and the stream recovers."""
    settings = CheckpointSettings(interval="1h", lease="60s", orphan_grace="60s")  # only the connection can show it
    process = CoordinatorProcess(tmp_path / "c").wait_ready()
    links = Links()
    try:
        link = proxies.link(f"grpc-{job}", process.address)
        with OperatorClient(process.address) as people, connect(link.address, links=links) as client:
            session = client.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="d")
            instructions: list[object] = []
            session.start_watch(instructions.append)
            wait_until(lambda: instructions, "the first trigger arrives")
            assert people.describe(JobName(job)).connected
            before = proxies.accepted()[link.name]
            with silent_both_ways(link):
                wait_until(links.troubles, "the driver notices", GENEROUS_S)
                wait_until(lambda: not people.describe(JobName(job)).connected, "the coordinator notices", GENEROUS_S)
                waits = [wait.what for wait in people.job(JobName(job)).waits]
                assert "the instruction stream of its driver" in waits
                (trouble,) = links.troubles()
                assert trouble.link == f"coordinator at {link.address}"
            wait_until(lambda: people.describe(JobName(job)).connected, "the stream is there again", GENEROUS_S)
            wait_until(lambda: len(instructions) > 1, "what is wanted arrives again")
            wait_until(lambda: not links.troubles(), "the driver says that it is over", GENEROUS_S)
            assert len(instructions) <= 10, "level-triggered: nothing was queued"
            assert proxies.accepted()[link.name] - before <= 20
            session.close(CloseReason.STOPPED)
    finally:
        process.end()


def test_a_connection_may_take_seconds_to_be_made(proxies: LocalToxiproxy, tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path / "c").wait_ready()
    try:
        link = proxies.link("far-coordinator", process.address)
        link.add(Toxic(type="latency", stream=Stream.DOWN, attributes={"latency": 2_500}))
        with OperatorClient(link.address, patience=f"{GENEROUS_S:g}s") as people:
            assert people.jobs() == []
        assert proxies.accepted()[link.name] <= 3
    finally:
        process.end()


def test_a_broker_that_goes_silent_is_noticed_reported_and_used_again(
    proxies: LocalToxiproxy, kafka: SharedKafka
) -> None:
    """Through a link to the broker: requests end, the control plane reports the link, and it works after the heal."""
    link = proxies.link("broker", kafka.bootstrap_servers)
    links = Links()
    with closing(ControlPlane(KafkaCluster(link.address), links=links)) as control:
        with silent_both_ways(link), ThreadPoolExecutor(1) as pool:
            error = pool.submit(control.cluster_id).exception(timeout=GENEROUS_S)
            assert isinstance(error, ControlPlaneError)
            (trouble,) = links.troubles()
            assert (trouble.link, trouble.waiting) == ("cluster 'main'", "1 Metadata")
        assert control.cluster_id() == kafka.cluster_id
        assert links.troubles() == ()
        assert proxies.accepted()[link.name] <= 10


def test_a_port_that_hangs_up_is_met_with_growing_pauses(meetings: Meetings) -> None:
    """A proxy whose upstream is dead. With pauses that double from 20 ms to 1 s a client connects at most 25 times in
    10 s, or three times as often if its pauses start over now and then."""
    met = {name: _connections(meeting) for name, meeting in meetings.hanging_up.items()}
    assert all(count >= 2 for count in met.values()), met
    assert max(met.values()) <= 60, met


def test_every_request_backs_off_from_a_dead_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the client can count refused connections. It used to attempt 8,000 a second, and now attempts 3."""
    clients: list[AdminClient] = []
    statistics: list[str] = []

    def counting(config: dict[str, Any], *, logger: logging.Logger) -> AdminClient:
        counted: dict[str, Any] = {**config, "statistics.interval.ms": 100, "stats_cb": statistics.append}
        clients.append(AdminClient(counted, logger=logger))
        return clients[-1]

    monkeypatch.setattr("onceward.connections.admin.AdminClient", counting)
    with LocalKafka(heap="256m") as kafka:
        topic = Topics(kafka.bootstrap_servers, "dead").create("in")
        view = BrokerView(KafkaCluster(kafka.bootstrap_servers), request_timeout=1.0)
        questions: Sequence[Callable[[], object]] = (
            view.cluster_id,
            lambda: view.topics([topic]),
            lambda: view.topic_settings([topic], ["cleanup.policy"]),
            lambda: view.led_ends([Partition(topic, 0)]),
        )
        for ask in questions:
            assert ask()
        kafka.kill()
        killed = time.monotonic()
        for ask in (*questions, *questions):
            with pytest.raises(CheckpointFailedError):
                ask()
        seconds = time.monotonic() - killed
    for client in clients:
        while client.poll(0):
            pass
    newest = {reported["name"]: reported["brokers"].values() for reported in map(json.loads, statistics)}
    attempts = sum(broker["connects"] for brokers in newest.values() for broker in brokers)
    assert 2 <= attempts <= 50 * seconds


def test_a_silent_port_is_retried_without_piling_up_connections(meetings: Meetings) -> None:
    met = {name: _connections(meeting) for name, meeting in meetings.silent.items()}
    assert all(1 <= count <= 4 for count in met.values()), met


def test_an_unanswered_tls_handshake_ends(meetings: Meetings) -> None:
    assert _connections(meetings.handshake) >= 1
