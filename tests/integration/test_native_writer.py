"""The native writer when brokers refuse, lie, and hang up: what is written, in which order, and when a slot fails."""

import gc
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle as repeated

import pyarrow as pa
import pytest

from onceward import KafkaCluster
from onceward.connections.sockets.encoding import Decoder, Encoder
from onceward.connections.sockets.requests import Api
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.places import free_ports
from onceward.protocol.values import CheckpointId
from onceward.sinks.kafka.client import Producer, new_producer
from onceward.sinks.kafka.client.choice import WRITER_VARIABLE
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor import delivery
from tests.support.relay import Asked, Relay
from tests.support.sink_job import SinkJob, batch
from tests.support.topics import Topics
from tests.support.waiting import wait_until

producer = pytest.importorskip("onceward.sinks.kafka.client.native.producer", exc_type=ImportError)
session = pytest.importorskip("onceward.sinks.kafka.client.native.session", exc_type=ImportError)
pytestmark = pytest.mark.timeout(300)

PARTITIONS = 3
RECORDS = 3_000
SMALL = {"batch.size": 1_000, "linger.ms": 0}
"""Some hundred batches, of which five at a time are on their way."""


class Unsteady(Relay):
    """Its broker answers as ``wrong`` says."""

    def __init__(self, address: str, upstream: str) -> None:
        self.wrong: Callable[[Asked], int | None] = lambda request: None
        """Returns an error code, or None for the broker's own answer."""
        self.reaches: Callable[[], bool] = lambda: False
        """Whether the broker gets a request that is answered with an error."""
        self.given = 0
        super().__init__(address, upstream)

    def asked(self, request: Asked) -> None:
        if request.client == "rdkafka" and request.api in ANSWERS and (code := self.wrong(request)) is not None:
            self.given += 1
            request.answer = request.number + b"\0" + ANSWERS[request.api](request, code)
            request.forwarded = self.reaches()


def _produced(request: Asked, code: int) -> bytes:
    """An answer of Produce 9 to 11 that has an error for each partition."""
    asked = Decoder(memoryview(request.body), flexible=True)
    asked.text(), asked.take("hi")
    out = Encoder(flexible=True)
    topics = {asked.text() or "": [*_written(asked)] for _ in asked.array()}
    out.array(len(topics))
    for topic, partitions in topics.items():
        out.text(topic)
        out.array(len(partitions))
        for partition in partitions:
            out.put("ihqqq", partition, code, -1, -1, -1)
            out.array(0)
            out.uvarint(0)
            out.no_tags()
        out.no_tags()
    out.put("i", 0)
    out.no_tags()
    return bytes(out.data)


def _written(asked: Decoder) -> Iterator[int]:
    for _ in asked.array():
        yield asked.number("i")
        asked.skip(asked.size("i"))
        asked.tags()
    asked.tags()


def _partitions_added(request: Asked, code: int) -> bytes:
    asked = Decoder(memoryview(request.body), flexible=True)
    asked.text(), asked.take("qh")
    out = Encoder(flexible=True)
    out.put("i", 0)
    topics = {asked.text() or "": [*_listed(asked)] for _ in asked.array()}
    out.array(len(topics))
    for topic, partitions in topics.items():
        out.text(topic)
        out.array(len(partitions))
        for partition in partitions:
            out.put("ih", partition, code)
            out.no_tags()
        out.no_tags()
    out.no_tags()
    return bytes(out.data)


def _listed(asked: Decoder) -> Iterator[int]:
    for _ in asked.array():
        yield asked.number("i")
    asked.tags()


def _coordinator_found(request: Asked, code: int) -> bytes:
    out = Encoder(flexible=True)
    out.put("ih", 0, code)
    out.uvarint(0)
    out.put("i", -1)
    out.text("")
    out.put("i", -1)
    out.no_tags()
    return bytes(out.data)


def _plain(form: str, *rest: int) -> Callable[[Asked, int], bytes]:
    def answer(request: Asked, code: int) -> bytes:
        out = Encoder(flexible=True)
        out.put(f"ih{form}", 0, code, *rest)
        out.no_tags()
        return bytes(out.data)

    return answer


ANSWERS: dict[int, Callable[[Asked, int], bytes]] = {
    Api.PRODUCE: _produced,
    Api.FIND_COORDINATOR: _coordinator_found,
    Api.INIT_PRODUCER_ID: _plain("qh", -1, -1),
    Api.ADD_PARTITIONS_TO_TXN: _partitions_added,
    Api.ADD_OFFSETS_TO_TXN: _plain(""),
}


@pytest.fixture(scope="module")
def relayed() -> Iterator[tuple[LocalKafka, Unsteady, str]]:
    address = f"127.0.0.1:{free_ports(1, None)[0].client}"
    with (
        LocalKafka(heap="256m", advertised={"CLIENTS": [address]}) as kafka,
        closing(Unsteady(address, kafka.listening("CLIENTS")[0])) as relay,
    ):
        yield kafka, relay, address


@pytest.fixture
def relay(relayed: tuple[LocalKafka, Unsteady, str]) -> Iterator[Unsteady]:
    yield relayed[1]
    relayed[1].wrong = lambda request: None
    relayed[1].reaches = lambda: False
    relayed[1].given = 0


@pytest.fixture
def topics(relayed: tuple[LocalKafka, Unsteady, str], job: str) -> Topics:
    return Topics(relayed[0].bootstrap_servers, job)


@pytest.fixture
def out(topics: Topics) -> str:
    return topics.create("out", partitions=PARTITIONS)


@pytest.fixture
def sink(
    relayed: tuple[LocalKafka, Unsteady, str], job: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SinkJob]:
    monkeypatch.setenv(WRITER_VARIABLE, "native")
    cluster = KafkaCluster(relayed[2], config=SMALL)
    with SinkJob(relayed[2], job, topic=out, cluster=cluster) as opened:
        yield opened


def numbered() -> Iterator[pa.RecordBatch]:
    """Numbered values in batches of 100; each in the partition of its number."""
    for first in range(0, RECORDS, 100):
        numbers = range(first, first + 100)
        yield pa.RecordBatch.from_pydict(
            {
                "value": [b"%05d" % number + b" " * 60 for number in numbers],
                "partition": pa.array([number % PARTITIONS for number in numbers], pa.int32()),
            }
        )


def assert_each_once_in_order(topics: Topics, out: str) -> None:
    found: dict[int, list[int]] = {}
    for partition, _, _, value in topics.read(out):
        assert value is not None
        found.setdefault(partition, []).append(int(value.strip()))
    assert found == {number: [*range(number, RECORDS, PARTITIONS)] for number in range(PARTITIONS)}


def commit(sink: SinkJob, checkpoint: int, *batches: pa.RecordBatch) -> None:
    committables = sink.pre_commit(checkpoint, [sink.write(checkpoint, *batches)])
    sink.system().commit(sink.author, committables)
    sink.sink.on_settled(CheckpointId(checkpoint), committables)


@pytest.mark.parametrize("reaches", ["never", "always", "at random"])
@pytest.mark.parametrize("code", [3, 5, 6, 7, 13, 19, 20, 51, 56])
def test_what_a_leader_cannot_take_now_is_written_once_and_in_order(
    sink: SinkJob, relay: Unsteady, topics: Topics, out: str, code: int, reaches: str
) -> None:
    """Whether it was written, and the answer lies, or not."""
    chance = random.Random(f"{code} {reaches}")
    relay.wrong = lambda request: code if request.api == Api.PRODUCE and chance.random() < 0.3 else None
    relay.reaches = lambda: {"never": False, "always": True, "at random": chance.random() < 0.5}[reaches]
    commit(sink, 1, *numbered())
    assert relay.given > 5
    assert_each_once_in_order(topics, out)


def test_what_broken_connections_leave_open_is_written_once_and_in_order(
    sink: SinkJob, relay: Unsteady, topics: Topics, out: str
) -> None:
    cuts = 0

    def cut(request: Asked) -> None:
        nonlocal cuts
        if request.api == Api.PRODUCE and chance.random() < 0.1:
            cuts += 1
            relay.cut()

    chance = random.Random(1)
    relay.wrong = cut
    commit(sink, 1, *numbered())
    assert cuts > 2
    assert_each_once_in_order(topics, out)


@pytest.mark.parametrize("code", [-1, 2, 10, 29, 45, 48, 49, 59, 87, 90, 9999])
def test_a_slot_fails_for_every_other_answer_and_the_next_one_writes_all(
    sink: SinkJob, relay: Unsteady, topics: Topics, out: str, code: int
) -> None:
    number = 0

    def tenth(request: Asked) -> int | None:
        nonlocal number
        number += request.api == Api.PRODUCE
        return code if number == 10 and request.api == Api.PRODUCE else None

    relay.wrong = tenth
    with pytest.raises(DeliveryError):
        sink.write(1, *numbered())
    commit(sink, 2, *numbered())
    assert_each_once_in_order(topics, out)


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (Api.FIND_COORDINATOR, 15),
        (Api.INIT_PRODUCER_ID, 14),
        (Api.INIT_PRODUCER_ID, 16),
        (Api.INIT_PRODUCER_ID, 51),
        (Api.ADD_PARTITIONS_TO_TXN, 3),
        (Api.ADD_PARTITIONS_TO_TXN, 14),
        (Api.ADD_PARTITIONS_TO_TXN, 51),
        (Api.ADD_OFFSETS_TO_TXN, 16),
        (Api.ADD_OFFSETS_TO_TXN, 51),
    ],
)
def test_a_coordinator_that_is_busy_or_moves_is_asked_again(
    sink: SinkJob, relay: Unsteady, topics: Topics, out: str, api: Api, code: int
) -> None:
    turns = repeated([code, code, None])
    relay.wrong = lambda request: next(turns) if request.api == api else None
    commit(sink, 1, *numbered())
    assert relay.given >= 2
    assert_each_once_in_order(topics, out)


@pytest.mark.parametrize(
    "api", [Api.FIND_COORDINATOR, Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN]
)
@pytest.mark.parametrize("code", [-1, 47, 53, 90])
def test_a_coordinator_that_refuses_fails_the_slot(
    sink: SinkJob, relay: Unsteady, topics: Topics, out: str, api: Api, code: int
) -> None:
    relay.wrong = lambda request: code if request.api == api else None
    with pytest.raises(DeliveryError):
        sink.write(1, *numbered())
    relay.wrong = lambda request: None
    commit(sink, 2, batch(b"after"))
    assert topics.values(out) == [b"after"]


def test_a_slot_fails_soon_for_a_partition_that_a_topic_has_lost(
    sink: SinkJob, topics: Topics, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was created again, with fewer, and the writer has not heard of it."""
    monkeypatch.setattr(delivery, "_STALLED_S", 3600.0)
    monkeypatch.setattr(producer, "_FRESH_S", 3600.0)
    commit(sink, 1, *numbered())
    topics.delete(out)
    topics.create("out", partitions=1)
    with pytest.raises(DeliveryError, match="no partition"):
        sink.write(2, *numbered())
    vote = sink.write(3, batch(b"a"))
    assert vote.records == 1


def test_connections_outlive_a_producer_that_the_collector_frees(
    relayed: tuple[LocalKafka, Unsteady, str], relay: Unsteady, job: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in a cycle of references, as after an exception."""
    monkeypatch.setenv(WRITER_VARIABLE, "native")
    config = KafkaCluster(relayed[2], config={"client.id": job}).client_config()
    config |= {"transactional.id": job, "transaction.timeout.ms": 60_000}
    before = relay.accepted
    failures: list[object] = []
    for _ in range(4):
        made = new_producer(config, topics=[out], failed=failures.append, logger=logging.getLogger())
        made.load_metadata(30)
        made.init_transactions(30)
        made.begin_transaction()
        made.produce(out, batch(b"a"), lambda: None)
        assert made.flush(30) == 0
        cycle: list[object] = [made]
        cycle.append(cycle)
        del made, cycle
        gc.collect()
    assert not failures
    assert relay.accepted == before + 1


def test_connections_that_no_producer_needs_any_more_are_closed(
    relayed: tuple[LocalKafka, Unsteady, str], relay: Unsteady, job: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after failures, when there were more producers than tasks."""
    monkeypatch.setenv(WRITER_VARIABLE, "native")
    config = KafkaCluster(relayed[2], config={"client.id": job}).client_config()

    def new() -> Producer:
        made = new_producer(config, topics=[out], failed=print, logger=logging.getLogger())
        made.load_metadata(30)
        return made

    before = relay.open
    made = [new() for _ in range(3)]
    wait_until(lambda: relay.open == before + 3, "each has a connection")
    made.clear()
    monkeypatch.setattr(session, "_KEPT_S", 0.0)
    made.append(new())
    wait_until(lambda: relay.open == before + 1, "the other connections are closed")


def test_an_id_whose_initialising_request_got_no_answer_is_not_used(sink: SinkJob, relay: Unsteady) -> None:
    """The request may reach the broker late, and would then abort what was written under the id."""
    ids: list[bytes] = []

    def lose_the_first(request: Asked) -> None:
        if request.api == Api.INIT_PRODUCER_ID:
            ids.append(request.body[1 : request.body[0]])
            if len(ids) == 1:
                relay.cut()

    relay.wrong = lose_the_first
    vote = sink.write(1, batch(b"a"))
    assert len(set(ids)) == len(ids) > 1
    assert vote.body["id"].encode() == ids[-1]
