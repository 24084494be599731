"""Whole pipelines on the real broker, in this process, on one Spark session."""

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from typer.testing import CliRunner

from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline
from onceward.common.errors import ConfigurationError, HaltedError, OncewardError, PreflightError
from onceward.connectors.interfaces import JobContext
from onceward.driver import diagnosis
from onceward.driver.journal import EVENTS_VARIABLE
from onceward.driver.output import outputs_of
from onceward.driver.restarts import NO_RESTART, Restart
from onceward.driver.spark import job as spark_job
from onceward.operate.cli import app
from onceward.protocol.events import CloseReason
from tests.support.topics import Topics, assert_exactly_once, open_transactions_hold_back, wait_for
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


class Bench:
    """Builds the pipelines of one test, with the same job, directory and source."""

    def __init__(self, topics: Topics, job: str, spark: "SparkSession", directory: Path) -> None:
        self.topics, self.job, self.spark, self.directory = topics, job, spark, directory
        self.source = topics.create("in", 3)
        self.sink = topics.create("out", 2)

    def pipeline(
        self,
        transform: "Callable[[DataFrame], DataFrame] | None" = None,
        *,
        source: dict[str, Any] | None = None,
        sink: dict[str, Any] | None = None,
        **options: Any,
    ) -> Pipeline:
        return Pipeline(
            job=self.job,
            source=KafkaSource(
                self.topics.servers,
                topics=[self.source],
                **{"start": "earliest", "end": "latest", "adaptive": False, **(source or {})},
            ),
            sink=KafkaSink(self.topics.servers, **(sink or {"topic": self.sink})),
            transform=transform,
            spark=self.spark,
            state_dir=self.directory / "state",
            **{"settings": CheckpointSettings(interval="50ms"), "restart": NO_RESTART, **options},
        )

    def listed(self, command: str) -> str:
        """The output of ``onceward jobs``, ``checkpoints`` or ``history`` as JSON."""
        of = [] if command == "jobs" else [self.job]
        place = ["--state-dir", str(self.directory / "state"), "--json"]
        return CliRunner().invoke(app, [command, *of, *place]).output

    def fill(self, first: int, records: int) -> None:
        for partition in range(3):
            values: list[bytes | None] = [b"%d-%d" % (partition, n) for n in range(first, first + records)]
            self.topics.fill(self.source, values, partition=partition, key=b"key-%d" % partition)


def through_spark(df: "DataFrame") -> "DataFrame":
    """Copy all rows through Spark; a choice of columns alone would bypass it."""
    return df.select("key", "value").where("partition >= 0")


@pytest.fixture
def bench(topics: Topics, job: str, spark: "SparkSession", tmp_path: Path) -> Bench:
    return Bench(topics, job, spark, tmp_path)


def test_a_bounded_copy_is_exact_and_finishes(bench: Bench) -> None:
    bench.fill(0, 1000)
    assert bench.pipeline().run() is CloseReason.FINISHED
    assert_exactly_once(bench.topics, bench.source, bench.sink)


def test_a_job_logs_its_start_with_its_place_and_its_end_with_what_it_has_done(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fill(0, 1000)
    with caplog.at_level(logging.INFO, logger="onceward"):
        bench.pipeline().run()
    start, *_, end = (
        one.getMessage() for one in caplog.records if (one.name, one.levelno) == ("onceward", logging.INFO)
    )
    place = bench.directory / "state"
    assert f"Job {bench.job} runs: generation 1, coordinator in this process, store in {place}, store id " in start
    assert re.fullmatch(
        rf"Job {bench.job} ended: finished\. It ran for .+ and read 3\.0 k records; the last completed .+ is \d+",
        end,
    )


def test_one_replica_is_warned_of_once_or_accepted_in_one_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def warned(**options: Any) -> list[str]:
        caplog.clear()
        bench.pipeline(**options).run()
        return [one.getMessage() for one in caplog.records if one.name == "onceward.preflight"]

    bench.fill(0, 10)
    (block,) = warned()
    for topic in (f"source topic {bench.source}", f"sink topic {bench.sink}"):
        assert f"{topic}: has replication factor 1, below 3" in block
    assert "accept_risks=['replication']" in block
    assert warned() == []
    bench.job += "-accepting"
    assert warned(accept_risks=["replication"]) == [f"Job {bench.job}: the risk replication is accepted"]


def test_a_second_run_continues_where_the_first_has_ended(bench: Bench) -> None:
    bench.fill(0, 100)
    bench.pipeline(source={"end": None}, settings=CheckpointSettings(interval="50ms"))
    unbounded = bench.pipeline(source={"end": None})
    stopper = threading.Thread(target=_stop_when, args=(unbounded, lambda: len(bench.topics.read(bench.sink)) == 300))
    stopper.start()
    assert unbounded.run() is CloseReason.STOPPED
    stopper.join()
    bench.fill(100, 50)
    again = bench.pipeline(source={"end": None})
    stopper = threading.Thread(target=_stop_when, args=(again, lambda: len(bench.topics.read(bench.sink)) == 450))
    stopper.start()
    assert again.run() is CloseReason.STOPPED
    stopper.join()
    assert_exactly_once(bench.topics, bench.source, bench.sink)


def _stop_when(pipeline: Pipeline, condition: Callable[[], bool]) -> None:
    try:
        wait_until(condition, "the output is complete", 120)
    finally:
        pipeline.stop()


def test_a_dataframe_transform_is_applied_to_each_record_once(bench: Bench) -> None:
    bench.fill(0, 500)

    def transform(df: "DataFrame") -> "DataFrame":
        text = F.col("value").cast("string")
        return df.where(F.split(text, "-")[1].cast("int") % 2 == 0).select(
            "key", F.concat(F.lit("even "), text).alias("value")
        )

    bench.pipeline(transform, source={"max_offsets_per_checkpoint": 200}).run()
    seen = sorted(value or b"" for value in bench.topics.values(bench.sink))
    assert seen == sorted(b"even %d-%d" % (p, n) for p in range(3) for n in range(0, 500, 2))


def test_records_are_routed_by_a_topic_column_in_the_same_transactions(bench: Bench) -> None:
    bench.fill(0, 100)
    rejected = bench.topics.create("rejected", 1)
    sink, number = bench.sink, F.split(F.col("value").cast("string"), "-")[1].cast("int")
    bench.pipeline(
        lambda df: df.select("key", "value", F.when(number < 10, rejected).otherwise(sink).alias("topic")),
        sink={"topics": [sink, rejected]},
    ).run()
    assert len(bench.topics.read(sink)) == 270
    assert len(bench.topics.read(rejected)) == 30


def test_a_topic_that_was_not_declared_declines_the_checkpoint(bench: Bench) -> None:
    bench.fill(0, 10)
    other = bench.topics.create("other", 1)
    with pytest.raises(OncewardError, match=other):
        bench.pipeline(
            lambda df: df.select("key", "value", F.lit(other).alias("topic")), sink={"topics": [bench.sink]}
        ).run()
    assert bench.topics.read(bench.sink) == []
    assert bench.topics.read(other, committed=False) == []


def test_a_plan_with_a_shuffle_reads_its_own_input_in_each_checkpoint(bench: Bench) -> None:
    bench.fill(0, 300)
    bench.pipeline(
        lambda df: df.repartition(2, "key").select("key", "value"), source={"max_offsets_per_checkpoint": 200}
    ).run()
    given = sorted(bench.topics.values(bench.source), key=str)
    assert sorted(bench.topics.values(bench.sink), key=str) == given


@pytest.mark.parametrize(
    "operation",
    [
        lambda df: df.orderBy("value").limit(1000),
        lambda df: df.limit(1000),
        lambda df: df.distinct(),
        lambda df: df.join(df.select(F.col("value").alias("other")), F.col("value") == F.col("other")),
        lambda df: df.intersect(df),
        lambda df: df.where(F.expr("value in (select value from input_of_this_checkpoint)")),
    ],
    ids=["orderBy and limit", "limit", "distinct", "join with itself", "intersect", "subquery"],
)
def test_operations_per_checkpoint_see_the_rows_of_their_own_checkpoint(
    bench: Bench, operation: "Callable[[DataFrame], DataFrame]"
) -> None:
    bench.fill(0, 60)

    def transform(df: "DataFrame") -> "DataFrame":
        df.createOrReplaceTempView("input_of_this_checkpoint")
        return operation(df.select("key", "value")).select("key", "value")

    bench.pipeline(transform, source={"max_offsets_per_checkpoint": 90}, per_checkpoint_operations=True).run()
    assert_exactly_once(bench.topics, bench.source, bench.sink, ordered=False)


def test_a_job_with_a_shuffle_is_refused_where_spark_may_recompute_files_for_some_tasks_only(bench: Bench) -> None:
    checksums = "spark.sql.shuffle.orderIndependentChecksum.enabled"
    if not bench.spark.conf.isModifiable(checksums):
        pytest.skip("this Spark has no checksums of shuffles: in our session, a stage that has lost its input fails")
    bench.fill(0, 10)
    former = bench.spark.conf.get(checksums)
    bench.spark.conf.set(checksums, "false")
    try:
        with pytest.raises(PreflightError, match="shuffle"):
            bench.pipeline(lambda df: df.select("key", "value").repartition(2)).run()
        bench.pipeline(through_spark).run()
    finally:
        bench.spark.conf.set(checksums, str(former))
    assert_exactly_once(bench.topics, bench.source, bench.sink)


def partitions(bench: Bench, size: int = 1) -> "DataFrame":
    """A table to join with: one row of at least ``size`` bytes for each partition of the input."""
    numbers = bench.spark.range(0, 3, 1, 2).select(F.col("id").cast("int").alias("number"))
    return numbers.withColumn("padding", F.repeat(F.lit("x"), size))


def test_a_broadcast_join_with_another_table_is_planned_once_and_gives_each_checkpoint_its_rows(bench: Bench) -> None:
    bench.fill(0, 200)
    built: list[DataFrame] = []

    def transform(df: "DataFrame") -> "DataFrame":
        built.append(df)
        return df.join(F.broadcast(partitions(bench)), F.expr("partition = number")).select("key", "value")

    bench.pipeline(transform, source={"max_offsets_per_checkpoint": 90, "min_partitions": 3}).run()
    assert_exactly_once(bench.topics, bench.source, bench.sink)
    assert len(built) == 2, "one for the check, one for all checkpoints"


def test_a_shuffled_join_with_another_table_gives_each_checkpoint_its_rows(bench: Bench) -> None:
    bench.fill(0, 60)
    bench.pipeline(
        lambda df: df.join(partitions(bench).hint("merge"), F.expr("partition = number")).select("key", "value"),
        source={"max_offsets_per_checkpoint": 90},
    ).run()
    assert_exactly_once(bench.topics, bench.source, bench.sink, ordered=False)


def test_a_join_that_spark_begins_to_shuffle_while_it_runs_gives_each_checkpoint_its_rows(bench: Bench) -> None:
    """Spark plans a broadcast from its estimate of a table's size, and shuffles once it knows the real size."""
    bench.fill(0, 60)
    threshold = "spark.sql.autoBroadcastJoinThreshold"
    former = bench.spark.conf.get(threshold)
    bench.spark.conf.set(threshold, "2k")
    try:
        bench.pipeline(
            lambda df: df.join(partitions(bench, 100_000).repartition(2), F.expr("partition = number")).select(
                "key", "value"
            ),
            source={"max_offsets_per_checkpoint": 90},
        ).run()
    finally:
        bench.spark.conf.set(threshold, str(former))
    assert_exactly_once(bench.topics, bench.source, bench.sink, ordered=False)


@pytest.mark.parametrize("draw", [lambda df: df.sample(fraction=0.5, seed=3), lambda df: df.where(F.rand(3) < 0.5)])
def test_random_draws_with_a_fixed_seed_are_refused(bench: Bench, draw: "Callable[[DataFrame], DataFrame]") -> None:
    with pytest.raises(ConfigurationError, match="seed"):
        bench.pipeline(lambda df: draw(df.select("key", "value"))).run()


def test_each_checkpoint_draws_its_own_sample(bench: Bench) -> None:
    records = 200
    bench.topics.fill(bench.source, [b"%d" % n for n in range(records)], partition=0)
    bench.pipeline(lambda df: df.select("value").sample(0.5), source={"max_offsets_per_checkpoint": 50}).run()
    drawn = {int(value or b"") for value in bench.topics.values(bench.sink)}
    places = [{n - first for n in drawn if first <= n < first + 50} for first in range(0, records, 50)]
    assert len({frozenset(each) for each in places}) == len(places), "two checkpoints kept the same places"


def test_an_aggregation_is_refused_unless_it_is_wanted_per_checkpoint(bench: Bench) -> None:
    bench.fill(0, 20)

    def transform(df: "DataFrame") -> "DataFrame":
        return df.groupBy("key").count().select("key", F.col("count").cast("string").alias("value"))

    with pytest.raises(ConfigurationError, match="per_checkpoint_operations"):
        bench.pipeline(transform).run()
    assert bench.topics.read(bench.sink, committed=False) == []
    bench.pipeline(transform, per_checkpoint_operations=True).run()
    assert sorted(bench.topics.values(bench.sink), key=str) == [b"20", b"20", b"20"]


@pytest.mark.parametrize("kind", ["cached", "unrelated"])
def test_a_transform_that_would_skip_or_repeat_records_is_refused(bench: Bench, kind: str) -> None:
    bench.fill(0, 10)
    kept: list[DataFrame] = []

    def cached(df: "DataFrame") -> "DataFrame":
        kept.append(df.select("key", "value").cache())
        return kept[0]

    def unrelated(df: "DataFrame") -> "DataFrame":
        return bench.spark.range(3).select(F.col("id").cast("string").alias("value"))

    with pytest.raises(ConfigurationError, match="transform"):
        bench.pipeline(cached if kind == "cached" else unrelated).run()
    for df in kept:
        df.unpersist()
    assert bench.topics.read(bench.sink, committed=False) == []


def test_a_poison_record_fails_the_job_without_partial_output(bench: Bench) -> None:
    bench.fill(0, 50)

    def transform(df: "DataFrame") -> "DataFrame":
        text = F.col("value").cast("string")
        poison = F.when(text == "1-30", F.raise_error(F.lit("poisoned"))).otherwise(text)
        return df.select("key", poison.cast("string").alias("value"))

    with pytest.raises(OncewardError, match="poisoned"):
        bench.pipeline(transform, restart=Restart(initial="10ms", maximum="10ms", attempts=1)).run()
    assert bench.topics.read(bench.sink) == []
    bench.pipeline().run()
    assert_exactly_once(bench.topics, bench.source, bench.sink)


def number(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Extract the number from each value; one value has none."""
    for batch in batches:
        values = [str(int(value.split(b"-")[1])) for value in batch.column("value").to_pylist()]
        yield pa.RecordBatch.from_pydict({"value": values})


def numbered(df: "DataFrame") -> "DataFrame":
    def of(value: bytearray) -> str:
        return str(int(bytes(value).split(b"-")[1]))

    return df.select(F.udf(of, "string")("value").alias("value"))


PATIENT = CheckpointSettings(interval="50ms", timeout="5min")
"""A quarter of the timeout is available to find the failing record."""


@pytest.mark.parametrize("way", ["transform", "transform_batches"])
def test_a_record_that_a_function_cannot_take_is_named_with_its_offset_cause_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    bench.fill(0, 2)
    bench.topics.fill(bench.source, [b"1-many"], partition=1)
    monkeypatch.setattr(diagnosis, "_NARROWING", 600.0)
    function = {"transform": numbered} if way == "transform" else {"transform_batches": number}
    with pytest.raises(OncewardError) as failed:
        bench.pipeline(**function, settings=PATIENT).run()
    said = str(failed.value)
    assert said.startswith("ValueError: invalid literal for int()"), said
    assert "many" in said
    assert f"{bench.source}-1 offsets [2, 3)" in said
    assert bench.topics.read(bench.sink) == []
    cause = said.split(" (")[0]
    for command in ("jobs", "checkpoints", "history"):
        assert cause in bench.listed(command), command


def test_a_record_that_the_topic_refuses_is_named_with_its_offset_the_topic_and_its_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "_NARROWING", 600.0)
    bench.fill(0, 2)
    bench.topics.configure(bench.sink, {"max.message.bytes": "20000"})
    bench.topics.fill(bench.source, [b"x" * 50_000], partition=2)
    with pytest.raises(OncewardError) as failed:
        bench.pipeline(settings=PATIENT).run()
    said = str(failed.value)
    assert said.startswith("A record is larger than its output topic allows"), said
    assert f"topic {bench.sink} takes 20000 bytes (max.message.bytes)" in said
    assert f"{bench.source}-2 offsets [2, 3)" in said
    assert bench.topics.read(bench.sink) == []
    assert not any(open_transactions_hold_back(bench.topics.servers, bench.sink).values())


def _write(producer: Producer, topic: str, record: dict[str, Any]) -> None:
    """Write a record, until the broker takes it: it has the new settings of a topic a moment after they are set."""

    def written() -> bool:
        results: list[object] = []
        producer.produce(topic, **record, on_delivery=lambda error, _: results.append(error))
        return producer.flush(30) == 0 and results == [None]

    wait_until(written, "the topic takes the record", 60)


def test_a_record_that_both_topics_take_is_not_refused_by_the_client(bench: Bench) -> None:
    """One of the size that Java's producers send by default, and the largest that a topic takes by default."""
    bench.topics.configure(bench.source, {"max.message.bytes": "3000000"})
    writer = Producer({"bootstrap.servers": bench.topics.servers, "log_level": 0, "message.max.bytes": 3_000_000})
    large = {size: os.urandom(size) for size in (1_048_400, 2_500_000)}
    _write(writer, bench.source, {"value": large[1_048_400], "partition": 0})
    bench.pipeline().run()
    assert bench.topics.values(bench.sink) == [large[1_048_400]]

    _write(writer, bench.source, {"value": large[2_500_000], "partition": 0})
    with pytest.raises(OncewardError) as failed:
        bench.pipeline().run()
    assert str(failed.value).startswith("A record is larger than the client takes, which is 1048588 bytes before"), (
        failed
    )
    bench.topics.configure(bench.sink, {"max.message.bytes": "3000000"})
    bench.pipeline().run()
    assert sorted(bench.topics.values(bench.sink), key=str) == sorted(large.values(), key=str)


def _without_a_key(bench: Bench) -> tuple[dict[str, Any], str]:
    bench.topics.configure(bench.sink, {"cleanup.policy": "compact"})
    return {"value": b"x"}, f"topic {bench.sink} has cleanup.policy=compact"


def _ahead(bench: Bench) -> tuple[dict[str, Any], str]:
    bench.topics.configure(bench.source, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    ahead = {"key": b"k", "value": b"x", "timestamp": int(time.time() * 1000) + 365 * 86_400_000}
    return ahead, f"topic {bench.sink} has message.timestamp.after.max.ms=3600000"


def _of_another_partition(bench: Bench) -> tuple[dict[str, Any], str]:
    return {"key": b"k", "value": b"x", "partition": 2}, f"topic {bench.sink} has partitions 0 to 1"


@pytest.mark.parametrize("prepare", [_without_a_key, _ahead, _of_another_partition])
def test_a_record_that_the_brokers_reject_is_named_with_the_setting_and_its_offset(
    prepare: Callable[[Bench], tuple[dict[str, Any], str]], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "_NARROWING", 600.0)
    record, said = prepare(bench)
    producer = Producer({"bootstrap.servers": bench.topics.servers, "log_level": 0})
    producer.produce(bench.source, key=b"k", value=b"good", partition=record.setdefault("partition", 1))
    _write(producer, bench.source, record)
    columns = ["key", "value", *({"timestamp", "partition"} & record.keys() if prepare is not _without_a_key else ())]
    with pytest.raises(OncewardError) as failed:
        bench.pipeline(lambda df: df.select(*columns), settings=PATIENT).run()
    text = str(failed.value)
    assert said in text
    number = record["partition"]
    assert f"Input: {bench.source}-{number} offsets [{0 if number == 2 else 1}, {1 if number == 2 else 2})" in text, (
        text
    )
    assert "KafkaError" not in text


def test_a_job_fails_after_its_attempts_although_checkpoints_shrink_around_the_record(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(bench.directory / "events"))
    monkeypatch.setattr(diagnosis, "_NARROWING", 0.0)
    bench.fill(0, 150)
    bench.topics.fill(bench.source, [b"1-many"], partition=1)
    bench.fill(151, 150)
    restart = Restart(initial="10ms", maximum="10ms", attempts=3)
    with pytest.raises(OncewardError, match="Failure 4 in a row without getting past this input"):
        bench.pipeline(transform_batches=number, source={"adaptive": True}, restart=restart).run()
    assert len(reported(bench, "failed")) == 4


def test_a_missing_topic_is_refused_before_anything_is_started(bench: Bench) -> None:
    with pytest.raises(PreflightError, match="no-such-topic"):
        bench.pipeline(sink={"topic": "no-such-topic"}).run()
    assert not (bench.directory / "state").exists()


def test_input_and_output_must_not_be_the_same_topic(bench: Bench) -> None:
    with pytest.raises(PreflightError, match=bench.source):
        bench.pipeline(sink={"topic": bench.source}).run()


def test_a_wiped_store_is_refused_because_the_cluster_remembers_the_job(bench: Bench) -> None:
    bench.fill(0, 10)
    bench.pipeline().run()
    bench.directory = bench.directory / "another"
    with pytest.raises(OncewardError, match="store"):
        bench.pipeline().run()
    assert_exactly_once(bench.topics, bench.source, bench.sink)


def robbed(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    *arguments: Any,
    on_lost: Any,
    meanwhile: Callable[[], object] = lambda: None,
    source: dict[str, Any] | None = None,
    **options: Any,
) -> Pipeline:
    """A pipeline that loses one transaction: it is aborted after the decision and before the commit. Each partition has
    its own slot unless ``source`` says otherwise."""
    monkeypatch.setenv(EVENTS_VARIABLE, str(bench.directory / "events"))
    sink = KafkaSink(bench.topics.servers, topic=bench.sink, on_lost=on_lost)
    connect = sink.connect
    robberies = iter([True])

    def sabotaged(context: JobContext) -> Any:
        session = connect(context)
        real = session.system()
        commit = real.commit

        def lose_one(author: Any, committables: Any, **options: Any) -> Any:
            if committables and next(robberies, False):
                real.abort(author, committables[:1])
                meanwhile()
            return commit(author, committables, **options)

        monkeypatch.setattr(real, "commit", lose_one)
        monkeypatch.setattr(session, "system", lambda: real)
        return session

    monkeypatch.setattr(sink, "connect", sabotaged)
    pipeline = bench.pipeline(*arguments, source=source or {"min_partitions": 3}, **options)
    monkeypatch.setattr(pipeline, "_outputs", outputs_of(sink, None))
    return pipeline


def reported(bench: Bench, event: str) -> list[dict[str, Any]]:
    lines = (bench.directory / "events").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == event]


def test_a_lost_transaction_halts_the_job_and_names_its_records(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.fill(0, 20)
    with pytest.raises(HaltedError) as halted:
        robbed(bench, monkeypatch, on_lost="halt").run()
    message = str(halted.value)
    assert "slot 0" in message
    assert bench.source in message
    assert "20" in message
    assert len(bench.topics.read(bench.sink)) == 40, "the other slots are committed"
    with pytest.raises(HaltedError):  # the halt is durable: the next start halts too
        bench.pipeline().run()
    assert not reported(bench, "settled")


@pytest.mark.parametrize("way", ["copy", "dataframe", "broadcast join"])
def test_a_lost_transaction_is_written_again_by_spark_and_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    bench.fill(0, 20)

    def joined(df: "DataFrame") -> "DataFrame":
        return df.join(F.broadcast(partitions(bench)), F.expr("partition = number")).select("key", "value")

    transform = {"copy": None, "dataframe": through_spark, "broadcast join": joined}[way]
    assert robbed(bench, monkeypatch, transform, on_lost="replay").run() is CloseReason.FINISHED
    assert_exactly_once(bench.topics, bench.source, bench.sink)
    (replayed,) = reported(bench, "replayed")
    assert (replayed["slots"], replayed["written"]) == (1, 20)


@pytest.mark.parametrize("dataframe", [False, True], ids=["copy", "dataframe"])
def test_small_ranges_share_tasks_and_a_lost_slot_of_several_is_written_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, dataframe: bool
) -> None:
    at_a_time = bench.spark.sparkContext.defaultParallelism
    bench.source = bench.topics.create("many", 2 * at_a_time)
    for partition in range(2 * at_a_time):
        values: list[bytes | None] = [b"%d-%d" % (partition, n) for n in range(20)]
        bench.topics.fill(bench.source, values, partition=partition, key=b"key-%d" % partition)
    transform = through_spark if dataframe else None
    pipeline = robbed(bench, monkeypatch, transform, on_lost="replay", source={"adaptive": False})
    assert pipeline.run() is CloseReason.FINISHED
    assert_exactly_once(bench.topics, bench.source, bench.sink)
    assert reported(bench, "pre-committed")[0]["transactions"] == at_a_time
    (replayed,) = reported(bench, "replayed")
    assert (replayed["slots"], replayed["written"]) == (1, 40)


def test_many_records_of_a_checkpoint_are_read_by_a_task_for_each_partition(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(bench.directory / "events"))
    monkeypatch.setattr(spark_job, "_RECORDS_PER_TASK", 10)
    bench.fill(0, 1000)
    bench.pipeline().run()
    assert reported(bench, "pre-committed")[0]["transactions"] == 3


def test_a_cluster_that_grows_with_waiting_tasks_gets_a_task_for_each_partition_much_sooner(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(bench.directory / "events"))
    monkeypatch.setattr(spark_job, "_RECORDS_PER_TASK_ELASTIC", 10)
    elastic = bench.spark.sparkContext.getConf().set("spark.dynamicAllocation.enabled", "true")
    monkeypatch.setattr(bench.spark.sparkContext, "getConf", lambda: elastic)
    bench.fill(0, 1000)
    bench.pipeline().run()
    assert reported(bench, "pre-committed")[0]["transactions"] == 3


def test_a_lost_slot_of_a_shuffle_halts_the_job_because_no_range_alone_made_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fill(0, 20)
    with pytest.raises(HaltedError, match="the plan moved rows between partitions"):
        robbed(bench, monkeypatch, lambda df: df.select("key", "value").repartition(4), on_lost="replay").run()
    assert len(bench.topics.read(bench.sink)) < 60
    assert not reported(bench, "replayed")


def test_input_that_retention_has_taken_is_not_replayed_in_part(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.fill(0, 20)

    def retention() -> None:
        gone = [TopicPartition(bench.source, 0, 1)]
        wait_for(next(iter(bench.topics.admin.delete_records(gone).values())))

    with pytest.raises(HaltedError, match=r"-0 does not hold the offsets \[0, 20\) any more"):
        robbed(bench, monkeypatch, on_lost="replay", meanwhile=retention).run()
    assert len(bench.topics.read(bench.sink)) == 40
    assert not reported(bench, "replayed")


def test_each_checkpoint_draws_its_own_random_values(bench: Bench) -> None:
    """Spark fixes seeds when it plans: a reused plan would give other records the same ids."""
    bench.fill(0, 100)
    bench.pipeline(
        lambda df: df.select("key", F.expr("uuid()").alias("value")), source={"max_offsets_per_checkpoint": 60}
    ).run()
    drawn = bench.topics.values(bench.sink)
    assert len(drawn) == 300
    assert len(set(drawn)) == 300


def test_a_pipeline_can_run_again_after_it_was_stopped(bench: Bench) -> None:
    bench.fill(0, 10)
    pipeline = bench.pipeline()
    pipeline.stop()
    assert pipeline.run() is CloseReason.STOPPED
    assert pipeline.run() is CloseReason.FINISHED
    assert_exactly_once(bench.topics, bench.source, bench.sink)


def test_the_callers_spark_configuration_is_left_as_it_was(bench: Bench) -> None:
    bench.fill(0, 10)
    context = bench.spark.sparkContext
    before = (sorted(context.getConf().getAll()), dict(bench.spark.conf.getAll))
    bench.pipeline(through_spark).run()
    assert (sorted(context.getConf().getAll()), dict(bench.spark.conf.getAll)) == before
    assert bench.spark.range(3).count() == 3, "the session still works"
