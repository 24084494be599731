"""The Kafka source against a real broker: where it starts, what it plans, and when it refuses to continue."""

import gc
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from onceward import KafkaCluster, KafkaSink, KafkaSource
from onceward.common.errors import ConfigurationError, HaltedError
from onceward.common.links import Links
from onceward.connectors.interfaces import JobContext, Plan, Resource
from onceward.dev.kafka import LocalKafka
from onceward.protocol.values import Document, JobName
from onceward.sources.kafka.client import consumer
from onceward.sources.kafka.driver import discovery, held_back, subscription
from onceward.sources.kafka.executor import clients
from onceward.sources.kafka.executor.reader import KafkaSplitReader, close_idle_clients
from tests.support.manual_time import ManualTime
from tests.support.shared_kafka import SharedKafka
from tests.support.topics import Topics, transaction, values, wait_for
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("each_reader")

KEPT = {"retention.ms": "-1"}
"""For records with old timestamps, which the broker would delete by retention during the test."""

KEY_VALUE = frozenset({"key", "value"})
Opener = Callable[..., KafkaSource]


@pytest.fixture
def opened(topics: Topics, job: str) -> Iterator[Opener]:
    """Makes open sources that belong to this test's job."""
    sources: list[KafkaSource] = []
    close_idle_clients()

    def make(names: Sequence[str] | None = None, **arguments: Any) -> KafkaSource:
        source = KafkaSource(topics.servers, names, **arguments)
        source.open(JobContext(job=JobName(job), checkpoint_timeout=timedelta(minutes=1)))
        sources.append(source)
        return source

    yield make
    for source in sources:
        source.close()
    close_idle_clients()


@pytest.fixture(params=[True, False], ids=["together", "one by one"])
def given_back(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ways to give messages back to the library; the second one is for unknown versions of it."""
    assert not request.param or consumer._TOGETHER
    monkeypatch.setattr(consumer, "_TOGETHER", request.param)


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    """The time of the source on the driver."""
    passing = ManualTime()
    for module in (subscription, discovery, held_back):
        monkeypatch.setattr(module, "time", passing)
    return passing


def positions(document: Document, topic: str) -> dict[int, int]:
    return {int(n): cursor["next"] for n, cursor in document.body["topics"][topic]["partitions"].items()}


def ends(document: Document, topic: str) -> dict[int, int]:
    return {int(n): cursor["end"] for n, cursor in document.body["topics"][topic]["partitions"].items()}


def records(source: KafkaSource, plan: Plan, columns: frozenset[str] = KEY_VALUE) -> list[dict[str, Any]]:
    read, rows = source.read(), []
    for split in plan.splits:
        for batch in read(split, columns):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


def read_values(source: KafkaSource, plan: Plan) -> list[bytes | None]:
    return [row["value"] for row in records(source, plan)]


def commit_group(topics: Topics, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """Commit as a consumer that never joins the group. On a fresh broker the group's coordinator may start late."""
    consumer = Consumer({"bootstrap.servers": topics.servers, "group.id": group, "log_level": 0})
    wanted = [TopicPartition(t, p, o) for (t, p), o in offsets.items()]

    def committed() -> bool:
        try:
            return all(one.error is None for one in consumer.commit(offsets=wanted, asynchronous=False) or ())
        except KafkaException:
            return False

    try:
        wait_until(committed, f"group {group} has its offsets")
    finally:
        consumer.close()


def delete_before(topics: Topics, topic: str, offset: int, partition: int = 0) -> None:
    wait_for(next(iter(topics.admin.delete_records([TopicPartition(topic, partition, offset)]).values())))


# -- starts


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize(
    ("start", "expected"),
    [
        # Partition 0 has ten records and group offset 4, partition 1 ten and no group offset, partition 2 none.
        ("group", {0: 4, 1: "reset", 2: 0}),
        ("earliest", {0: 0, 1: 0, 2: 0}),
        ("latest", {0: 10, 1: 10, 2: 0}),
        ("offsets", {0: 7, 1: "reset", 2: 0}),
        ("datetime", {0: 5, 1: 10, 2: 0}),
    ],
)
def test_every_start_resolves_each_partition_the_empty_one_too(
    topics: Topics, opened: Opener, start: str, reset: str, expected: dict[int, Any]
) -> None:
    topic = topics.create("in", partitions=3, config=KEPT)
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0})
    day = 86_400_000
    base = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1000)
    for i in range(10):
        producer.produce(topic, b"x", partition=0, timestamp=base + i * day)
        producer.produce(topic, b"x", partition=1, timestamp=base - (10 - i) * day)
    assert producer.flush(30) == 0
    group = f"{topics.prefix}.group"
    commit_group(topics, group, {(topic, 0): 4})
    chosen: Any = {
        "offsets": {topic: {0: 7}},
        # Between two records: the later one is the first that counts.
        "datetime": datetime(2025, 1, 5, 12, tzinfo=UTC),
    }.get(start, start)

    document = opened([topic], start=chosen, reset=reset, group_id=group).resolve()

    resolved = {"earliest": 0, "latest": 10}[reset]
    assert positions(document, topic) == {p: resolved if at == "reset" else at for p, at in expected.items()}
    assert set(ends(document, topic).values()) == {None}


@pytest.mark.parametrize("start", ["group", "offsets"])
def test_reset_error_names_the_partitions_without_an_offset(topics: Topics, opened: Opener, start: str) -> None:
    topic = topics.create("in", partitions=2)
    chosen: Any = {topic: {1: 0}} if start == "offsets" else "group"
    with pytest.raises(ConfigurationError, match=rf"{topic}-0.*reset='error'"):
        opened([topic], start=chosen, reset="error").resolve()


def test_a_datetime_means_the_first_record_with_that_very_millisecond(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", config=KEPT)
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0})
    instant = datetime(2025, 3, 1, 12, 0, 0, 5000, tzinfo=UTC)
    for shift in (-1, 0, 1):
        producer.produce(topic, b"x", timestamp=int(instant.timestamp() * 1000) + shift)
    assert producer.flush(30) == 0
    assert positions(opened([topic], start=instant).resolve(), topic) == {0: 1}
    assert positions(opened([topic], start=instant + timedelta(microseconds=1)).resolve(), topic) == {0: 2}


def test_latest_on_an_empty_partition_reads_records_written_before_a_restart(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", partitions=2)
    topics.fill(topic, values(3), partition=0)
    document = opened([topic], start="latest").resolve()
    assert positions(document, topic) == {0: 3, 1: 0}

    topics.fill(topic, values(2, "late"), partition=1)
    restarted = opened([topic], start="latest")
    restarted.restore(document)
    assert read_values(restarted, restarted.plan(document)) == values(2, "late")


def test_only_the_first_start_looks_at_the_group(topics: Topics, opened: Opener) -> None:
    """Another program that commits offsets to the group afterwards moves nothing."""
    topic, group = topics.create("in"), f"{topics.prefix}.g"
    topics.fill(topic, values(5))
    commit_group(topics, group, {(topic, 0): 2})
    first = opened([topic], group_id=group)
    document = first.resolve()
    assert positions(document, topic) == {0: 2}
    commit_group(topics, group, {(topic, 0): 5})
    restarted = opened([topic], group_id=group)
    restarted.restore(document)
    for source in (first, restarted):
        assert read_values(source, source.plan(document)) == values(5)[2:]


def test_start_offsets_that_are_not_in_the_log_are_refused_with_its_limits(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(5))
    delete_before(topics, topic, 2)
    for offset in (1, 6):
        with pytest.raises(ConfigurationError, match=rf"{topic}-0 at {offset} .*\[2, 5\)"):
            opened([topic], start={topic: {0: offset}}).resolve()
    assert positions(opened([topic], start={topic: {0: 5}}).resolve(), topic) == {0: 5}


def test_a_group_offset_that_retention_has_passed_halts_instead_of_jumping(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(5))
    commit_group(topics, f"{topics.prefix}.g", {(topic, 0): 1})
    delete_before(topics, topic, 3)
    with pytest.raises(HaltedError, match=rf"{topic}-0 at 1 .*\[3, 5\)"):
        opened([topic], group_id=f"{topics.prefix}.g").resolve()


def test_unknown_partitions_and_topics_are_refused(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    with pytest.raises(ConfigurationError, match=f"{topic}-7"):
        opened([topic], start={topic: {7: 0}}).resolve()
    with pytest.raises(ConfigurationError, match="no-such-topic"):
        opened([topic, f"{topics.prefix}.no-such-topic"]).resolve()


# -- ranges


@pytest.mark.usefixtures("given_back")
def test_ranges_read_exactly_the_produced_records_in_order(topics: Topics, opened: Opener) -> None:
    first, second = topics.create("a", partitions=2), topics.create("b")
    topics.fill(first, values(1500, "a0-"), partition=0)
    topics.fill(first, values(1, "a1-"), partition=1)
    topics.fill(second, [*values(700, "b-"), None], partition=0)
    source = opened([second, first], start="earliest")
    plan = source.plan(source.resolve())
    assert [(s["topic"], s["partition"], s["start"], s["end"]) for s in plan.splits] == [
        (first, 0, 0, 1500),
        (first, 1, 0, 1),
        (second, 0, 0, 701),
    ]
    assert (plan.records, plan.lag, plan.finished) == (2202, 0, False)
    assert read_values(source, plan) == [*values(1500, "a0-"), *values(1, "a1-"), *values(700, "b-"), None]
    assert source.snapshot(plan) == plan.positions
    again = source.plan(plan.positions)
    assert (again.records, again.positions) == (0, plan.positions)
    assert len(again.splits) == 3


@pytest.mark.usefixtures("given_back")
def test_any_cut_of_the_log_gives_the_same_records(topics: Topics, opened: Opener) -> None:
    """Committed, aborted and control records are mixed; a cut may fall on any of them."""
    topic = topics.create("in")
    transaction(topics, topic, 3, commit=True, prefix="a")
    transaction(topics, topic, 4, commit=False, prefix="lost")
    topics.fill(topic, values(2, "plain"))
    transaction(topics, topic, 2, commit=True, prefix="b")
    transaction(topics, topic, 5, commit=False, prefix="lost")
    expected = topics.values(topic)
    assert expected == [*values(3, "a"), *values(2, "plain"), *values(2, "b")]
    source = opened([topic], start="earliest")
    end = source.plan(source.resolve()).splits[0]["end"]
    assert end == 3 + 1 + 4 + 1 + 2 + 2 + 1 + 5 + 1
    reader = source.read()

    def between(start: int, stop: int) -> list[bytes | None]:
        split = {"topic": topic, "partition": 0, "start": start, "end": stop}
        return [row["value"] for batch in reader(split, KEY_VALUE) for row in batch.to_pylist()]

    assert between(0, end) == expected
    for cut in range(end + 1):
        assert between(0, cut) + between(cut, end) == expected, f"cut at {cut}"


@pytest.mark.usefixtures("given_back")
def test_a_range_of_only_aborted_records_ends(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    transaction(topics, topic, 10, commit=False)
    source = opened([topic], start="earliest")
    start = source.resolve()
    wait_until(lambda: source.plan(start).records, "the brokers have written the marker of the abort")
    plan = source.plan(start)
    assert plan.records == 11
    assert read_values(source, plan) == []
    assert positions(plan.positions, topic) == {0: 11}


@pytest.mark.usefixtures("passing")
def test_an_open_transaction_is_not_planned_and_a_start_inside_it_waits(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(2))
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0, "transactional.id": topics.prefix})
    producer.list_topics(timeout=30)
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values(3, "open"):
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    source = opened([topic], start="earliest")
    plan = source.plan(source.resolve())
    assert read_values(source, plan) == values(2)

    inside = opened([topic], start={topic: {0: 4}})
    start = inside.resolve()
    inside.restore(start)
    assert inside.plan(start).records == 0
    producer.commit_transaction(30)
    wait_until(lambda: inside.plan(start).records, "the transaction's records can be seen")
    assert read_values(inside, inside.plan(start)) == values(3, "open")[2:]


def test_an_open_transaction_of_another_program_is_named_while_it_holds_the_input_back(
    topics: Topics, job: str, passing: ManualTime, caplog: pytest.LogCaptureFixture
) -> None:
    topic, links = topics.create("in", partitions=2), Links()
    topics.fill(topic, values(5), partition=1)
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0, "transactional.id": topics.prefix})
    producer.list_topics(timeout=30)
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values(20, "open"):
        producer.produce(topic, value, partition=1)
    assert producer.flush(30) == 0
    with closing(KafkaSource(topics.servers, [topic], start="earliest", end="latest")) as source:
        source.open(JobContext(job=JobName(job), checkpoint_timeout=timedelta(minutes=1), links=links))
        base = source.resolve()
        said = f"{topic}-1: 20 offsets from 5 on, of producer "
        assert said in caplog.text
        last = source.plan(base).positions
        assert not links.troubles(), "it may end at once"
        passing.sleep(60)
        caplog.clear()
        assert source.plan(last).finished
        assert caplog.text.count(said) == 1, "the end is reached, and says what it leaves out"
        source.plan(last)
        assert caplog.text.count(said) == 1
        (trouble,) = links.troubles()
        assert trouble.held
        assert trouble.link == f"an open transaction in {topic}-1 at offset 5"
        assert trouble.waiting == "20 offsets from there on"
        assert re.fullmatch(r"producer \d+, epoch 0, last wrote 2\S+", trouble.why)
        producer.commit_transaction(30)

        def over() -> bool:
            passing.sleep(60)
            source.plan(last)
            return not links.troubles()

        wait_until(over, "the transaction has ended")


def test_a_bounded_end_behind_control_records_is_reached_once_and_kept(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", partitions=2)
    transaction(topics, topic, 3, commit=True)
    transaction(topics, topic, 3, commit=False)
    source = opened([topic], start="earliest", end="latest")
    document = source.resolve()
    assert ends(document, topic) == {0: 8, 1: 0}
    topics.fill(topic, values(5, "later"), partition=0)
    topics.fill(topic, values(5, "later"), partition=1)

    restarted = opened([topic], start="earliest", end="latest")
    restarted.restore(document)
    plan = restarted.plan(document)
    assert read_values(restarted, plan) == values(3, "t")
    assert (plan.finished, plan.lag) == (True, 0)
    assert restarted.plan(plan.positions).finished
    assert restarted.plan(plan.positions).positions == plan.positions


def test_a_datetime_bounds_before_its_first_record(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", partitions=3, config=KEPT)
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0})
    base = datetime(2025, 1, 1, tzinfo=UTC)
    for i in range(4):
        producer.produce(topic, b"%d" % i, partition=0, timestamp=int((base + timedelta(days=i)).timestamp() * 1000))
    # No record is that late: bounded by the log's present end.
    producer.produce(topic, b"early", partition=1, timestamp=int(base.timestamp() * 1000))
    assert producer.flush(30) == 0
    document = opened([topic], start="earliest", end=base + timedelta(days=2)).resolve()
    assert ends(document, topic) == {0: 2, 1: 1, 2: 0}


def test_offsets_bound_a_job_that_waits_for_them(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", partitions=2)
    with pytest.raises(ConfigurationError, match=f"{topic}-1"):
        opened([topic], end={topic: {0: 4}}).resolve()
    source = opened([topic], start="earliest", end={topic: {0: 4, 1: 0}})
    document = source.resolve()
    assert not source.plan(document).finished
    topics.fill(topic, values(6), partition=0)
    plan = source.plan(document)
    assert (read_values(source, plan), plan.finished) == (values(4), True)


def test_a_changed_end_is_resolved_again_and_a_removed_one_unbounds_the_job(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(2))
    bounded = opened([topic], start="earliest", end="latest")
    done = bounded.plan(bounded.resolve())
    assert done.finished
    topics.fill(topic, values(3, "more"))
    further = opened([topic], end={topic: {0: 4}})
    plan = further.plan(done.positions)
    assert (read_values(further, plan), plan.finished) == (values(3, "more")[:2], True)
    endless = opened([topic])
    last = endless.plan(plan.positions)
    assert (read_values(endless, last), last.finished) == (values(3, "more")[2:], False)
    assert ends(last.positions, topic) == {0: None}


def test_max_offsets_bounds_a_checkpoint_and_nothing_is_lost_between_them(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", partitions=3)
    for partition, n in enumerate((100, 10, 0)):
        topics.fill(topic, values(n, f"{partition}-"), partition=partition)
    source = opened([topic], start="earliest", max_offsets_per_checkpoint=11)
    seen: list[Any] = []
    document, plans = source.resolve(), 0
    while (plan := source.plan(document)).records:
        assert plan.records <= 11
        assert len(plan.splits) == 3
        seen += read_values(source, plan)
        document, plans = plan.positions, plans + 1
        assert plan.lag == 110 - len(seen)
    assert plans == 10
    assert Counter(seen) == Counter([*values(100, "0-"), *values(10, "1-")])


def test_a_rate_is_kept_over_time(topics: Topics, opened: Opener, passing: ManualTime) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(100))
    source = opened([topic], start="earliest", max_rate_per_partition=10)
    document = source.resolve()
    taken = []
    for seconds in (0, 0, 1, 2.5):
        passing.now += seconds
        plan = source.plan(document)
        taken.append(plan.records)
        document = plan.positions
    assert taken == [10, 0, 10, 25]


# -- columns


@pytest.mark.usefixtures("given_back")
def test_all_columns_are_as_in_spark_s_kafka_source(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", partitions=2, config=KEPT)
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0})
    producer.produce(topic, b"v", b"k", partition=1, timestamp=1_700_000_000_123, headers=[("a", b"1"), ("a", None)])
    producer.produce(topic, None, None, partition=1, timestamp=1_700_000_000_124)
    assert producer.flush(30) == 0
    source = opened([topic], start="earliest", include_headers=True)
    plan = source.plan(source.resolve())
    everything = frozenset({"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"})
    instant = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    common = {"topic": topic, "partition": 1, "timestampType": 0}
    assert records(source, plan, everything) == [
        {
            "key": b"k",
            "value": b"v",
            **common,
            "offset": 0,
            "timestamp": instant,
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        },
        {
            "key": None,
            "value": None,
            **common,
            "offset": 1,
            "timestamp": instant + timedelta(milliseconds=1),
            "headers": None,
        },
    ]
    unused = records(source, plan, frozenset({"offset"}))
    assert [row.pop("offset") for row in unused] == [0, 1]
    assert {value for row in unused for value in row.values()} == {None}
    assert source.schema.endswith("headers array<struct<key: string, value: binary>>")


def test_a_source_has_the_requested_columns_in_order(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", config=KEPT)
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0})
    producer.produce(topic, b"v", b"k", headers=[("a", b"1")])
    assert producer.flush(30) == 0
    source = opened([topic], start="earliest", columns=["headers", "value"])
    [row] = records(source, source.plan(source.resolve()), frozenset({"headers", "value"}))
    assert list(row.items()) == [("headers", [{"key": "a", "value": b"1"}]), ("value", b"v")]
    assert source.schema == "headers array<struct<key: string, value: binary>>, value binary"


def test_log_append_time_is_reported_as_in_spark(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", config={"message.timestamp.type": "LogAppendTime"})
    topics.fill(topic, values(1))
    source = opened([topic], start="earliest")
    [row] = records(source, source.plan(source.resolve()), frozenset({"timestampType"}))
    assert row["timestampType"] == 1


_SPARK = """
import json, sys
from pyspark.sql import SparkSession
from onceward import KafkaCluster
from onceward.sources.kafka.executor.columns import COLUMNS, HEADERS
from onceward.sources.kafka.executor.reader import KafkaSplitReader

servers, topic, schema = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.session.timeZone", "America/New_York")
    .getOrCreate()
)
read = KafkaSplitReader(cluster=KafkaCluster(servers), group_id="g", names=(*COLUMNS, HEADERS))

def rows(numbers):
    for _ in numbers:
        split = {"topic": topic, "partition": 0, "start": 0, "end": 2}
        columns = "key value topic partition offset timestamp timestampType headers"
        yield from read(split, frozenset(columns.split()))

df = spark.range(1).mapInArrow(rows, schema)
seen = df.selectExpr("string(value)", "unix_millis(timestamp)", "offset", "timestampType", "size(headers)").collect()
print(json.dumps([list(row) for row in seen]))
assert df.selectExpr("headers[0].value v").where("v is not null").count() == 1
"""


def test_spark_accepts_the_batches_in_any_time_zone(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", config=KEPT)
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0})
    producer.produce(topic, b"one", timestamp=1_700_000_000_123, headers=[("a", b"1")])
    producer.produce(topic, b"two", timestamp=1_700_000_000_124)
    assert producer.flush(30) == 0
    schema = opened([topic], include_headers=True).schema
    done = subprocess.run(
        [sys.executable, "-c", _SPARK, topics.servers, topic, schema],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.strip().splitlines()[-1]) == [
        ["one", 1_700_000_000_123, 0, 0, 1],
        ["two", 1_700_000_000_124, 1, 0, None],
    ]


# -- memory


@pytest.mark.usefixtures("given_back")
def test_a_batch_is_bounded_by_rows_and_by_bytes_whatever_the_range(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, [bytes(200_000)] * 150)
    source = opened([topic], start="earliest")
    [split] = source.plan(source.resolve()).splits
    reader = source.read()
    assert isinstance(reader, KafkaSplitReader)
    assert int(reader.settings()["queued.max.messages.kbytes"]) <= 32 * 1024
    small = replace(reader, batch_bytes=1_000_000, max_rows=20)
    sizes = [(batch.num_rows, batch.nbytes) for batch in small(split, KEY_VALUE)]
    assert sum(rows for rows, _ in sizes) == 150
    assert sizes[0][0] <= 20  # the size of the records was still unknown
    assert max(size for _, size in sizes[1:]) <= 1_100_000


@pytest.mark.usefixtures("given_back")
def test_a_batch_stays_bounded_where_large_records_follow_small_ones(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, [*values(12_000), *[bytes(100_000)] * 60, *values(10)])
    source = opened([topic], start="earliest")
    [split] = source.plan(source.resolve()).splits
    reader = source.read()
    assert isinstance(reader, KafkaSplitReader)
    batches = list(replace(reader, batch_bytes=1_000_000)(split, KEY_VALUE))
    assert [size for batch in batches if (size := batch.nbytes) > 1_000_000] == []
    assert max(batch.num_rows for batch in batches) > 1_000, "small records are still taken together"
    read = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert read == [*values(12_000), *[bytes(100_000)] * 60, *values(10)]


@pytest.mark.usefixtures("given_back")
def test_short_and_long_ranges_by_turns_read_every_record_however_large(topics: Topics, opened: Opener) -> None:
    """The client of a short range fetches 64 or 256 KiB at a time; a larger record still arrives."""
    topic = topics.create("in")
    small = [b"%01000d" % n for n in range(3_000)]
    sent: list[bytes | None] = [*small, bytes(300_000), *small, bytes(200_000), bytes(300_000)]
    topics.fill(topic, sent)
    source = opened([topic], start="earliest")
    [split] = source.plan(source.resolve()).splits
    read = source.read()
    found: list[bytes | None] = []
    used: set[clients.Fetch] = set()
    start = 0
    while start < len(sent):
        end = min(len(sent), start + (50 if start % 1_000 < 500 else 500))
        used.add(clients.fetch_for(topic, end - start))
        for batch in read({**split, "start": start, "end": end}, KEY_VALUE):
            found += batch.column("value").to_pylist()
        start = end
    assert found == sent
    assert {client.fetch for client in clients._idle.mine()} == used == {clients.FIRST_LOOK, *clients.FETCHES[:2]}


@pytest.mark.usefixtures("given_back")
def test_joined_ranges_are_read_together_each_to_its_end_and_the_client_serves_again(
    topics: Topics, opened: Opener
) -> None:
    """Small ranges and some of several fetches, with more records behind their ends, markers and aborted records."""
    topic = topics.create("in", 12)
    sent: dict[int, list[bytes | None]] = {}
    for partition in range(12):
        sent[partition] = values(40_000 if partition % 4 == 3 else 50, f"{partition}-")
        topics.fill(topic, sent[partition], partition=partition)
        transaction(topics, topic, 5, commit=False, partition=partition)
        transaction(topics, topic, 5, commit=True, partition=partition)
        sent[partition] += values(5, "t")
    source = opened([topic], start="earliest")
    splits = source.plan(source.resolve()).splits
    read = source.read()
    found: dict[int, list[bytes | None]] = {partition: [] for partition in sent}
    for share in (0, 1, 2):
        cut = []
        for split in splits:
            cuts = [int(split["start"]) + (int(split["end"]) - int(split["start"])) * n // 3 for n in range(4)]
            cut.append({**split, "start": cuts[share], "end": cuts[share + 1]})
        for joined in source.coalesce(cut, 1):
            for batch in read(joined, frozenset({"partition", "value"})):
                (partition,) = set(batch.column("partition").to_pylist())
                found[partition] += batch.column("value").to_pylist()
    assert found == sent


def test_no_object_is_made_for_a_record(topics: Topics, opened: Opener) -> None:
    """Objects would double the time of reading, and the collector would run once for every 700 records."""
    topic = topics.create("in")
    topics.fill(topic, values(20_000))
    source = opened([topic], start="earliest")
    [split] = source.plan(source.resolve()).splits
    passes: list[str] = []

    def count(phase: str, _: object) -> None:
        passes.append(phase)

    assert gc.isenabled()
    gc.callbacks.append(count)
    try:
        assert sum(batch.num_rows for batch in source.read()(split, KEY_VALUE)) == 20_000
    finally:
        gc.callbacks.remove(count)
    assert passes.count("start") < 10, "one for every 700 records would be 28"


def test_min_partitions_cuts_ranges_and_reads_the_same_records(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", partitions=2)
    topics.fill(topic, values(1000, "a"), partition=0)
    transaction(topics, topic, 10, commit=True, partition=0)  # a control record is an offset too
    topics.fill(topic, values(5, "b"), partition=1)
    source = opened([topic], start="earliest", min_partitions=6)
    plan = source.plan(source.resolve())
    assert [split["partition"] for split in plan.splits] == [0, 0, 0, 0, 0, 1]
    assert plan.records == 1011 + 5
    assert read_values(source, plan) == [*values(1000, "a"), *values(10, "t"), *values(5, "b")]
    nothing_new = source.plan(plan.positions)
    assert (nothing_new.records, len(nothing_new.splits)) == (0, 6)


@pytest.mark.usefixtures("given_back")
def test_a_reader_of_a_plan_that_had_enough_leaves_a_usable_client_behind(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(5000))
    source = opened([topic], start="earliest")
    plan = source.plan(source.resolve())
    reader = source.read()
    assert isinstance(reader, KafkaSplitReader)
    batches: Any = replace(reader, max_rows=10)(plan.splits[0], KEY_VALUE)
    next(batches)
    batches.close()
    assert read_values(source, plan) == values(5000)


# -- discovery


def test_a_partition_added_later_starts_at_earliest_and_is_in_the_next_cut(
    topics: Topics, opened: Opener, passing: ManualTime
) -> None:
    topic = topics.create("in", partitions=1)
    topics.fill(topic, values(2), partition=0)
    source = opened([topic], start="latest", discovery_interval="1min")
    document = source.resolve()
    wait_for(topics.admin.create_partitions([NewPartitions(topic, 3)])[topic])
    wait_until(lambda: len(topics.admin.list_topics(topic).topics[topic].partitions) == 3, "there are three partitions")
    topics.fill(topic, values(4, "new"), partition=2)

    assert len(source.plan(document).splits) == 1
    passing.now += 60
    plan = source.plan(document)
    assert [s["partition"] for s in plan.splits] == [0, 1, 2]
    assert read_values(source, plan) == values(4, "new")
    assert positions(plan.positions, topic) == {0: 2, 1: 0, 2: 4}

    restarted = opened([topic], start="latest")
    restarted.restore(document)
    assert restarted.plan(document).splits == plan.splits


def test_a_pattern_finds_new_topics_and_matches_whole_names_only(topics: Topics, opened: Opener) -> None:
    first = topics.create("orders-1")
    topics.create("more-orders-1x")
    source = opened(pattern=rf"{topics.prefix}\.orders-\d", start="latest", discovery_interval="100ms")
    document = source.resolve()
    assert set(document.body["topics"]) == {first}
    second = topics.create("orders-2")
    topics.fill(second, values(2))
    wait_until(lambda: source.plan(document).records == 2, "the new topic is found")
    plan = source.plan(document)
    assert [s["topic"] for s in plan.splits] == [first, second]
    assert read_values(source, plan) == values(2)


def test_a_topic_that_is_no_longer_read_keeps_its_position(topics: Topics, opened: Opener) -> None:
    first, second = topics.create("a"), topics.create("b")
    both = opened([first, second], start="earliest")
    document = both.resolve()
    topics.fill(first, values(1))
    topics.fill(second, values(2))
    one = opened([first])
    one.restore(document)
    plan = one.plan(document)
    assert [s["topic"] for s in plan.splits] == [first]
    assert positions(plan.positions, second) == {0: 0}
    assert read_values(both, both.plan(plan.positions)) == values(2)


# -- what stops a job


def test_positions_of_another_cluster_are_refused_with_both_ids(
    topics: Topics, opened: Opener, kafka: SharedKafka
) -> None:
    source = opened([topics.create("in")], start="earliest")
    document = source.resolve()
    foreign = replace(document, body={**document.body, "cluster_id": "another-cluster"})
    with pytest.raises(HaltedError, match=rf"another-cluster.*{kafka.cluster_id}"):
        source.restore(foreign)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "file-positions"},
        {"version": 3},
        {"body": {}},
        {
            "body": {
                "cluster": "main",
                "cluster_id": "x",
                "bound": None,
                "topics": {"t": {"id": "i", "partitions": {"0": {}}}},
            }
        },
    ],
)
def test_documents_that_it_cannot_read_halt_the_job(topics: Topics, opened: Opener, change: dict[str, Any]) -> None:
    source = opened([topics.create("in")])
    document = replace(source.resolve(), **change)
    for use in (source.restore, source.plan):
        with pytest.raises(HaltedError, match="positions"):
            use(document)


def test_a_recreated_topic_halts_even_when_it_was_refilled_past_the_position(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(3))
    source = opened([topic], start="earliest")
    start = source.resolve()
    old_id = start.body["topics"][topic]["id"]
    done = source.plan(start)
    topics.delete(topic)
    topics.create("in")
    topics.fill(topic, values(10, "other"))

    with pytest.raises(HaltedError, match=old_id):
        source.restore(done.positions)
    with pytest.raises(HaltedError, match="recreated"):
        opened([topic]).plan(done.positions)
    # A source that has checked the topic before still plans the new records, but never confirms them as read.
    plan = source.plan(done.positions)
    with pytest.raises(HaltedError, match="recreated"):
        source.snapshot(plan)


@pytest.mark.usefixtures("passing")
def test_a_recreated_topic_with_fewer_records_halts_at_the_next_plan(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(3))
    source = opened([topic], start="earliest")
    done = source.plan(source.resolve())
    topics.delete(topic)
    topics.create("in")
    with pytest.raises(HaltedError, match="recreated"):
        source.plan(done.positions)


def test_a_deleted_topic_halts(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    source = opened([topic], start="earliest")
    document = source.resolve()
    topics.delete(topic)
    with pytest.raises(HaltedError, match="does not exist any more"):
        source.plan(document)
    with pytest.raises(HaltedError, match="does not exist any more"):
        source.restore(document)


def test_retention_past_the_position_halts_a_restore_with_both_offsets(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", partitions=2)
    topics.fill(topic, values(9), partition=1)
    source = opened([topic], start={topic: {1: 2}})
    document = source.resolve()
    delete_before(topics, topic, 2, partition=1)
    source.restore(document)
    delete_before(topics, topic, 5, partition=1)
    with pytest.raises(HaltedError, match=rf"{topic}-1 .*offset 2, .*starts at 5.*3 offsets"):
        source.restore(document)


def test_retention_past_the_position_fails_the_task_and_the_driver_reports_why(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(9))
    source = opened([topic], start="earliest")
    plan = source.plan(source.resolve())
    delete_before(topics, topic, 5)
    with pytest.raises(Exception, match="Input is gone") as caught:
        read_values(source, plan)
    text = f"org.apache.spark.SparkException: Job aborted\n  File x\n{caught.value}\n\tat org.apache.spark.api"
    halt = source.diagnose(RuntimeError(text))
    assert isinstance(halt, HaltedError)
    for fact in (f"{topic}-0", "offset 0", "starts at 5"):
        assert fact in str(halt)
    assert source.diagnose(RuntimeError("something else")) is None


@pytest.mark.usefixtures("passing")
def test_positions_behind_the_end_of_the_log_halt_with_both_offsets(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(3))
    source = opened([topic], start="latest")
    document = source.resolve()
    body: Any = {
        **document.body,
        "topics": {
            topic: {**document.body["topics"][topic], "partitions": {"0": {"next": 8, "end": None, "epoch": 0}}}
        },
    }
    ahead = replace(document, body=body)
    for use in (source.restore, source.plan):
        with pytest.raises(HaltedError, match=rf"{topic}-0 .*offset 8, .*ends at 3"):
            use(ahead)


def test_a_dead_broker_fails_the_task_instead_of_hanging_and_a_restarted_one_is_read_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    close_idle_clients()
    with LocalKafka(heap="256m") as kafka:
        topics = Topics(kafka.bootstrap_servers, "dead")
        topic = topics.create("in")
        topics.fill(topic, values(3))
        reader = KafkaSplitReader(cluster=KafkaCluster(kafka.bootstrap_servers), group_id="g")
        split = {"topic": topic, "partition": 0, "start": 0, "end": 3}
        assert sum(batch.num_rows for batch in reader(split, KEY_VALUE)) == 3
        kafka.kill()
        with pytest.raises(Exception, match=f"{topic}-0 stopped at offset 0 of 3"):
            list(replace(reader, give_up_after=1.0)(split, KEY_VALUE))
        # The client's own messages go to the project's logger, not to standard error.
        assert any(record.name == "onceward.kafka" for record in caplog.records)

        topics.servers = kafka.bootstrap_servers
        batches = reader({**split, "end": 4}, KEY_VALUE)
        with ThreadPoolExecutor(1) as pool:
            # Begun while the broker is down, and waiting for a record that is written after the restart.
            rows = pool.submit(lambda: [v for batch in batches for v in batch["value"].to_pylist()])
            kafka.restart()
            topics.fill(topic, [b"after"])
            assert rows.result(60) == [*values(3), b"after"]


# -- the rest of the interface


def test_settled_positions_are_mirrored_to_the_group_unless_switched_off(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", partitions=2)
    topics.fill(topic, values(3), partition=1)

    def shown(group: str) -> dict[int, int]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        answer: Any = wait_for(topics.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group])
        return {p.partition: p.offset for p in answer.topic_partitions}

    for group, mirrored in ((f"{topics.prefix}.on", True), (f"{topics.prefix}.off", False)):
        source = opened([topic], start="earliest", group_id=group, mirror_offsets=mirrored)
        plan = source.plan(source.resolve())
        source.mirror(plan.positions)
        source.close()
        assert shown(group) == ({0: 0, 1: 3} if mirrored else {})


def test_a_topic_is_input_and_output_only_on_the_same_cluster(
    topics: Topics, opened: Opener, kafka: SharedKafka, job: str
) -> None:
    topic = topics.create("in")
    context = JobContext(job=JobName(job), checkpoint_timeout=timedelta(minutes=1))
    with closing(KafkaSink(topics.servers, topic).connect(context)) as sink:
        (output,) = sink.writes()
    assert output == Resource(kind="Kafka topic", cluster=kafka.cluster_id, name=topic)
    for source in (opened([topic]), opened(pattern=f"{topics.prefix}.*")):
        assert source.reads(output)
        for other in ({"kind": "table"}, {"cluster": "elsewhere"}, {"name": "x"}):
            assert not source.reads(replace(output, **other))


def test_the_preflight_names_missing_topics_and_broken_settings_together(topics: Topics, job: str) -> None:
    there = topics.create("in")
    cluster = KafkaCluster(
        topics.servers, config={"isolation.level": "read_uncommitted", "enable.auto.commit": True, "group.id": "mine"}
    )
    source = KafkaSource(cluster, [there, f"{topics.prefix}.x", f"{topics.prefix}.y"])
    source.open(JobContext(job=JobName(job), checkpoint_timeout=timedelta(minutes=1)))
    try:
        text = "\n".join(f"{f.severity} {f.subject} {f.message} {f.fix}" for f in source.preflight())
    finally:
        source.close()
    for expected in (".x", ".y", "isolation.level=read_uncommitted", "enable.auto.commit", "group.id"):
        assert expected in text


def test_the_preflight_warns_of_topics_that_can_lose_confirmed_records(topics: Topics, opened: Opener) -> None:
    topic = topics.create("in", config={"unclean.leader.election.enable": "true"})
    found = list(opened([topic]).preflight())
    assert {(one.severity, one.subject) for one in found} == {("warning", f"source topic {topic}")}
    said = [one.message for one in found]
    assert said[:2] == ["has replication factor 1, below 3", "min.insync.replicas is 1, below 2"]
    assert "unclean leader election is allowed" in said[2]
    topics.configure(topic, {"unclean.leader.election.enable": "false"})
    assert [one.message for one in opened([topic]).preflight()] == said[:2]
    assert [f.severity for f in opened(pattern="nothing-like-this").preflight()] == ["error"]
