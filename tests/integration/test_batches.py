"""Pipelines whose transform is a function on Arrow batches, in the worker that reads and writes."""

import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.driver.journal import EVENTS_VARIABLE
from onceward.driver.restarts import Restart
from tests.integration.test_pipeline import Bench, reported, robbed, through_spark
from tests.support.topics import Topics, assert_exactly_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

Batches = Iterator[pa.RecordBatch]


@pytest.fixture
def bench(topics: Topics, job: str, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    return Bench(topics, job, spark, tmp_path)


def values_of(batch: pa.RecordBatch) -> list[str]:
    return [value.decode() for value in batch.column("value").to_pylist()]


def text(values: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})


def test_the_function_sees_the_sources_columns_and_its_output_is_written_once(bench: Bench) -> None:
    bench.fill(0, 500)
    topic = bench.source
    bench.topics.configure(topic, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    producer = Producer({"bootstrap.servers": bench.topics.servers, "log_level": 0})
    # at an even offset; microseconds do not hold its time
    producer.produce(topic, b"far", partition=0, timestamp=2**63 // 1000 + 1)
    assert producer.flush(30) == 0

    def even(batches: Batches) -> Batches:
        for batch in batches:
            assert batch.schema.names == [
                "key", "value", "topic", "partition", "offset", "timestamp", "timestampType"
            ]  # fmt: skip
            assert set(batch.column("topic").to_pylist()) == {topic}
            assert min(batch.column("timestamp").cast(pa.int64()).to_pylist()) > 10**15
            chosen = batch.filter(pc.equal(pc.bit_wise_and(batch.column("offset"), 1), 0))
            # more columns than the sink takes, and a different number of batches than the input
            extra = pa.array([1.5] * chosen.num_rows)
            made = pa.RecordBatch.from_arrays(
                [extra, chosen.column("key"), chosen.column("value")], ["x", "key", "Value"]
            )
            yield made.slice(0, 3)
            yield made.slice(0, 0)
            yield made.slice(3)

    bench.pipeline(transform_batches=even, source={"max_offsets_per_checkpoint": 200}).run()
    written = sorted(value or b"" for value in bench.topics.values(bench.sink))
    assert written == sorted([b"%d-%d" % (p, n) for p in range(3) for n in range(0, 500, 2)] + [b"far"])


def test_reader_function_and_writer_share_one_worker_and_no_other_path_is_taken(bench: Bench) -> None:
    """From a worker's second task on, loaded objects are frozen: the collector, run after each task, skips them."""
    bench.fill(0, 50)

    job = bench.job

    def where(batches: Batches) -> Batches:
        from onceward.sinks.kafka.executor import producers

        for batch in batches:
            # pools that a writer left in this process for an earlier checkpoint of this job
            pools = [pool for pool in producers._pools.mine() if job in pool]
            yield text([f"{os.getpid()} {len(pools)} {gc.get_freeze_count() > 10_000}"] * batch.num_rows)

    bench.pipeline(transform_batches=where, source={"max_offsets_per_checkpoint": 30}).run()
    assert [event["path"] for event in reported(bench, "planned")] == ["batches"]
    pools: dict[bytes, set[bytes]] = {}
    for value in bench.topics.values(bench.sink):
        pid, known, frozen = (value or b"").split()
        pools.setdefault(pid, set()).add(known)
        assert frozen == b"True" or known == b"0"
    assert os.getpid() not in map(int, pools)
    assert any(b"1" in known for known in pools.values()), "no worker with a function has ever written"


@pytest.mark.parametrize(
    ("transform", "path", "columns"),
    [
        (None, "copy", ["key", "value"]),
        (lambda df: df.select("value").where("offset >= 0"), "dataframe", ["value", "offset"]),
        (lambda df: df.select(F.col("key").alias("value")), "copy", ["key"]),
    ],
    ids=["copy", "dataframe", "chosen"],
)
def test_the_other_paths_log_their_kind_and_columns(
    bench: Bench, transform: Any, path: str, columns: list[str]
) -> None:
    bench.fill(0, 5)
    bench.pipeline(transform).run()
    (planned,) = reported(bench, "planned")
    assert planned["path"] == path
    assert planned["columns"] == columns
    assert len(bench.topics.read(bench.sink)) == 15
    (committed,), (settled,) = reported(bench, "pre-committed"), reported(bench, "settled")
    work = ["read", "transform"] if path == "copy" else ["read+transform"]
    assert list(committed["steps"]) == [
        "plan", "schedule", "queue", *work, "produce", "flush", "vote", "prove"
    ]  # fmt: skip
    assert sum(committed["steps"].values()) - committed["steps"]["plan"] == pytest.approx(
        committed["seconds"], abs=0.01
    )
    assert all(committed["steps"][step] > 0 for step in ("schedule", work[0], "produce", "flush", "vote", "prove"))
    assert list(settled["steps"]) == ["decide", "settle"]
    assert sum(settled["steps"].values()) == pytest.approx(settled["at"] - committed["at"], abs=0.5)


@pytest.mark.parametrize("path", ["copy", "dataframe"])
def test_a_checkpoint_keeps_what_its_driver_measured_which_is_no_more_than_the_whole(bench: Bench, path: str) -> None:
    bench.fill(0, 500)
    bench.pipeline(through_spark if path == "dataframe" else None).run()
    (row,) = [one for one in json.loads(bench.listed("checkpoints")) if one["records_written"]]
    work = {"read", "transform"} if path == "copy" else {"read+transform"}
    phases = row["phases"]
    waits, steps = {"idle", "cleanup"}, {"plan", "schedule", "queue", "produce", "flush", "vote", "prove"}
    assert set(phases) - waits == {*steps, *work}
    assert all(took >= 0 for took in phases.values())
    assert sum(phases[name] for name in ("plan", "schedule", "produce", "flush", "vote", "prove", *work)) > 0
    assert sum(phases.values()) <= row["ran"]


def test_a_checkpoint_that_fails_keeps_the_phases_that_were_over(bench: Bench) -> None:
    bench.fill(0, 5)

    def failing(batches: Batches) -> Batches:
        raise ValueError("unreadable")

    with pytest.raises(OncewardError):
        bench.pipeline(transform_batches=failing).run()
    (row,) = [one for one in json.loads(bench.listed("checkpoints")) if one["state"] == "aborted"]
    assert set(row["phases"]) - {"idle", "cleanup"} == {"plan"}, "its tasks have reported nothing"


def test_a_function_gets_exactly_the_requested_columns(bench: Bench) -> None:
    bench.fill(0, 20)

    def first(batches: Batches) -> Batches:
        for batch in batches:
            assert batch.schema.names == ["offset", "value"]
            yield batch.filter(pc.equal(batch["offset"], 0))

    bench.pipeline(transform_batches=first, source={"columns": ["offset", "value"]}).run()
    assert sorted(value or b"" for value in bench.topics.values(bench.sink)) == [b"0-0", b"1-0", b"2-0"]
    assert [event["columns"] for event in reported(bench, "planned")] == [["offset", "value"]]


def test_without_a_transform_only_columns_that_the_source_has_are_copied(bench: Bench) -> None:
    bench.fill(0, 20)
    with pytest.raises(ConfigurationError, match="value: the column is missing"):
        bench.pipeline(source={"columns": ["key", "offset"]}).run()
    assert bench.topics.read(bench.sink) == []
    bench.pipeline(source={"columns": ["value"]}).run()
    seen = [(key, value) for _, _, key, value in bench.topics.read(bench.sink)]
    assert sorted(seen, key=str) == [(None, value) for value in sorted(bench.topics.values(bench.source), key=str)]


def test_columns_that_are_only_chosen_are_written_as_spark_writes_them(bench: Bench) -> None:
    sinks = {"copy": bench.sink, "dataframe": bench.topics.create("by-spark", 2)}
    for topic in (bench.source, *sinks.values()):
        bench.topics.configure(topic, {"retention.ms": "-1"})  # the records are old
    producer = Producer({"bootstrap.servers": bench.topics.servers, "log_level": 0})
    for n in range(50):
        value = None if n % 7 == 0 else b"value-%d" % n
        headers: Any = [("n", b"%d" % n), ("empty", None)] if n % 2 else None
        key = b"key-%d" % n if n % 3 else None
        producer.produce(bench.source, value, key, headers=headers, timestamp=n - 1 if n < 3 else 1_700_000_000_000 + n)
    assert producer.flush(30) == 0

    def chosen(df: "DataFrame") -> "DataFrame":
        return df.select(F.col("value").alias("KEY"), F.col("key").alias("value"), "timestamp", "headers", "offset")

    written, job = {}, bench.job
    for path, sink in sinks.items():
        bench.job = f"{job}-{path}"
        bench.pipeline(
            chosen if path == "copy" else lambda df: chosen(df).where("offset >= 0"),
            source={"include_headers": True},
            sink={"topic": sink},
        ).run()
        written[path] = sorted(
            (message.timestamp()[1], message.key(), message.value(), message.headers())
            for message in bench.topics.messages(sink)
        )
    assert [event["path"] for event in reported(bench, "planned")] == ["copy", "dataframe"]
    assert len(written["copy"]) == 50
    assert {time for time, *_ in written["copy"]} >= {-1, 1, 1_700_000_000_049}
    assert written["copy"] == written["dataframe"]


def test_headers_reach_the_function_and_come_out_again(bench: Bench) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None), ("ü", b"")]
    producer = Producer({"bootstrap.servers": bench.topics.servers, "log_level": 0})
    producer.produce(bench.source, b"with", headers=headers)  # type: ignore[arg-type]
    producer.produce(bench.source, b"without")
    assert producer.flush(30) == 0

    def taken(batches: Batches) -> Batches:
        for batch in batches:
            yield batch.select(["value", "headers"])

    bench.pipeline(transform_batches=taken, source={"include_headers": True}).run()
    assert {message.value(): message.headers() for message in bench.topics.messages(bench.sink)} == {
        b"with": headers,
        b"without": None,
    }


def nothing(batches: Batches) -> Batches:
    for _ in batches:
        yield from ()


def test_a_function_may_write_nothing(bench: Bench) -> None:
    bench.fill(0, 10)
    bench.pipeline(transform_batches=nothing).run()
    assert bench.topics.read(bench.sink, committed=False) == []
    (told_of,) = reported(bench, "pre-committed")
    assert (told_of["read"], told_of["written"], told_of["transactions"]) == (30, 0, 0)


def number_as_key(batches: Batches) -> Batches:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"key": batch.column("offset"), "value": batch.column("value")})


def no_value(batches: Batches) -> Batches:
    for batch in batches:
        yield batch.select(["key"])


def tables(batches: Batches) -> Any:
    for batch in batches:
        yield pa.Table.from_batches([batch])


def forgetting_to_yield(batches: Batches) -> Any:
    for _ in batches:
        pass


def stopping_early(batches: Batches) -> Batches:
    for batch in batches:  # a partition without new records gives no batch at all
        yield batch.slice(0, 1).select(["key", "value"])
        break


@pytest.mark.parametrize(
    ("function", "said"),
    [
        pytest.param(number_as_key, "key: is int64, must be string or binary", marks=pytest.mark.crash),
        (no_value, "value: the column is missing"),
        pytest.param(tables, "yielded Table instead of", marks=pytest.mark.crash),
        (forgetting_to_yield, "returned NoneType instead of"),
        (stopping_early, "ended before it had taken all batches"),
    ],
)
def test_a_function_that_breaks_its_contract_ends_the_job_and_nothing_is_visible(
    bench: Bench, function: Callable[[Batches], Batches], said: str
) -> None:
    bench.topics.fill(bench.source, [b"%d" % n for n in range(3000)], partition=0, key=b"k")
    with pytest.raises(ConfigurationError, match=said) as raised:
        bench.pipeline(transform_batches=function, restart=Restart(initial="10ms")).run()
    assert "Traceback" not in str(raised.value)
    assert bench.topics.read(bench.sink) == []
    bench.pipeline().run()
    assert_exactly_once(bench.topics, bench.source, bench.sink)


def test_a_poison_record_fails_the_job_without_partial_output(bench: Bench) -> None:
    bench.fill(0, 50)

    def poisoned(batches: Batches) -> Batches:
        for batch in batches:
            if "1-30" in values_of(batch):
                raise ValueError("poisoned")
            yield batch.select(["key", "value"])

    with pytest.raises(OncewardError, match="poisoned"):
        bench.pipeline(transform_batches=poisoned, restart=Restart(initial="10ms", maximum="10ms", attempts=1)).run()
    assert bench.topics.read(bench.sink) == []
    bench.pipeline().run()
    assert_exactly_once(bench.topics, bench.source, bench.sink)


def test_a_topic_that_was_not_declared_declines_the_checkpoint(bench: Bench) -> None:
    bench.fill(0, 10)
    other = bench.topics.create("other", 1)
    good = bench.sink

    def routed(batches: Batches) -> Batches:
        for batch in batches:
            names = [good] * (batch.num_rows - 1) + [other]
            yield batch.select(["key", "value"]).append_column("topic", pa.array(names))

    with pytest.raises(OncewardError, match=other):
        bench.pipeline(transform_batches=routed, sink={"topics": [good]}).run()
    assert bench.topics.read(good) == []
    bench.pipeline(transform_batches=routed, sink={"topics": [good, other]}).run()
    assert (len(bench.topics.read(good)), len(bench.topics.read(other))) == (27, 3)


def test_a_lost_slot_is_written_again_because_one_range_alone_made_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fill(0, 20)

    def same(batches: Batches) -> Batches:
        for batch in batches:
            yield batch.select(["key", "value"])

    robbed(bench, monkeypatch, on_lost="replay", transform_batches=same).run()
    assert_exactly_once(bench.topics, bench.source, bench.sink)
    (replayed,) = reported(bench, "replayed")
    assert (replayed["slots"], replayed["written"]) == (1, 20)


def test_two_transforms_and_one_that_is_no_function_are_refused_at_construction(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="give one of them"):
        bench.pipeline(lambda df: df, transform_batches=nothing)
    with pytest.raises(ConfigurationError, match="transform_batches"):
        bench.pipeline(transform_batches="value")


def test_min_partitions_gives_big_ranges_to_more_tasks_and_a_lost_one_is_replayed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: list[bytes | None] = [b"%d" % n for n in range(4000)]
    bench.topics.fill(bench.source, values, partition=1)
    source = {"min_partitions": 6, "max_offsets_per_checkpoint": 3000}
    robbed(bench, monkeypatch, on_lost="replay", source=source).run()
    assert sorted(map(repr, bench.topics.values(bench.sink))) == sorted(map(repr, values))
    first = reported(bench, "pre-committed")[0]
    assert first["transactions"] == 4, "the only partition with records was not cut"
    (replayed,) = reported(bench, "replayed")
    assert (replayed["slots"], replayed["written"] * 4) == (1, first["written"])


def test_large_records_do_not_make_large_batches_for_the_writer(bench: Bench, spark: "SparkSession") -> None:
    """Through the JVM, where the limit by number would allow 10,000 or 20,000 of them in a batch."""
    assert spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == "16m"
    bench.topics.fill(bench.source, [bytes(100_000)] * 400, partition=0)

    def sizes(batches: Batches) -> Batches:
        for batch in batches:
            yield text([str(batch.nbytes)])

    bench.pipeline(lambda df: df.select("value").where("offset >= 0").mapInArrow(sizes, "value string")).run()
    seen = [int(size or b"") for size in bench.topics.values(bench.sink)]
    assert sum(seen) > 40_000_000
    # Spark closes a batch with the record that reaches the limit
    assert max(seen) < 17 << 20
