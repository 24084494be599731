"""How a streaming query's batches are cut: limits, the end seen at the start, partitions found, silent brokers."""

from collections.abc import Collection
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from onceward.common.errors import CheckpointFailedError, HaltedError
from onceward.sources.kafka.control.metadata import LogEnd
from onceward.sources.kafka.driver import stream_reader
from onceward.sources.kafka.driver.options import Mode, ReadOptions
from onceward.sources.kafka.driver.stream_reader import KafkaStreamReader
from onceward.sources.kafka.driver.subscription import Subscription
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition, TopicPosition
from tests.support.manual_time import ManualTime

FIRST, SECOND = Partition("orders", 0), Partition("orders", 1)
ALL = ReadAllAvailable()


class Cluster(Subscription):
    """Two partitions whose ends the test sets; the second one is found when the test says so."""

    ends: dict[Partition, int]
    grown: bool
    silent: bool

    def check(self, stored: KafkaPositions, *, also_done: bool = False) -> None:
        pass

    def refuse_other_topics(self, positions: KafkaPositions, names: Collection[str]) -> None:
        pass

    def look_for_partitions(self, base: KafkaPositions) -> None:
        pass

    def with_found(self, base: KafkaPositions) -> KafkaPositions:
        return base if SECOND in base or not self.grown else base.with_found({"orders": "i"}, {SECOND: Cursor(next=0)})

    def available(self, positions: KafkaPositions, read: Collection[Partition]) -> dict[Partition, LogEnd]:
        if self.silent:
            raise CheckpointFailedError("no answer")
        return {partition: LogEnd(self.ends[partition], None) for partition in read}


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    passing = ManualTime()
    monkeypatch.setattr(stream_reader, "time", passing)
    return passing


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, passing: ManualTime) -> type[Cluster]:
    Cluster.ends, Cluster.grown, Cluster.silent = {FIRST: 100, SECOND: 50}, False, False
    monkeypatch.setattr("onceward.sources.kafka.driver.planner.Subscription", Cluster)
    return Cluster


def opened(**options: str) -> KafkaStreamReader:
    least = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "orders"}
    return KafkaStreamReader(ReadOptions.parse({**least, **options}, Mode.STREAM), ("value",))


def at(first: int) -> dict[str, Any]:
    topic = TopicPosition(id="i", partitions={0: Cursor(next=first)})
    document = KafkaPositions(cluster="main", cluster_id="c", topics={"orders": topic}).to_document()
    return {"kind": document.kind, "version": document.version, **document.body}


def reached(offset: dict[str, Any]) -> dict[str, int]:
    return {number: cursor["next"] for number, cursor in offset["topics"]["orders"]["partitions"].items()}


def read(reader: KafkaStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [(p.value["partition"], p.value["start"], p.value["end"]) for p in reader.partitions(start, end)]


def test_a_batch_takes_what_is_there_within_its_limit(cluster: type[Cluster]) -> None:
    reader = opened(maxOffsetsPerTrigger="30")
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert reached(reader.latestOffset(at(0), ReadMaxRows(30))) == {"0": 30}
    assert reached(reader.latestOffset(at(0), ALL)) == {"0": 100}
    assert reader.latestOffset(at(100), ALL) == at(100)
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert reached(reported) == {"0": 100}


def test_a_found_partition_is_read_from_the_batch_after_its_discovery(cluster: type[Cluster]) -> None:
    reader, cluster.grown = opened(), True
    end = reader.latestOffset(at(90), ALL)
    assert reached(end) == {"0": 100, "1": 0}
    assert read(reader, at(90), end) == [(0, 90, 100)]
    further = reader.latestOffset(end, ALL)
    assert read(reader, end, further) == [(1, 0, 50)]


def test_a_batch_waits_for_its_least_offsets_but_not_for_ever(cluster: type[Cluster], passing: ManualTime) -> None:
    reader = opened(minOffsetsPerTrigger="20", maxTriggerDelay="1m")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(20)
    assert reached(reader.latestOffset(at(90), limit)) == {"0": 100}  # as in Spark, the first trigger does not wait
    cluster.ends[FIRST] = 110
    passing.sleep(59)
    assert reader.latestOffset(at(100), limit) == at(100)
    assert reached(reader.latestOffset(at(100), ALL)) == {"0": 110}
    passing.sleep(2)
    assert reached(reader.latestOffset(at(100), limit)) == {"0": 110}
    cluster.ends[FIRST] = 130
    assert reached(reader.latestOffset(at(110), limit)) == {"0": 130}


def test_silent_brokers_delay_a_query_and_fail_one_that_must_reach_an_end(
    cluster: type[Cluster], passing: ManualTime
) -> None:
    reader, cluster.silent = opened(), True
    assert reader.latestOffset(at(90), ALL) == at(90)
    reader._targets = {FIRST: 100}
    with pytest.raises(CheckpointFailedError, match="no answer"):
        reader.latestOffset(at(90), ALL)


def test_available_now_ends_at_its_targets_and_reads_partitions_that_it_knows_of(cluster: type[Cluster]) -> None:
    reader, cluster.grown = opened(), True
    reader._targets = {FIRST: 95, SECOND: 40}
    end = reader.latestOffset(at(90), ALL)
    assert reached(end) == {"0": 95, "1": 0}
    last = reader.latestOffset(end, ALL)
    assert reached(last) == {"0": 95, "1": 40}
    assert reader.latestOffset(last, ALL) == last


def test_offsets_of_another_source_are_refused(cluster: type[Cluster]) -> None:
    with pytest.raises(HaltedError, match="not written by format"):
        opened().latestOffset({"orders": {"0": 23}}, ALL)


def test_an_offset_is_the_same_text_while_nothing_is_new(cluster: type[Cluster]) -> None:
    """Spark runs a batch when the text differs."""
    start = opened().latestOffset(at(0), ALL)
    assert str(opened().latestOffset(start, ALL)) == str(start)
