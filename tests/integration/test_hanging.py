"""Kafka 4.3 ends a transaction without markers in partitions that have no leader: no broker ever ends these parts."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from onceward.coordinator.dev.jars import fetch_progress
from onceward.coordinator.dev.kafka import LocalKafka
from onceward.coordinator.protocol.values import Committable, Outcome
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.transactions import State
from tests.support.sink_job import SinkJob
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]

AWAY = 3
"""The broker that is killed. It alone has the output."""
DECIDED = (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
"""Older brokers wait for the leader, and write the marker when it is back."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalKafka]:
    with LocalKafka(3, heap="256m", progress=fetch_progress("the broker's")) as kafka:
        yield kafka


@pytest.fixture
def topics(brokers: LocalKafka, job: str) -> Iterator[Topics]:
    yield Topics(brokers.bootstrap_servers, job)
    if AWAY not in brokers.pids:
        brokers.restart(AWAY)


@pytest.fixture
def out(topics: Topics) -> str:
    return topics.create("out", 2, led_by=[AWAY])


@pytest.fixture
def sink(brokers: LocalKafka, job: str, out: str) -> Iterator[SinkJob]:
    with SinkJob(brokers.bootstrap_servers, job, topic=out) as opened:
        yield opened


def prepared(sink: SinkJob) -> Committable:
    """One slot with a record in each partition."""
    records = pa.record_batch([pa.array([b"0", b"1"]), pa.array([0, 1], pa.int32())], ["value", "partition"])
    (committable,) = sink.pre_commit(1, [sink.write(1, records)])
    return committable


def leaders(topics: Topics, out: str) -> set[int]:
    return {one.leader for one in topics.admin.list_topics(out, timeout=30).topics[out].partitions.values()}


def lose_the_leader(brokers: LocalKafka, topics: Topics, out: str) -> None:
    brokers.kill(AWAY)
    wait_until(lambda: leaders(topics, out) == {-1}, f"{out} has no leader")


def bring_it_back(brokers: LocalKafka, topics: Topics, out: str) -> None:
    brokers.restart(AWAY)
    wait_until(lambda: leaders(topics, out) == {AWAY}, f"{out} has a leader")


def test_a_commit_that_kafka_confirms_and_never_finishes_is_settled_once_readers_see_it(
    brokers: LocalKafka, sink: SinkJob, topics: Topics, out: str
) -> None:
    committable = prepared(sink)
    lose_the_leader(brokers, topics, out)
    transaction = KafkaCommittable.of(committable).transaction
    wait_until(
        lambda: sink.transactions.end([transaction], commit=True)[transaction.id] == 0, "its coordinator confirms it"
    )
    wait_until(lambda: sink.view(committable).state in DECIDED, "it is decided")
    bring_it_back(brokers, topics, out)
    (settlement,) = sink.committer().commit(sink.author, [committable])
    assert settlement.outcome is Outcome.COMMITTED
    assert sorted(map(str, topics.values(out))) == ["b'0'", "b'1'"]
