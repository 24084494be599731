"""What a job leaves at the brokers: it is listed for people, swept, and does not grow."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from coordinator.dev.kafka import LocalKafka
from sinks.kafka.committables import KafkaCommittable
from tests.integration.sink_tools import SinkJob
from tests.integration.tools import Topics


@pytest.fixture
def out(topics: Topics) -> str:
    return topics.create("out")


@pytest.fixture
def sink(kafka: LocalKafka, job: str, out: str) -> Iterator[SinkJob]:
    with SinkJob(kafka.bootstrap_servers, job, topic=out) as opened:
        yield opened


def test_what_is_open_is_listed_with_owner_age_time_left_and_receipt(
    sink: SinkJob, kafka: LocalKafka, out: str
) -> None:
    handle = KafkaCommittable.of(sink.prepared(1, [b"pre-committed"])[0])
    loser, producer = sink.open_transaction(out, timeout_ms=40_000)
    with SinkJob(kafka.bootstrap_servers, f"{sink.job}b", topic=out) as other:
        other.prepared(1, [b"another job's"])
        listed = {each.id: each for each in sink.committer().transactions(sink.job)}
    assert listed.keys() == {handle.transaction.id, loser}
    ours, left_open = listed[handle.transaction.id], listed[loser]
    assert ours.owner == (handle.transaction.producer_id, handle.transaction.epoch)
    assert (ours.participant, ours.generation, ours.worker) == ("sink", 1, handle.transaction.id.split(".")[3])
    assert [ours.receipted, left_open.receipted] == [True, False]
    assert {each.state for each in listed.values()} == {"Ongoing"}
    assert {each.partitions for each in listed.values()} == {(f"{out}-0",)}
    assert ours.left is not None
    assert left_open.age is not None
    assert left_open.left is not None
    assert timedelta(0) <= left_open.left <= timedelta(seconds=40) < ours.left
    assert left_open.age + left_open.left == timedelta(seconds=40) or not left_open.left
    del producer
