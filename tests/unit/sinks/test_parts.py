"""What the answers of topics and leaders say about the parts of a transaction."""

from datetime import UTC, datetime

import pytest
from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.metadata import MetadataRequest

from sinks.kafka.committables import KafkaCommittable, TopicRecords
from sinks.kafka.parts import Parts, read_parts
from sinks.kafka.transactions import Transaction
from tests.simulation.kafka.contract.bench import OUT, Bench

OTHER = ("out", 1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def written(bench: Bench, *, records: int = 3, topic_id: str = "") -> KafkaCommittable:
    """Two records in one partition, one in the other."""
    name, producer, epoch = ids = bench.init("orders.sink.1.0123abcd.0")
    bench.enlist(ids, OUT, OTHER)
    assert bench.produce(ids, (b"a", b"b")) == bench.produce(ids, (b"c",), partition=OTHER) == 0
    return KafkaCommittable(
        slot=0,
        checkpoint=7,
        cluster_name=bench.control.cluster.name,
        cluster_id=bench.cluster.settings.cluster_id,
        transaction=Transaction(id=name, producer_id=producer, epoch=epoch, version=5),
        token="token",
        topics={"out": TopicRecords(records=records, partitions=(0, 1), id=topic_id)},
        records=records,
        bytes=3,
        inputs=(),
        pre_committed=datetime(2026, 1, 1, tzinfo=UTC),
    )


def parts_of(bench: Bench, handle: KafkaCommittable) -> Parts:
    return read_parts(bench.control, [handle])[0]


def test_parts_that_are_open_and_add_up_are_whole(bench: Bench) -> None:
    assert parts_of(bench, written(bench)) == Parts()
    assert Parts().whole


def test_a_part_that_somebody_ended_and_records_that_do_not_add_up_are_named(bench: Bench) -> None:
    handle = written(bench, records=4)
    assert parts_of(bench, handle).gone == ("3 of 4 records of out are there",)
    transaction = handle.transaction
    bench.cluster.log(OTHER).mark(transaction.producer_id, transaction.epoch, commit=False, now=0.0)
    assert parts_of(bench, handle).gone == (
        "out-1 holds no open part of it",
        "2 of 4 records of out are there",
    )


def test_a_topic_that_is_gone_or_made_anew_holds_nothing_of_it(bench: Bench) -> None:
    handle = written(bench, topic_id="the former one's")
    (said,) = parts_of(bench, handle).gone
    assert said.startswith("topic out was deleted and made again: its id was the former one's and is ")
    bench.cluster.delete_topic("out")
    assert parts_of(bench, handle).gone == ("topic out is not there",)


@pytest.mark.parametrize("request_type", [MetadataRequest, DescribeProducersRequest])
def test_no_answer_says_neither_that_a_part_is_there_nor_that_it_is_gone(bench: Bench, request_type: type) -> None:
    handle = written(bench)
    bench.transport.cut = lambda call: isinstance(call.request, request_type)
    assert parts_of(bench, handle) == Parts(unknown=True)
    assert not Parts(unknown=True).whole


def test_a_leader_that_moved_or_is_nobody_is_asked_again(bench: Bench) -> None:
    handle = written(bench)
    bench.cluster.log(OTHER).leader = -1
    assert parts_of(bench, handle) == Parts(unknown=True)


def test_where_nobody_may_look_nothing_is_missing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a user without these rights could never commit. The preflight warns."""
    handle = written(bench)
    directory = bench.cluster._directory
    topic = directory._topic
    monkeypatch.setattr(directory, "_topic", lambda name: type(topic(name))(name=name, error_code=29))
    assert parts_of(bench, handle).whole
