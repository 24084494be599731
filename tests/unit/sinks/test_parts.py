"""What the answers about topics and from leaders say about the parts of a transaction."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.metadata import MetadataRequest

from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.control_plane import NoAnswer
from onceward.sinks.kafka.control.parts import Parts, reading_parts
from onceward.sinks.kafka.control.transactions import Transaction
from tests.support.kafka_model import Settings
from tests.support.kafka_model.bench import OUT, Bench

OTHER = ("out", 1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def written(bench: Bench, *, records: int = 3, topic_id: str = "") -> KafkaCommittable:
    """Write two records to one partition and one to the other."""
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


def read_parts(bench: Bench, *handles: KafkaCommittable) -> dict[int, Parts]:
    return bench.control.run(reading_parts(bench.control, handles))


def parts_of(bench: Bench, handle: KafkaCommittable) -> Parts:
    return read_parts(bench, handle)[0]


def test_parts_that_are_open_and_add_up_are_whole(bench: Bench) -> None:
    assert parts_of(bench, written(bench)) == Parts(open={OUT: 0, OTHER: 0})
    assert Parts().whole


def test_a_part_that_was_ended_elsewhere_and_missing_records_are_named(bench: Bench) -> None:
    handle = written(bench, records=4)
    assert parts_of(bench, handle).gone == ("3 of 4 records of out are there",)
    transaction = handle.transaction
    bench.cluster.log(OTHER).mark(transaction.producer_id, transaction.epoch, commit=False, now=0.0)
    assert parts_of(bench, handle).gone == (
        "out-1 holds no open part of it",
        "2 of 4 records of out are there",
    )


def test_a_deleted_or_recreated_topic_holds_no_part_of_it(bench: Bench) -> None:
    handle = written(bench, topic_id="the former one's")
    (said,) = parts_of(bench, handle).gone
    assert said.startswith("topic out was deleted and recreated: its id was the former one's and is ")
    bench.cluster.delete_topic("out")
    assert parts_of(bench, handle).gone == ("topic out is not there",)


@pytest.mark.parametrize("request_type", [MetadataRequest, DescribeProducersRequest])
def test_a_missing_answer_proves_neither_presence_nor_loss(bench: Bench, request_type: type) -> None:
    handle = written(bench)
    bench.transport.cut = lambda call: isinstance(call.request, request_type)
    assert parts_of(bench, handle) == Parts(unknown=True)
    assert not Parts(unknown=True).whole


def test_a_moved_or_missing_leader_is_looked_up_again(bench: Bench) -> None:
    handle = written(bench)
    bench.cluster.log(OTHER).leader = -1
    assert parts_of(bench, handle) == Parts(unknown=True)


def test_without_the_right_to_look_no_part_counts_as_missing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a user without these rights could never commit. The preflight warns."""
    handle = written(bench)
    directory = bench.cluster._directory
    topic = directory._topic
    monkeypatch.setattr(directory, "_topic", lambda name: type(topic(name))(name=name, error_code=29))
    assert parts_of(bench, handle).whole


def answer_with(bench: Bench, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Have the leader of ``out``-1 answer DescribeProducers with this error code."""
    send_all = bench.control.send_all

    def changed(asked: Any, answer: Any) -> Any:
        if not isinstance(asked, DescribeProducersRequest):
            return answer
        (topic,) = answer.topics
        partitions = [
            replace(each, error_code=code) if each.partition_index == 1 else each for each in topic.partitions
        ]
        return replace(answer, topics=[replace(topic, partitions=partitions)])

    monkeypatch.setattr(
        bench.control,
        "send_all",
        lambda sent: [changed(asked, answer) for (_, asked), answer in zip(sent, send_all(sent), strict=True)],
    )


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        (29, Parts(open={OUT: 0})),
        (6, Parts(unknown=True)),
        (0, Parts(gone=("3 of 99 records of out are there",), open={OUT: 0, OTHER: 0})),
    ],
)
def test_a_leader_that_refuses_blocks_no_other_and_a_moved_one_is_retried(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, code: int, parts: Parts
) -> None:
    handle = written(bench, records=99)
    answer_with(bench, monkeypatch, code)
    assert parts_of(bench, handle) == parts


@pytest.mark.parametrize(("code", "unknown"), [(35, False), (29, False), (6, True), (None, True)])
def test_an_unreachable_leader_blocks_no_other_and_a_silent_one_is_retried(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, code: int | None, unknown: bool
) -> None:
    handle = written(bench, records=99)
    send_all = bench.control.send_all

    def refusing(sent: Any) -> Any:
        if isinstance(sent[0][1], DescribeProducersRequest):
            return [NoAnswer(why="refused", code=code) for _ in sent]
        return send_all(sent)

    monkeypatch.setattr(bench.control, "send_all", refusing)
    assert parts_of(bench, handle) == Parts(unknown=unknown)


@pytest.mark.parametrize("code", [35, None])
def test_a_leader_without_an_answer_hides_no_other(monkeypatch: pytest.MonkeyPatch, code: int | None) -> None:
    """One of the leaders has the id 0."""
    bench = Bench(Settings(brokers=(0, 1)))
    handle = written(bench, records=99)
    assert {bench.cluster.log(each).leader for each in (OUT, OTHER)} == {0, 1}
    assert parts_of(bench, handle).gone == ("3 of 99 records of out are there",)
    transaction = handle.transaction
    bench.cluster.log(OUT).mark(transaction.producer_id, transaction.epoch, commit=False, now=0.0)
    send_all = bench.control.send_all

    def refusing(sent: Any) -> Any:
        first, *others = send_all(sent)
        return [NoAnswer(why="refused", code=code) if others else first, *others]

    monkeypatch.setattr(bench.control, "send_all", refusing)
    last = replace(handle, topics={"out": TopicRecords(records=1, partitions=(1,))})
    assert read_parts(bench, handle, replace(last, slot=1)) == {
        0: Parts(unknown=True) if code is None else Parts(open={OTHER: 0}),
        1: Parts(open={OTHER: 0}),
    }


def test_a_forbidden_topic_hides_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = written(bench)
    topics = {"hidden": TopicRecords(records=1, partitions=(0,)), **handle.topics, "zone": handle.topics["out"]}
    directory = bench.cluster._directory
    topic = directory._topic
    monkeypatch.setattr(
        directory,
        "_topic",
        lambda name: type(topic("out"))(name=name, error_code=29) if name == "hidden" else topic(name),
    )
    assert parts_of(bench, replace(handle, topics=topics)).gone == ("topic zone is not there",)


def test_the_parts_of_several_transactions_are_distinguished(bench: Bench) -> None:
    first = written(bench)
    name, producer, epoch = ids = bench.init("orders.sink.1.0123abcd.1")
    bench.enlist(ids, OUT)
    assert bench.produce(ids, (b"d",)) == 0
    second = replace(
        first,
        slot=1,
        transaction=replace(first.transaction, id=name, producer_id=producer, epoch=epoch),
        topics={"out": TopicRecords(records=2, partitions=(0,))},
    )
    later = replace(first, slot=2, transaction=replace(first.transaction, epoch=first.transaction.epoch + 1))
    assert read_parts(bench, first, second, later) == {
        0: Parts(open={OUT: 0, OTHER: 0}),
        1: Parts(gone=("1 of 2 records of out are there",), open={OUT: 2}),
        2: Parts(
            gone=(
                "out-0 holds no open part of it",
                "out-1 holds no open part of it",
                "0 of 3 records of out are there",
            )
        ),
    }
