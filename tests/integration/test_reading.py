"""format("onceward") on a real broker and a real Spark: what batch reads and streaming queries return."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

import onceward
from tests.support.topics import Topics, transaction, values, wait_for
from tests.support.waiting import wait_until

ONLY_WHAT_WAS_SENT = """
import sys
from importlib.machinery import PathFinder


class Sent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "onceward":
            found = PathFinder.find_spec(name, [one for one in sys.path if "onceward-" in one and one.endswith(".zip")])
            if found is None:
                raise ModuleNotFoundError("onceward was not sent here")
            return found


sys.meta_path.insert(0, Sent)
"""
"""A `sitecustomize` for processes that Spark starts."""

READS_WITH_WHAT_WAS_SENT = """
import os, sys
from pathlib import Path
import onceward
from onceward.driver.spark.session import make_session

servers, topic, place = sys.argv[1:]
os.environ["PYTHONPATH"] = place
spark, _ = make_session("sent")
onceward.register(spark)
options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
print("batch", spark.read.format("onceward").options(**options).load().count())
stream = spark.readStream.format("onceward").options(**options, startingOffsets="earliest").load()
writer = stream.writeStream.foreachBatch(lambda df, batch: print("stream", df.count()))
writer.option("checkpointLocation", place + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
"""

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.timeout(300)

STREAMS = find_spec("pyspark.sql.streaming.datasource") is not None
streaming = pytest.mark.skipif(not STREAMS, reason="sources in Python have no limits per trigger before PySpark 4.2")

_LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def registered(spark: "SparkSession") -> None:
    onceward.register(spark)


def read(reader: Any, topics: Topics, topic: str | None, **options: object) -> "DataFrame":
    """Load ``topic``, or what ``options`` name. ``reader``: ``spark.read`` or ``spark.readStream``."""
    named = {} if topic is None else {"subscribe": topic}
    df: DataFrame = (
        reader.format("onceward").options(**{"kafka.bootstrap.servers": topics.servers, **named, **options}).load()
    )
    return df


class Query:
    """A streaming query that keeps the rows of its batches."""

    def __init__(self, df: "DataFrame", place: Path, then: Callable[[], None] = lambda: None, **trigger: Any) -> None:
        self.batches: list[list[Row]] = []

        def keep(batch: "DataFrame", _: int) -> None:
            self.batches.append(batch.collect())
            then()

        writer = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(place))
        writer = writer.trigger(**(trigger or {"availableNow": True}))
        self.running: StreamingQuery = writer.start()
        while not self._began():
            self.running = writer.start()

    def _began(self) -> bool:
        """False if the query has ended because Spark gives the planner's process 10 s to start, with others' load."""
        running = self.running
        wait_until(
            lambda: not running.isActive or "Initializing" not in running.status["message"], "it began", _LIMIT_S
        )
        return "failed to connect back" not in str(running.exception())

    @property
    def values(self) -> list[bytes | None]:
        return [row["value"] for batch in self.batches for row in batch]

    def finish(self) -> "Query":
        assert self.running.awaitTermination(int(_LIMIT_S)), "the query did not end in time"
        return self

    def failure(self) -> str:
        with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's own class says nothing
            self.running.awaitTermination(int(_LIMIT_S))
        return str(failed.value)


def test_a_batch_read_returns_every_record_as_it_was_produced(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, [*values(50), None], partition=0, key=b"k")
    topics.fill(topic, values(30), partition=1)
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0})
    producer.produce(topic, b"h", partition=1, headers=[("a", b"1"), ("a", None)], timestamp=1_700_000_000_123)
    assert producer.flush(30) == 0
    rows = read(spark.read, topics, topic, includeHeaders="true").orderBy("partition", "offset").collect()
    given = topics.messages(topic)
    assert [(r["partition"], r["offset"], r["key"], r["value"]) for r in rows] == [
        (m.partition(), m.offset(), m.key(), m.value()) for m in given
    ]
    assert [(r["timestampType"], int(r["timestamp"].timestamp() * 1000)) for r in rows] == [
        (m.timestamp()[0] - 1, m.timestamp()[1]) for m in given
    ]
    assert {r["topic"] for r in rows} == {topic}
    assert [r["headers"] for r in rows] == [None] * 81 + [[("a", b"1"), ("a", None)]]


def test_a_batch_read_begins_and_ends_at_the_named_offsets(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, values(50), partition=0)
    topics.fill(topic, values(50, "w"), partition=1)
    df = read(
        spark.read.schema("value binary, offset long"),
        topics,
        topic,
        startingOffsets=f'{{"{topic}": {{"0": 10, "1": -2}}}}',
        endingOffsets=f'{{"{topic}": {{"0": 20, "1": -1}}}}',
        minPartitions="6",
    )
    assert df.rdd.getNumPartitions() == 6
    assert df.columns == ["value", "offset"]
    assert Counter(bytes(row["value"]) for row in df.collect()) == Counter([*values(50)[10:20], *values(50, "w")])


def test_assigned_partitions_alone_are_read(spark: "SparkSession", topics: Topics) -> None:
    one, other = topics.create("one", 2), topics.create("other", 2)
    for partition in range(2):
        topics.fill(one, values(5, f"one{partition}-"), partition=partition)
        topics.fill(other, values(5, f"other{partition}-"), partition=partition)
    rows = read(spark.read, topics, None, assign=json.dumps({one: [1], other: [0]})).collect()
    assert Counter(bytes(row["value"]) for row in rows) == Counter([*values(5, "one1-"), *values(5, "other0-")])


def produce_at(topics: Topics, topic: str, times: Sequence[int], *, partition: int = 0) -> None:
    """Produce one record at each time, in ms since 1970; its value is the time."""
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0})
    for time in times:
        producer.produce(topic, str(time).encode(), partition=partition, timestamp=time)
    assert producer.flush(30) == 0


def test_a_batch_read_begins_and_ends_at_times(spark: "SparkSession", topics: Topics) -> None:
    """As in Spark: from the first record at or after the start, to before the first one at or after the end."""
    topic, noon = topics.create(partitions=2, config={"retention.ms": "-1"}), 1_700_000_000_000
    produce_at(topics, topic, [noon + n for n in (0, 10, 20, 30)])
    produce_at(topics, topic, [noon + n for n in (5, 15, 25, 35)], partition=1)

    def read_times(**options: object) -> list[int]:
        return sorted(int(row["value"]) - noon for row in read(spark.read, topics, topic, **options).collect())

    assert read_times(startingTimestamp=noon + 10, endingTimestamp=noon + 30) == [10, 15, 20, 25]
    each = json.dumps({topic: {"0": noon + 11, "1": noon + 35}})
    assert read_times(startingOffsetsByTimestamp=each) == [20, 30, 35]
    assert read_times(endingOffsetsByTimestamp=each) == [0, 5, 10, 15, 25]
    late = {"startingTimestamp": noon + 31}
    assert read_times(**late, startingOffsetsByTimestampStrategy="latest") == [35]
    with pytest.raises(Exception, match="startingTimestamp: there is no record with that timestamp or a later one in"):
        read_times(**late)


@streaming
def test_a_query_finds_topics_that_match_its_pattern_later(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    first = topics.create("orders")
    topics.fill(first, values(5))
    pattern = f"{first.removesuffix('orders')}(orders|returns)"
    stream = read(spark.readStream, topics, None, subscribePattern=pattern, startingOffsets="earliest")
    query = Query(stream, tmp_path, processingTime="200 milliseconds")
    try:
        wait_until(lambda: len(query.values) == 5, "the first topic is read", _LIMIT_S)
        topics.fill(topics.create("other"), values(5, "other"))
        topics.fill(topics.create("returns"), values(5, "returned"))
        wait_until(lambda: query.values[5:] == values(5, "returned"), "the second topic is read", _LIMIT_S)
    finally:
        query.running.stop()


@pytest.mark.skipif(STREAMS, reason="this Spark reads streams")
def test_a_spark_without_limits_per_trigger_reads_no_stream(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    stream = read(spark.readStream, topics, topics.create())
    assert "needs PySpark 4.2" in Query(stream, tmp_path).failure()


@streaming
def test_a_query_continues_at_its_checkpoint_without_loss_or_repeat(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, values(100), partition=0)
    topics.fill(topic, values(50, "w"), partition=1)
    stream = read(spark.readStream, topics, topic, startingOffsets="earliest", maxOffsetsPerTrigger="60")
    first = Query(stream, tmp_path).finish()
    assert [len(batch) for batch in first.batches] == [60, 60, 30]
    topics.fill(topic, values(10, "x"), partition=1)
    wait_for(topics.admin.create_partitions([NewPartitions(topic, 3)])[topic])
    wait_until(lambda: len(topics.admin.list_topics(topic).topics[topic].partitions) == 3, "the third is there")
    topics.fill(topic, values(5, "y"), partition=2)
    second = Query(stream, tmp_path).finish()
    assert Counter(second.values) == Counter([*values(10, "x"), *values(5, "y")])
    assert Counter([*first.values, *second.values]) == Counter(topics.values(topic))


@streaming
def test_available_now_stops_at_the_end_that_it_saw_at_its_start(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, values(20))
    stream = read(spark.readStream, topics, topic, startingOffsets="earliest", maxOffsetsPerTrigger="15")
    query = Query(stream, tmp_path, lambda: topics.fill(topic, values(10, "later"))).finish()
    assert query.values == values(20)


@streaming
def test_records_of_aborted_and_open_transactions_are_never_read(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    transaction(topics, topic, 10, commit=True, prefix="a")
    transaction(topics, topic, 10, commit=False, prefix="b")
    transaction(topics, topic, 10, commit=True, prefix="c")
    transaction(topics, topic, 10, commit=False, prefix="d")
    wanted = topics.values(topic)
    assert wanted == [*values(10, "a"), *values(10, "c")]
    stream = read(spark.readStream, topics, topic, startingOffsets="earliest")
    assert Query(stream, tmp_path).finish().values == wanted
    assert [row["value"] for row in read(spark.read, topics, topic).collect()] == wanted


@streaming
def test_a_running_query_finds_new_partitions(spark: "SparkSession", topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    topics.fill(topic, values(5))
    stream = read(spark.readStream, topics, topic, startingOffsets="earliest")
    query = Query(stream, tmp_path, processingTime="200 milliseconds")
    try:
        wait_until(lambda: len(query.values) == 5, "the first partition is read", _LIMIT_S)
        wait_for(topics.admin.create_partitions([NewPartitions(topic, 2)])[topic])
        wait_until(lambda: len(topics.admin.list_topics(topic).topics[topic].partitions) == 2, "the second is there")
        topics.fill(topic, values(5, "new"), partition=1)
        wait_until(lambda: query.values[5:] == values(5, "new"), "the second partition is read", _LIMIT_S)
    finally:
        query.running.stop()


@streaming
def test_a_query_whose_input_is_gone_fails_and_names_it(spark: "SparkSession", topics: Topics, tmp_path: Path) -> None:
    deleted, recreated = topics.create("deleted"), topics.create("recreated")
    queries = {}
    for topic in (deleted, recreated):
        topics.fill(topic, values(20))
        queries[topic] = read(spark.readStream, topics, topic, startingOffsets="earliest")
        Query(queries[topic], tmp_path / topic).finish()
        topics.fill(topic, values(20))
    wait_for(topics.admin.delete_records([TopicPartition(deleted, 0, 30)])[TopicPartition(deleted, 0)])
    said = Query(queries[deleted], tmp_path / deleted).failure()
    assert f"{deleted}-0 is to be read from offset 20, but its log starts at 30" in said
    assert "new checkpointLocation" in said
    topics.delete(recreated)
    topics.create("recreated")
    topics.fill(recreated, values(40))
    assert f"topic {recreated} was deleted and recreated" in Query(queries[recreated], tmp_path / recreated).failure()


def test_a_session_made_later_reads_too(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, values(3))
    other = spark.newSession()
    onceward.register(other)
    onceward.register(other)
    assert [row["value"] for row in read(other.read, topics, topic).collect()] == values(3)


def test_wrong_options_fail_the_load_and_a_secret_is_not_shown(spark: "SparkSession", topics: Topics) -> None:
    with pytest.raises(Exception, match="maxoffsetpertrigger: unknown") as failed:
        read(spark.readStream, topics, "t", maxOffsetPerTrigger="1", **{"kafka.sasl.password": "hunter2"})
    assert "a password is never written here" in str(failed.value)
    assert "hunter2" not in str(failed.value)


def table(spark: "SparkSession", topics: Topics, topic: str) -> dict[bytes, bytes]:
    rows = onceward.kafka_table(spark, topics.servers, topic).collect()
    return {bytes(row["key"]): bytes(row["value"]) for row in rows}


def test_a_table_holds_the_latest_value_of_each_key_without_tombstones(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.create(partitions=2, config={"cleanup.policy": "compact"})
    for partition, key, given in ((0, b"a", [b"1", b"2"]), (1, b"b", [b"1", None]), (1, b"c", [None, b"3"])):
        topics.fill(topic, given, partition=partition, key=key)
    transactions = Producer({"bootstrap.servers": topics.servers, "transactional.id": topic, "log_level": 0})
    transactions.init_transactions(30)
    transactions.begin_transaction()
    transactions.produce(topic, b"open", b"c", partition=1)
    assert transactions.flush(30) == 0
    assert table(spark, topics, topic) == {b"a": b"2", b"c": b"3"}
    transactions.abort_transaction(30)
    topics.fill(topic, [b"4"], partition=0, key=b"a")
    assert table(spark, topics, topic) == {b"a": b"4", b"c": b"3"}
    topics.fill(topic, [b"5"], partition=1, key=b"a")
    with pytest.raises(Exception, match="a key has records in several partitions"):
        table(spark, topics, topic)


def test_a_topic_that_is_not_compacted_is_no_table(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.create()
    with pytest.raises(Exception, match=f"Topic {topic} has cleanup.policy=delete"):
        table(spark, topics, topic)


def test_a_compacted_topic_is_a_table_only_without_limits_of_its_retention(
    spark: "SparkSession", topics: Topics
) -> None:
    """The brokers delete old segments of a topic with both policies, with the latest values in them."""
    both = {"cleanup.policy": "compact,delete"}
    limited = topics.create("limited", config={**both, "retention.ms": "1000"})
    with pytest.raises(Exception, match=f"Topic {limited} has cleanup.policy=.* and retention.ms=1000"):
        table(spark, topics, limited)
    kept = topics.create("kept", config={**both, "retention.ms": "-1"})
    topics.fill(kept, [b"1"], key=b"a")
    assert table(spark, topics, kept) == {b"a": b"1"}


@streaming
def test_a_stream_is_joined_with_a_table_as_it_is_in_each_batch_and_with_a_read_as_it_was_planned(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    topic, users = topics.create(), topics.create("users", config={"cleanup.policy": "compact"})
    topics.fill(topic, [b"view 1"], key=b"u")
    topics.fill(users, [b"old"], key=b"u")
    known = onceward.kafka_table(spark, topics.servers, users).selectExpr("key", "value as name")
    views = read(spark.readStream, topics, topic, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    count = read(spark.read, topics, users).groupBy().count()
    joined = views.join(known, "key").crossJoin(count).select("value", "name", "count")
    query = Query(joined, tmp_path, processingTime="200 milliseconds")
    try:
        wait_until(lambda: len(query.values) == 1, "the first view is joined", _LIMIT_S)
        topics.fill(users, [b"new"], key=b"u")
        topics.fill(topic, [b"view 2"], key=b"u")
        wait_until(lambda: len(query.values) == 2, "the second view is joined", _LIMIT_S)
    finally:
        query.running.stop()
    rows = [(bytes(row["value"]), bytes(row["name"]), row["count"]) for batch in query.batches for row in batch]
    assert rows == [(b"view 1", b"old", 1), (b"view 2", b"new", 1)]


@streaming
@pytest.mark.slow
def test_planners_and_executors_need_only_the_code_that_was_sent(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    topics.fill(topic, values(30))
    (tmp_path / "sitecustomize.py").write_text(ONLY_WHAT_WAS_SENT)
    command = [sys.executable, "-c", READS_WITH_WHAT_WAS_SENT, topics.servers, topic, str(tmp_path)]
    # as where Onceward is not installed: our own daemon of workers could not start
    given = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--conf spark.python.daemon.module=pyspark.daemon pyspark-shell"}
    ended = subprocess.run(command, env=given, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert ended.stdout.split("\n")[-3:] == ["batch 30", "stream 30", ""], ended.stderr[-3000:]
