"""What modelled logs prove about the end of a transaction when some partitions show it, some late and some never."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from onceward.sinks.kafka.control import markers
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.markers import LogEnding, LogProof, read_endings
from onceward.sinks.kafka.control.transactions import Transaction
from tests.support.kafka_model import Produce, Record
from tests.support.kafka_model.bench import OUT, Bench, Ids

OTHER = ("out", 1)
ID = "orders.sink.1.0123abcd.0"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def handle_of(bench: Bench, ids: Ids, *partitions: int) -> KafkaCommittable:
    return KafkaCommittable(
        slot=0,
        checkpoint=7,
        cluster_name=bench.control.cluster.name,
        cluster_id=bench.cluster.settings.cluster_id,
        transaction=Transaction(id=ids[0], producer_id=ids[1], epoch=ids[2], version=5),
        token="token",
        topics={"out": TopicRecords(records=3, partitions=partitions or (0, 1))},
        records=3,
        bytes=3,
        inputs=(),
        pre_committed=datetime(2026, 1, 1, tzinfo=UTC),
    )


def written(bench: Bench, name: str = ID) -> Ids:
    """Write two records to one partition and one to the other."""
    ids = bench.init(name)
    bench.enlist(ids, OUT, OTHER)
    assert bench.produce(ids, (b"a", b"b")) == bench.produce(ids, (b"c",), partition=OTHER) == 0
    return ids


def mark(bench: Bench, ids: Ids, partition: tuple[str, int], *, commit: bool) -> None:
    """Write one marker, like a coordinator that has not yet written the others, or a tool that ends one partition."""
    bench.cluster.log(partition).mark(ids[1], ids[2], commit=commit, now=bench.transport.now())


def others(bench: Bench, count: int, partition: tuple[str, int] = OUT) -> None:
    """Append records of a producer without transactions."""
    log = bench.cluster.log(partition)
    batch = Produce(partition=partition, records=(Record(value=b"x"),) * count, transactional_id=None)
    assert log.append(batch, bench.transport.now())[0] == 0


def reported(bench: Bench, ids: Ids, *partitions: int) -> LogProof:
    return read_endings(bench.control, [handle_of(bench, ids, *partitions)])[ids[0]]


@pytest.mark.parametrize("commit", [True, False])
def test_markers_in_every_partition_prove_the_end(bench: Bench, commit: bool) -> None:
    ids = written(bench)
    assert bench.end(ids, commit=commit) == 0
    bench.wait(1)
    if commit:
        assert reported(bench, ids) == LogProof(
            ending=LogEnding.COMMITTED, detail="out-0: the marker at offset 2 is COMMIT"
        )
    else:
        detail = "out-0: the marker at offset 2 is ABORT behind 2 records"
        assert reported(bench, ids) == LogProof(ending=LogEnding.ABORTED, detail=detail, aborted=True)


def test_one_commit_marker_proves_the_commit_before_the_others_are_written(bench: Bench) -> None:
    ids = written(bench)
    mark(bench, ids, OTHER, commit=True)
    assert reported(bench, ids).ending is LogEnding.COMMITTED


def test_an_abort_in_one_partition_proves_nothing_about_the_others(bench: Bench) -> None:
    """Otherwise the slot would be replayed while part of it can still be committed."""
    ids = written(bench)
    mark(bench, ids, OTHER, commit=False)
    proof = reported(bench, ids)
    assert (proof.ending, proof.aborted) == (LogEnding.UNKNOWN, True)
    assert proof.detail == (
        "out-0: no marker is behind its records; out-1: the marker at offset 1 is ABORT behind 1 records"
    )


def test_a_commit_beside_an_abort_is_reported_as_both(bench: Bench) -> None:
    ids = written(bench)
    mark(bench, ids, OUT, commit=False)
    mark(bench, ids, OTHER, commit=True)
    proof = reported(bench, ids)
    assert (proof.ending, proof.aborted) == (LogEnding.COMMITTED, True)
    assert proof.detail == (
        "out-1: the marker at offset 1 is COMMIT; out-0: the marker at offset 2 is ABORT behind 2 records"
    )


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("request_type", [MetadataRequest, ListOffsetsRequest, FetchRequest])
def test_a_silent_partition_is_retried_whatever_the_others_answer(
    bench: Bench, request_type: type, commit: bool
) -> None:
    """Its part may be the aborted one, or the committed one."""
    ids = written(bench)
    mark(bench, ids, OUT, commit=commit)
    asked = 0

    def second(call: Any) -> bool:
        nonlocal asked
        asked += isinstance(call.request, request_type)
        return isinstance(call.request, request_type) and asked > before

    before = 10**9
    bench.transport.cut = second
    reported(bench, ids)
    before, asked = asked // 2, 0
    assert reported(bench, ids).ending is LogEnding.AGAIN
    bench.transport.cut = lambda _call: False
    bench.cluster.log(OTHER).leader = -1
    proof = reported(bench, ids)
    assert proof.ending is LogEnding.AGAIN
    assert "out-1 cannot be read: it has no leader" in proof.detail


def test_a_moved_leader_is_retried(bench: Bench) -> None:
    ids = written(bench)
    mark(bench, ids, OUT, commit=False)
    moved = bench.cluster.log(OTHER)
    ask, answers = bench.control.send_all, bench.control

    def send_all(calls: Any) -> Any:
        found = ask(calls)
        if isinstance(calls[0][1], ListOffsetsRequest) and calls[0][1].topics[0].partitions[0].partition_index == 1:
            moved.leader = 99
        return found

    changed: Any = answers
    changed.send_all = send_all
    proof = reported(bench, ids)
    assert proof.ending is LogEnding.AGAIN
    assert "refuse its offsets with error 6" in proof.detail


def test_an_unreadable_or_missing_log_proves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = written(bench)
    assert bench.end(ids, commit=False) == 0
    bench.wait(1)
    bench.cluster.log(OTHER).start = 1
    proof = reported(bench, ids)
    assert (proof.ending, proof.aborted) == (LogEnding.UNKNOWN, True)
    assert proof.detail.startswith("out-1: its records are not in the log, which begins at offset 1; out-0: ")
    directory = bench.cluster._directory
    topic = directory._topic
    monkeypatch.setattr(directory, "_topic", lambda name: type(topic(name))(name=name, error_code=29))
    proof = reported(bench, ids)
    assert (proof.ending, proof.aborted) == (LogEnding.UNKNOWN, False)
    assert "refuse its topic with error 29: grant READ on the topic" in proof.detail


def test_a_partition_or_topic_that_is_not_there_proves_nothing(bench: Bench) -> None:
    ids = written(bench)
    assert bench.end(ids) == 0
    bench.wait(1)
    proof = reported(bench, ids, 5)
    assert (proof.ending, proof.detail) == (LogEnding.UNKNOWN, "out-5 cannot be read: there is no such partition")
    nothing = replace(handle_of(bench, ids), topics={})
    assert read_endings(bench.control, [nothing])[ids[0]].ending is LogEnding.UNKNOWN
    assert read_endings(bench.control, []) == {}


def test_the_first_marker_behind_the_records_counts_and_no_later_one_of_the_producer(bench: Bench) -> None:
    first = written(bench)
    assert bench.end(first, commit=False) == 0
    bench.wait(1)
    second = written(bench)
    assert second[1] == first[1]
    assert second[2] > first[2]
    assert bench.end(second) == 0
    bench.wait(1)
    assert reported(bench, first).ending is LogEnding.ABORTED
    assert reported(bench, second).ending is LogEnding.COMMITTED


def test_transactions_of_several_producers_in_one_partition_are_distinguished(bench: Bench) -> None:
    committed, aborted, is_open = (written(bench, f"orders.sink.1.0123abcd.{number}") for number in range(3))
    bench.end(aborted, commit=False)
    bench.end(committed)
    bench.wait(1)
    found = read_endings(bench.control, [handle_of(bench, ids) for ids in (committed, aborted, is_open)])
    assert [found[ids[0]].ending for ids in (committed, aborted, is_open)] == [
        LogEnding.COMMITTED,
        LogEnding.ABORTED,
        LogEnding.UNKNOWN,
    ]


@pytest.mark.parametrize("between", [0, 9_000])
def test_records_far_before_their_marker_and_the_end_are_found(bench: Bench, between: int) -> None:
    others(bench, 2_000)
    ids = written(bench)
    others(bench, between)
    mark(bench, ids, OUT, commit=False)
    others(bench, 11_000)
    assert reported(bench, ids, 0).detail == f"out-0: the marker at offset {2_002 + between} is ABORT behind 2 records"


def test_no_more_of_a_log_is_read_than_is_allowed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "READ_LIMIT", 1 << 20)
    ids = written(bench)
    mark(bench, ids, OUT, commit=False)
    others(bench, 12_000)
    assert reported(bench, ids, 0).ending is LogEnding.ABORTED
    others(bench, 12_000)
    proof = reported(bench, ids, 0)
    assert proof.ending is LogEnding.UNKNOWN
    assert proof.detail == "out-0 cannot be read: nothing of it is in the 1 MiB that were read"
