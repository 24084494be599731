"""Kafka 4.3 ends a transaction without markers in partitions that have no leader: no broker ever ends these parts."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from onceward import KafkaCluster
from onceward.coordinator.service.systems import Systems
from onceward.dev.jars import fetch_progress
from onceward.dev.kafka import LocalKafka
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.values import CheckpointId, Claim, Committable, Generation, JobName, Outcome
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import CoordinatorKind
from onceward.sinks.kafka.control.transactions import State
from onceward.sinks.kafka.identifiers import claim_name
from tests.support.sink_job import SinkJob
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]

AWAY = 3
"""The broker that is killed. It alone has the output, and some of the groups."""
DECIDED = (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
"""Older brokers wait for the leader, and write the marker when it is back."""
ABORTED = (State.PREPARE_ABORT, State.COMPLETE_ABORT)


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalKafka]:
    one_copy = {"offsets.topic.replication.factor": "1"}
    with LocalKafka(
        3, properties=one_copy, transaction_timeout_scan_ms=200, heap="256m", progress=fetch_progress("the broker's")
    ) as kafka:
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
    found = topics.admin.list_topics(out, timeout=30).topics.get(out)
    return {one.leader for one in found.partitions.values()} if found is not None else set()


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
    (settlement,) = sink.system().commit(sink.author, [committable])
    assert settlement.outcome is Outcome.COMMITTED
    assert sorted(map(str, topics.values(out))) == ["b'0'", "b'1'"]


def test_a_claim_that_kafka_aborts_and_never_finishes_is_taken_over(
    brokers: LocalKafka, sink: SinkJob, topics: Topics, out: str
) -> None:
    """A driver dies with its next claim staged, which times out while the claim's group has no coordinator."""
    candidates = [claim_name(f"{sink.job}-{n}") for n in range(40)]
    places = sink.control.locate(CoordinatorKind.GROUP, candidates)
    name = next(name for name in candidates if places[name].node == AWAY)
    job = JobName(name.removesuffix(".claim"))
    ours = Claim(store_id="ours", generation=Generation(1), completed=CheckpointId(1), holder="a")
    with SinkJob(brokers.bootstrap_servers, job, topic=out) as first:
        first.take_claim(ours, None)
        first.wait_for_claim(ours)

        def staged() -> bool:
            first.own.prepare_claim(replace(ours, completed=CheckpointId(2)))
            return first.transactions.describe([name])[name].state is State.ONGOING

        wait_until(staged, "the next claim is staged")
        lose_the_leader(brokers, topics, out)
        wait_until(lambda: first.transactions.describe([name])[name].state in ABORTED, "it has timed out")
    bring_it_back(brokers, topics, out)
    taken = replace(ours, generation=Generation(2), holder="b")
    with SinkJob(brokers.bootstrap_servers, job, topic=out, generation=2) as second:
        second.take_claim(taken, ours)
        second.wait_for_claim(taken)


def test_a_timed_out_transaction_that_kafka_never_finishes_holds_readers_back_only_until_the_next_sweep(
    brokers: LocalKafka, topics: Topics, out: str, job: str
) -> None:
    """Two drivers die while they write, and their transactions time out while the output has no leader. One job has a
    next driver; for the other one a coordinator sweeps, which does not know its topics."""
    servers, other = brokers.bootstrap_servers, JobName(f"{job}-2")
    with SinkJob(servers, job, topic=out) as first, SinkJob(servers, other, topic=out) as second:
        opened = [one.open_transaction(out, timeout_ms=1_000) for one in (first, second)]
        names = [name for name, _ in opened]
        lose_the_leader(brokers, topics, out)
        wait_until(
            lambda: all(view.state in ABORTED for view in first.transactions.describe(names).values()),
            "they have timed out",
        )
        del opened
    bring_it_back(brokers, topics, out)
    topics.fill(out, [b"later"], partition=0)
    topics.fill(out, [b"later"], partition=1)
    with SinkJob(servers, job, topic=out, generation=2) as next_one:
        next_one.sink.system().sweep(JobName(job))
    systems = Systems.installed({"main": NamedSystem(kind="kafka", configuration=KafkaCluster(servers))}, "changed")
    with closing(systems.open("main", Generation(2))) as system:
        system.sweep(other)
    wait_until(lambda: topics.values(out) == [b"later", b"later"], "readers get past them")
