"""Structured Streaming queries that write through a StreamSink: exact, or halted before anything is written."""

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import GroupedData, functions
from typer.testing import CliRunner

from onceward import CheckpointSettings, KafkaSink, Output, Restart, StreamingPipeline, StreamSink
from onceward.common.errors import ConfigurationError, HaltedError, PreflightError
from onceward.common.killpoints import KillPoint
from onceward.driver.journal import EVENTS_VARIABLE
from onceward.driver.streaming.expressions import ArrowFunction, RecordHashes
from onceward.driver.streaming.queries import Query
from onceward.executor.functions import DIGEST_COLUMN
from onceward.operate.cli import app
from onceward.protocol.events import CloseReason
from onceward.protocol.values import Author, Committable, Settlement
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from tests.support import stream_queries
from tests.support.processes import JobProcesses, free_address
from tests.support.scraped import scrape
from tests.support.sessions import SessionSink
from tests.support.stream_queries import expected, feed, records
from tests.support.topics import Topics, abort_with_the_brokers_tool
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WHOLE = records(4)
_DRAWN = "reflect('java.util.UUID', 'randomUUID') AS value"
LIMIT_S = 300.0
"""Limit for one life of a driver, which starts Spark; only a stalled machine needs it."""


class Counting:
    """The running count of one test, in this process."""

    def __init__(self, spark: "SparkSession", topics: Topics, job: str, directory: Path, topic: str = "totals") -> None:
        self.spark = stream_queries.session(spark)
        self.topics, self.job, self.directory = topics, job, directory
        self.topic = topics.create(topic, 2)
        self.checkpoint = directory / "checkpoint"
        self.query = stream_queries.QUERIES["running-count"]
        self._fed = 0

    def feed(self, files: list[stream_queries.File]) -> None:
        feed(self.directory / "input", files, first=self._fed)
        self._fed += len(files)

    def open(self, sink: KafkaSink | None = None, coordinator: str | None = None, **options: Any) -> StreamSink:
        return StreamSink(
            self.spark,
            job=self.job,
            sink=None if "outputs" in options else sink or KafkaSink(self.topics.servers, topic=self.topic),
            coordinator=coordinator,
            state_dir=self.directory / "state",
            **options,
        )

    def start(self, write: "Callable[[DataFrame, int], None]") -> "StreamingQuery":
        return self.writer().foreachBatch(write).start()

    def writer(self) -> "DataStreamWriter":
        df = self.query.build(self.spark, self.directory / "input")
        written = df.writeStream.outputMode(self.query.output_mode)
        return written.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)

    def run(self, sink: KafkaSink | None = None, **options: Any) -> CloseReason:
        """One life of the query: it processes all files."""
        with self.open(sink, **options) as opened:
            return opened.await_termination(self.start(opened))

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = map(json.loads, (self.directory / "events").read_text().splitlines())
        return [line for line in lines if line["event"] == name]

    def written(self) -> Counter[tuple[bytes | None, bytes | None]]:
        return Counter((key, value) for _, _, key, value in self.topics.read(self.topic))


@pytest.fixture
def counting(
    spark: "SparkSession", topics: Topics, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Counting:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    return Counting(spark, topics, job, tmp_path)


def test_a_running_count_is_exact_over_several_lives_of_its_query(counting: Counting) -> None:
    files = records(5)
    for part in (files[:3], files[3:]):
        counting.feed(part)
        assert counting.run() is CloseReason.FINISHED
    assert counting.written() == expected(files)
    command = ["checkpoints", counting.job, "--state-dir", str(counting.directory / "state")]
    listed = CliRunner(env={"COLUMNS": "400"}).invoke(app, command).output
    assert [f"batch {number} of query" in listed for number in (0, 4, 5)] == [True, True, False]


def test_a_query_serves_metrics_while_it_is_open(counting: Counting) -> None:
    counting.feed(records(2))
    with counting.open(metrics="127.0.0.1:0") as opened:
        assert opened.await_termination(counting.start(opened)) is CloseReason.FINISHED
        url = opened.metrics_url
        assert url is not None
        found = scrape(url)
    written = sum(counting.written().values())
    assert found.value("onceward_driver_records_written_total", job_name=counting.job) == written
    assert found.value("onceward_records_written_total", job_name=counting.job) == written
    assert found.value("onceward_driver_checkpoints_settled_total", job_name=counting.job) >= opened.batches == 2
    with pytest.raises(OSError, match="refused"):
        scrape(url)
    assert opened.metrics_url is None


def test_the_state_of_a_query_is_listed_and_shown(counting: Counting) -> None:
    files = records(3)
    counting.feed(files)
    counting.run()

    def state(*words: str) -> Any:
        command = ["state", counting.job, "--state-dir", str(counting.directory / "state"), "--json", *words]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    (operator,) = state()["operators"]
    assert (operator["name"], operator["first_batch"], operator["last_batch"]) == ("stateStoreSave", 0, 2)
    shown = state("--operator", str(operator["operator"]))
    counts = Counter(k for file in files for k, _ in file)
    assert {row["key"]["k"]: row["value"]["count"] for row in shown} == counts
    assert len(state("--operator", "0", "--limit", "2")) == 2


def test_two_queries_of_one_application_share_a_state_directory_and_need_jobs_of_their_own(counting: Counting) -> None:
    files = records(2)
    counting.feed(files)
    other = Counting(counting.spark, counting.topics, f"{counting.job}-b", counting.directory, "others")
    other.checkpoint = counting.directory / "other"
    with counting.open() as one, other.open() as two:
        with pytest.raises(ConfigurationError, match="its own job"):
            counting.open()
        queries = counting.start(one), other.start(two)
        assert [one.await_termination(queries[0]), two.await_termination(queries[1])] == [CloseReason.FINISHED] * 2
    assert counting.written() == other.written() == expected(files)


def test_a_deleted_or_older_checkpoint_directory_halts_the_job_before_anything_is_written(counting: Counting) -> None:
    files = records(6)
    counting.feed(files[:2])
    counting.run()
    older = counting.directory / "older"
    shutil.copytree(counting.checkpoint, older)
    counting.feed(files[2:4])
    counting.run()
    newest = counting.directory / "newest"
    counting.checkpoint.rename(newest)
    with pytest.raises(HaltedError, match="deleted, or is another one"):
        counting.run()
    shutil.rmtree(counting.checkpoint)
    older.rename(counting.checkpoint)
    counting.feed(files[4:])
    with pytest.raises(HaltedError, match="older copy"):
        counting.run()
    assert counting.written() == expected(files[:4])
    shutil.rmtree(counting.checkpoint)
    newest.rename(counting.checkpoint)
    assert counting.run() is CloseReason.FINISHED
    assert counting.written() == expected(files)


@pytest.mark.timeout(300)
def test_a_query_that_spark_refuses_ends_its_program_instead_of_starting_again(counting: Counting) -> None:
    counting.feed(records(1))
    pipeline = StreamingPipeline(
        job=counting.job,
        query=lambda spark: counting.query.build(spark, counting.directory / "input").select("nothing"),
        sink=KafkaSink(counting.topics.servers, topic=counting.topic),
        checkpoint_location=counting.checkpoint,
        output_mode=counting.query.output_mode,
        trigger={"availableNow": True},
        spark=counting.spark,
        state_dir=counting.directory / "state",
    )
    with pytest.raises(AnalysisException, match="nothing"):
        pipeline.run()


def misspelt(counting: Counting) -> dict[str, Output]:
    sink = KafkaSink(counting.topics.servers, topic=counting.topic)
    return {"all": Output(sink), "some": Output(sink, where="valeu is not null")}


_MISSPELT = r"Output some: where='valeu is not null': .*Did you mean .*`value`"


def test_a_column_that_an_output_misspells_ends_a_query_before_it_has_a_batch(counting: Counting) -> None:
    counting.feed([])
    pipeline = StreamingPipeline(
        job=counting.job,
        query=lambda spark: counting.query.build(spark, counting.directory / "input"),
        outputs=misspelt(counting),
        checkpoint_location=counting.checkpoint,
        output_mode=counting.query.output_mode,
        spark=counting.spark,
        state_dir=counting.directory / "state",
    )
    with pytest.raises(ConfigurationError, match=_MISSPELT):
        pipeline.run()
    assert not counting.checkpoint.exists()


def test_a_column_that_an_output_misspells_ends_the_job_of_a_query_with_its_first_batch(counting: Counting) -> None:
    counting.feed(records(1))
    with counting.open(outputs=misspelt(counting)) as opened, pytest.raises(ConfigurationError, match=_MISSPELT):
        opened.await_termination(counting.start(opened))
    assert len(counting.events("failed")) == 1, "no generation followed"
    assert not counting.written()


def test_a_query_continues_after_a_savepoint_with_the_checkpoint_location_of_that_time(counting: Counting) -> None:
    files = records(5)
    place = ["--state-dir", str(counting.directory / "state")]
    counting.feed(files[:2])
    with counting.open() as opened:
        query = counting.writer().trigger(processingTime="100 milliseconds").foreachBatch(opened).start()
        wait_until(lambda: counting.written() == expected(files[:2]), "both batches are visible", LIMIT_S)
        saved = CliRunner().invoke(app, ["savepoint", counting.job, "--name", "before", *place])
        assert saved.exit_code == 0, saved.output
        query.stop()
        opened.await_termination(query)
    older = shutil.copytree(counting.checkpoint, counting.directory / "older")
    counting.feed(files[2:4])
    counting.run()

    skipped = ["--skip-input", "totals:0", "--to", "5", "--reason", "a test"]
    refused = CliRunner().invoke(app, ["resolve", counting.job, *skipped, *place, "--yes"])
    assert "start the query with its source's own option" in str(refused.exception)

    words = ["--from", saved.stdout.split()[-1], "--reason", "a test", "--yes"]
    restored = CliRunner().invoke(app, ["restore", counting.job, *words, *place])
    assert restored.exit_code == 0, restored.output
    with pytest.raises(HaltedError, match="Put back a checkpointLocation that ends with batch 1"):
        counting.run()  # no batch comes: there is nothing new to read
    counting.feed(files[4:])
    with pytest.raises(HaltedError, match="Put back a checkpointLocation that ends with batch 1"):
        counting.run()
    shutil.rmtree(counting.checkpoint)
    older.rename(counting.checkpoint)
    assert counting.run() is CloseReason.FINISHED
    repeated = expected(files[:4]) - expected(files[:2])
    assert counting.written() == expected(files) + repeated


class Losing(KafkaSystem):
    """Before one commit, aborts the first transaction of it, as a person with rights on the cluster can."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.left = 1

    def commit(self, author: Author, committables: Sequence[Committable], **options: Any) -> Sequence[Settlement]:
        if self.left and len(committables) == 2:
            self.left -= 1
            self.abort(author, committables[:1])
        return super().commit(author, committables, **options)


class LosingSink(SessionSink):
    class session(KafkaSinkSession):  # noqa: N801
        def system(self) -> Losing:
            made = super().system()
            return Losing(made._control, clock=made._clock, generation=made._generation)


def test_a_lost_transaction_is_written_again_in_the_same_batch(counting: Counting) -> None:
    files = records(3)
    counting.feed(files)
    assert counting.run(LosingSink(counting.topics.servers, topic=counting.topic)) is CloseReason.FINISHED
    assert counting.written() == expected(files)
    assert [(event["slots"], event["transactions"]) for event in counting.events("replayed")] == [(1, 1)]


def test_a_query_writes_to_several_outputs_and_a_lost_transaction_is_written_again_into_its_own(
    counting: Counting,
) -> None:
    files = records(5)
    even, none = (counting.topics.create(name, 2) for name in ("even", "none"))
    servers = counting.topics.servers

    def outputs(sink: KafkaSink) -> dict[str, Output]:
        count = "cast(substring_index(cast(value as string), '|', 1) as int)"
        return {
            "all": Output(sink),
            "even": Output(KafkaSink(servers, topic=even), where=f"{count} % 2 = 0", select=["value"]),
            "none": Output(KafkaSink(servers, topic=none), where="false"),
        }

    for part, sink in ((files[:3], LosingSink), (files[3:], KafkaSink)):
        counting.feed(part)
        with counting.open(outputs=outputs(sink(servers, topic=counting.topic))) as opened:
            assert opened.await_termination(counting.start(opened)) is CloseReason.FINISHED
    whole = expected(files)
    assert counting.written() == whole
    wanted = Counter(value for _, value in whole.elements() if int(value.split(b"|")[0]) % 2 == 0)
    assert Counter(value for _, _, _, value in counting.topics.read(even)) == wanted
    assert counting.topics.read(none) == []
    assert [(event["slots"], event["transactions"]) for event in counting.events("replayed")] == [(1, 1)]


def test_a_query_whose_batches_go_nowhere_continues(counting: Counting) -> None:
    counting.feed(records(3))
    nowhere = Output(KafkaSink(counting.topics.servers, topic=counting.topic), where="value is null")
    with counting.open(outputs={"a": nowhere, "b": nowhere}) as opened:
        assert opened.await_termination(counting.start(opened)) is CloseReason.FINISHED
        assert opened.batches == 3
    assert not counting.written()


class LosingLater(Losing):
    """Loses the first two transactions of the third batch."""

    def commit(self, author: Author, committables: Sequence[Committable], **options: Any) -> Sequence[Settlement]:
        if committables and self.left:
            self.left -= 1
            if not self.left:
                self.abort(author, committables[:2])
        return KafkaSystem.commit(self, author, committables, **options)


class LosingLaterSink(SessionSink):
    class session(KafkaSinkSession):  # noqa: N801
        def system(self) -> LosingLater:
            made = super().system()
            losing = LosingLater(made._control, clock=made._clock, generation=made._generation)
            losing.left = 3
            return losing


def test_many_partitions_share_a_few_transactions_which_are_written_again_when_they_are_lost(
    counting: Counting,
) -> None:
    counting.spark.conf.set("spark.sql.shuffle.partitions", "24")
    most = 2 * counting.spark.sparkContext.defaultParallelism
    files = records(5)
    counting.feed(files[:4])
    assert counting.run(LosingLaterSink(counting.topics.servers, topic=counting.topic)) is CloseReason.FINISHED
    assert counting.written() == expected(files[:4])
    first, *others = [event["transactions"] for event in counting.events("pre-committed") if event["written"]]
    assert most < first <= 24
    assert all(2 <= each <= most for each in others)
    assert [(event["slots"], event["transactions"]) for event in counting.events("replayed")] == [(2, 2)]
    counting.feed(files[4:])
    assert counting.run() is CloseReason.FINISHED
    assert counting.written() == expected(files)


def _gathered(spark: "SparkSession", directory: Path) -> "DataFrame":
    """Records as they come, with their partition after a shuffle."""
    rows = stream_queries.read(spark, directory).repartition("k")
    return rows.selectExpr("k AS key", "concat_ws(' ', v, spark_partition_id()) AS value")


def test_a_lost_transaction_of_an_adapted_shuffle_is_written_again(counting: Counting) -> None:
    """Adaptive execution joins small partitions, so each batch has as many slots as its data asks for."""
    adaptive = "spark.sql.adaptive.streaming.stateless.enabled"
    if not counting.spark.conf.isModifiable(adaptive):
        pytest.skip("this Spark does not adapt queries")
    settings = {
        "spark.sql.shuffle.partitions": "24",
        adaptive: "true",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "100b",
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "100b",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    }
    counting.spark = stream_queries.session(counting.spark, settings)
    counting.query = stream_queries.Query(output_mode="append", build=_gathered, oracle=lambda _: {})
    files = records(4)
    counting.feed(files)
    assert counting.run(LosingLaterSink(counting.topics.servers, topic=counting.topic)) is CloseReason.FINISHED
    found = [(key, *value.split()) for key, value in counting.written().elements() if key and value]
    sent = Counter((k.encode(), b"%d" % v) for file in files for k, v in file)
    assert Counter((key, value) for key, value, _ in found) == sent
    partitions = {int(partition) for *_, partition in found}
    assert 1 < len(partitions) == max(partitions) + 1, "without adaptive execution they are spread over 24"
    assert [event["transactions"] for event in counting.events("replayed")] == [2]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "processor" else pytest.mark.crash) for name in stream_queries.QUERIES],
)
def test_every_kind_of_state_stays_exact_when_partitions_share_transactions(counting: Counting, name: str) -> None:
    if name == "processor" and not hasattr(GroupedData, "transformWithState"):
        pytest.skip("this Spark has no transformWithState with rows")
    counting.query = stream_queries.QUERIES[name]
    settings = {**counting.query.settings, "spark.sql.shuffle.partitions": "12"}
    counting.spark = stream_queries.session(counting.spark, settings)
    files = records(6)
    for part in (files[:4], files[4:]):
        counting.feed(part)
        assert counting.run() is CloseReason.FINISHED
    wanted = counting.query.oracle(files)
    assert counting.written() == Counter((key, value) for key, values in wanted.items() for value in values)


def test_a_lost_transaction_that_would_come_out_otherwise_halts_the_job_and_is_not_written(counting: Counting) -> None:
    """The other transaction of the batch is visible already: the two would not belong together."""
    counting.feed(records(1))
    with (
        counting.open(LosingSink(counting.topics.servers, topic=counting.topic)) as sink,
        pytest.raises(HaltedError, match=r"(?s)has other records when it runs again.*Lost: slot .* from batch 0"),
    ):
        sink.await_termination(counting.start(lambda df, batch: sink(df.selectExpr("key", _DRAWN), batch)))
    written = counting.written()
    assert 0 < written.total() < expected(records(1)).total()


def test_a_batch_that_is_settled_and_not_in_sparks_commit_log_is_not_written_again(counting: Counting) -> None:
    """The state of its version is: the next batches count on it."""
    files = records(4)
    counting.feed(files)
    with counting.open() as sink:

        def fails_once_settled(df: "DataFrame", batch: int) -> None:
            sink(df, batch)
            if batch == 1 and sink.batches == 2:
                raise ValueError("after batch 1")

        query = counting.start(fails_once_settled)
        with pytest.raises(StreamingQueryException, match="after batch 1"):
            sink.await_termination(query)
        assert sink.await_termination(counting.start(sink)) is CloseReason.FINISHED
    assert counting.written() == expected(files)


def draws(counting: Counting, *, fails: bool = False, **options: Any) -> CloseReason:
    """Run a query that draws at random; with ``fails``, its function raises after each batch."""
    with counting.open(**options) as sink:

        def write(df: "DataFrame", batch: int) -> None:
            sink(df.selectExpr("key", _DRAWN), batch)
            if fails:
                raise ValueError(f"after batch {batch}")

        return sink.await_termination(counting.start(write))


def test_a_settled_batch_that_comes_out_otherwise_when_it_runs_again_halts_the_job_unless_that_is_accepted(
    counting: Counting,
) -> None:
    files = records(2)
    counting.feed(files)

    with pytest.raises(StreamingQueryException, match="after batch 0"):
        draws(counting, fails=True)
    written = counting.written()
    for _ in range(2):
        with pytest.raises(HaltedError, match=r"Batch 0 .* has other records now .*allow_different_state"):
            draws(counting)
        assert counting.written() == written
    with pytest.raises(HaltedError, match="allow_different_state=0, which accepts this batch"):
        draws(counting, allow_different_state=1)
    assert draws(counting, allow_different_state=0) is CloseReason.FINISHED
    assert counting.written() > written
    assert counting.written().total() == expected(files).total()


def _stateless(spark: "SparkSession", directory: Path) -> "DataFrame":
    return stream_queries.read(spark, directory).selectExpr("k AS key", "string(v) AS value")


STATELESS = stream_queries.Query(output_mode="append", build=_stateless, oracle=lambda _: {})


def copied(files: Sequence[stream_queries.File]) -> Counter[tuple[bytes, bytes]]:
    """What ``STATELESS`` writes."""
    return Counter((k.encode(), b"%d" % v) for file in files for k, v in file)


def test_a_settled_batch_of_a_query_without_state_does_not_run_again_and_may_draw_at_random(counting: Counting) -> None:
    counting.query, files = STATELESS, records(2)
    counting.feed(files)

    with pytest.raises(StreamingQueryException, match="after batch 0"):
        draws(counting, fails=True)
    assert draws(counting) is CloseReason.FINISHED
    assert counting.written().total() == copied(files).total()


def test_a_second_call_in_a_batch_fails_the_query_and_what_it_got_is_never_taken_for_written(
    counting: Counting,
) -> None:
    counting.query, files = STATELESS, records(2)
    counting.feed(files)
    lower, upper = "value % 2 = 0", "value % 2 = 1"

    def in_parts(sink: StreamSink) -> "Callable[[DataFrame, int], None]":
        def write(df: "DataFrame", batch: int) -> None:
            sink(df.where(lower), batch)
            sink(df.where(upper), batch)

        return write

    with counting.open(allow_different_state=True) as sink, pytest.raises(ConfigurationError, match="a second time"):
        sink.await_termination(counting.start(in_parts(sink)))
    part = counting.written()
    assert 0 < part.total() < copied(files[:1]).total()
    with pytest.raises(HaltedError, match=r"twice in it: .* the rest is not"):
        counting.run()
    assert counting.written() == part
    assert counting.run(continue_at=0) is CloseReason.FINISHED
    assert counting.written() == part + copied(files[1:])
    assert counting.run() is CloseReason.FINISHED


def test_a_batch_without_a_call_halts_and_a_skipped_one_does_not(counting: Counting) -> None:
    counting.query, files = STATELESS, records(4)
    counting.feed(files[:3])

    def without(skipped: int, skip: "Callable[[int], None]", sink: StreamSink) -> "Callable[[DataFrame, int], None]":
        return lambda df, batch: skip(batch) if batch == skipped else sink(df, batch)

    with counting.open() as sink, pytest.raises(HaltedError, match=r"did not call the sink .* for batch 1.*sink\.skip"):
        sink.await_termination(counting.start(without(1, lambda batch: None, sink)))
    assert counting.written() == copied(files[:1])
    with counting.open(continue_at=2) as sink:
        query = counting.start(without(2, sink.skip, sink))
        assert sink.await_termination(query) is CloseReason.FINISHED
    counting.feed(files[3:])
    assert counting.run() is CloseReason.FINISHED
    assert counting.written() == copied([files[0], files[3]])


def test_a_batch_of_a_query_with_state_cannot_be_skipped(counting: Counting) -> None:
    counting.feed(records(1))
    with counting.open() as sink, pytest.raises(ConfigurationError, match="the query has state"):
        sink.await_termination(counting.start(lambda df, batch: sink.skip(batch)))


def test_another_job_does_not_continue_a_checkpoint_location_by_itself(counting: Counting) -> None:
    """The first one may have written the batch that Spark has open."""
    counting.query, files = STATELESS, records(2)
    counting.feed(files)
    with counting.open() as sink:

        def fails_once_settled(df: "DataFrame", batch: int) -> None:
            sink(df, batch)
            raise ValueError("after the batch")

        with pytest.raises(StreamingQueryException, match="after the batch"):
            sink.await_termination(counting.start(fails_once_settled))
    counting.job, first = f"{counting.job}-b", counting.job
    with pytest.raises(ConfigurationError, match=f"was used by {first}@"):
        counting.run()
    assert counting.written() == copied(files[:1])
    counting.job = first
    assert counting.run() is CloseReason.FINISHED
    assert counting.written() == copied(files)
    counting.feed(records(3)[2:])
    counting.job = f"{first}-b"
    assert counting.run(continue_at=2) is CloseReason.FINISHED
    assert counting.written() == copied(records(3))
    counting.job = first
    with pytest.raises(HaltedError, match="Spark runs batch 3"):
        counting.run()


def test_a_query_without_a_checkpoint_location_is_refused_before_anything_is_written(counting: Counting) -> None:
    counting.feed(records(1))
    df = counting.query.build(counting.spark, counting.directory / "input").writeStream.outputMode("update")
    with counting.open() as sink, pytest.raises(ConfigurationError, match="names no checkpointLocation"):
        sink.await_termination(df.trigger(availableNow=True).foreachBatch(sink).start())
    assert not counting.written()


def test_a_batch_that_always_takes_too_long_halts_the_job_and_the_limit_is_named(counting: Counting) -> None:
    """Spark has fixed what it reads, so that no run is shorter."""
    counting.query = STATELESS
    counting.feed([[("k", 1)]])
    slow = "reflect('java.lang.Thread', 'sleep', 60000L) AS value"
    restart = Restart(initial="100ms", maximum="100ms")
    with (
        counting.open(settings=CheckpointSettings(timeout="2s"), restart=restart) as sink,
        pytest.raises(HaltedError, match=r"Batch 0 .* takes longer than timeout=2s .* for the 3\. time"),
    ):
        sink.await_termination(counting.start(lambda df, batch: sink(df.selectExpr("key", slow), batch)))
    assert not counting.written()
    assert counting.run() is CloseReason.FINISHED
    assert counting.written() == copied([[("k", 1)]])


def test_a_query_that_fails_ends_the_others_of_its_program(counting: Counting) -> None:
    counting.query, files = STATELESS, records(1)
    counting.feed(files)
    other = Counting(counting.spark, counting.topics, f"{counting.job}-b", counting.directory, "others")
    other.checkpoint, other.query = counting.directory / "other", STATELESS

    def fails(df: "DataFrame", batch: int) -> None:
        wait_until(lambda: counting.written() == copied(files), "the other query has written its batch", LIMIT_S)
        raise ValueError("in the program")

    with counting.open() as one, other.open() as two:
        endless = counting.writer().trigger(processingTime="100 milliseconds").foreachBatch(one).start()
        running = [(one, endless), (two, other.start(fails))]
        with pytest.raises(StreamingQueryException, match="in the program"):
            StreamSink.await_all(running)
        assert not endless.isActive
        assert endless.exception() is None


@pytest.mark.parametrize("place", ["before any batch", "before the sink", "after the sink", "in the query"])
def test_a_query_that_fails_leaves_its_job_with_the_cause_while_its_program_runs(
    counting: Counting, place: str
) -> None:
    """The program may wait for another query, or for nothing. The next query on the same sink has the job again."""
    counting.query, files = STATELESS, records(2)
    broken = threading.Event()
    broken.set()

    def write(df: "DataFrame", batch: int) -> None:
        if not ((batch == 1 or place == "before any batch") and broken.is_set()):
            sink(df, batch)
        elif place.startswith("before"):
            raise ValueError("in the program")
        elif place == "after the sink":
            sink(df, batch)
            raise ValueError("in the program")
        else:
            sink(df.selectExpr("key", "CAST(raise_error('in the program') AS STRING) AS value"), batch)

    def shown() -> dict[str, Any]:
        listed = CliRunner().invoke(app, ["jobs", "--json", "--state-dir", str(counting.directory / "state")])
        (job,) = json.loads(listed.output)
        return dict(job)

    counting.feed(files)
    with counting.open() as sink:
        query = counting.start(write)
        wait_until(lambda: not query.isActive, "the query has failed", LIMIT_S)
        if place == "before any batch":  # only who waits for the query says which one it is
            with pytest.raises(StreamingQueryException, match="in the program"):
                sink.await_termination(query)
        wait_until(lambda: shown()["status"] == "suspended", "the job shows it", LIMIT_S)
        job = shown()
        assert "in the program" in job["status_detail"], job
        assert (job["failures"] > 0, job["settled"]) == (True, True)
        broken.clear()
        assert sink.await_termination(counting.start(write)) is CloseReason.FINISHED
        assert counting.written() == copied(files)
        wait_until(lambda: shown()["status"] == "running", "the job has its query again", LIMIT_S)
    assert "in the program" not in shown()["status_detail"]


class Looked:
    """A query that counts how often its end was waited for."""

    def __init__(self, query: "StreamingQuery") -> None:
        self._query = query
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's name
        self.looks += 1
        return bool(self._query.awaitTermination(timeout))  # type: ignore[arg-type]


def test_a_graceful_stop_waits_until_the_batch_is_in_sparks_commit_log(counting: Counting) -> None:
    """So that no start runs it again. The program's own code comes after the sink."""
    counting.query, files = STATELESS, records(3)
    counting.feed(files)
    queries: list[Looked] = []
    with counting.open() as sink:

        def slow_after_the_sink(df: "DataFrame", batch: int) -> None:
            sink(df, batch)
            if batch == 1:
                wait_until(lambda: queries, "the query has started")
                sink.stop()
                before = queries[0].looks
                wait_until(lambda: queries[0].looks > before + 3 or not queries[0].isActive, "the stop was seen")

        queries.append(Looked(counting.start(slow_after_the_sink)))
        assert sink.await_termination(queries[0]) is CloseReason.STOPPED  # type: ignore[arg-type]
        assert (counting.checkpoint / "commits" / "1").exists()
        assert not (counting.checkpoint / "commits" / "2").exists()
        assert counting.written() == copied(files[:2])
        assert queries[0].exception() is None, "to Spark, a stop is no failure"
        assert sink.await_termination(counting.start(sink)) is CloseReason.FINISHED, "the stop was for the first query"
    assert counting.written() == copied(files)


def test_a_job_that_a_person_stops_ends_its_query_although_its_program_waits_in_spark(counting: Counting) -> None:
    counting.query, files = STATELESS, records(1)
    counting.feed(files)
    with counting.open() as sink:
        query = counting.writer().trigger(processingTime="100 milliseconds").foreachBatch(sink).start()
        wait_until(lambda: counting.written() == copied(files), "the batch is visible", LIMIT_S)
        command = ["stop", counting.job, "--state-dir", str(counting.directory / "state")]
        stopped = CliRunner().invoke(app, command)
        assert stopped.exit_code == 0, stopped.output
        assert query.awaitTermination(int(LIMIT_S))  # raises if the query failed


def test_a_query_that_is_stopped_in_the_middle_of_a_batch_continues_with_that_batch(counting: Counting) -> None:
    files = records(4)
    counting.feed(files)
    started: list[StreamingQuery] = []
    with counting.open() as sink:

        def stopped_in_batch_1(df: "DataFrame", batch: int) -> None:
            if batch == 1:
                wait_until(lambda: started, "the query has started")
                threading.Thread(target=started[0].stop).start()
                wait_until(lambda: not started[0].isActive, "the query is being stopped")
            sink(df, batch)

        started.append(counting.start(stopped_in_batch_1))
        started[0].awaitTermination()
        assert sink.await_termination(counting.start(sink)) is CloseReason.FINISHED
    assert counting.written() == expected(files)


def test_a_query_that_would_repeat_its_result_is_refused_before_anything_is_written(counting: Counting) -> None:
    counting.feed(records(1))
    complete = str(counting.directory / "complete")
    writer = counting.writer().outputMode("complete").option("checkpointLocation", complete)
    with counting.open() as sink, pytest.raises(ConfigurationError, match="allow_complete_mode"):
        sink.await_termination(writer.foreachBatch(sink).start())
    assert not counting.written()


def test_a_query_that_may_lose_rows_is_refused_before_anything_is_written(counting: Counting) -> None:
    checksums = "spark.sql.shuffle.orderIndependentChecksum.enabled"
    if not counting.spark.conf.isModifiable(checksums):
        pytest.skip("this Spark has no checksums of shuffles: in our session, a stage that has lost its input fails")
    counting.feed(records(1))
    counting.spark.conf.set(checksums, "false")
    with counting.open() as sink, pytest.raises(PreflightError, match="moves rows between tasks"):
        sink.await_termination(counting.start(sink))
    assert not counting.written()


def test_each_batch_is_looked_at_for_rows_that_move_in_a_session_that_may_lose_them(counting: Counting) -> None:
    """The program may move rows in some batches only, and Spark may join a table in another way once it has grown."""
    checksums = "spark.sql.shuffle.orderIndependentChecksum.enabled"
    if not counting.spark.conf.isModifiable(checksums):
        pytest.skip("this Spark has no checksums of shuffles: in our session, a stage that has lost its input fails")
    counting.query, files = STATELESS, records(2)
    counting.feed(files)
    counting.spark.conf.set(checksums, "false")

    def moves_later(df: "DataFrame", batch: int) -> None:
        sink(df.repartition(2) if batch else df, batch)

    with counting.open() as sink, pytest.raises(PreflightError, match="moves rows between tasks"):
        sink.await_termination(counting.start(moves_later))
    assert counting.written() == copied(files[:1])


def test_a_sink_that_is_closed_ends_the_batch_that_runs_and_the_next_start_runs_it_again(counting: Counting) -> None:
    """A program that has failed elsewhere is not kept for as long as the batch takes."""
    counting.query, files = STATELESS, records(1)
    counting.feed(files)
    runs = counting.directory / "runs"

    def endless(number: int) -> int:
        runs.touch()
        threading.Event().wait()
        return number

    def never_ends(df: "DataFrame", batch: int) -> None:
        sink(df.select("key", functions.udf(endless, "long")(functions.lit(1)).cast("string").alias("value")), batch)

    def fails_elsewhere() -> None:
        with sink:
            queries.append(counting.start(never_ends))
            wait_until(runs.exists, "the batch runs", LIMIT_S)
            raise KeyboardInterrupt

    queries: list[StreamingQuery] = []
    sink = counting.open()
    with pytest.raises(KeyboardInterrupt):
        fails_elsewhere()
    wait_until(lambda: not queries[0].isActive, "the query has ended", LIMIT_S)
    assert not counting.written()
    assert counting.run() is CloseReason.FINISHED
    assert counting.written() == copied(files)


def test_one_sink_in_two_queries_refuses_the_second_one_and_serves_the_first(counting: Counting) -> None:
    counting.query, files = STATELESS, records(2)
    counting.feed(files[:1])
    other = Counting(counting.spark, counting.topics, counting.job, counting.directory, "others")
    other.checkpoint, other.query = counting.directory / "other", STATELESS
    with counting.open() as sink:
        first = counting.writer().trigger(processingTime="100 milliseconds").foreachBatch(sink).start()
        wait_until(lambda: counting.written() == copied(files[:1]), "the first query has written", LIMIT_S)
        with pytest.raises(ConfigurationError, match="two queries"):
            sink.await_termination(other.start(sink))
        counting.feed(files[1:])
        wait_until(lambda: counting.written() == copied(files), "the first query continues", LIMIT_S)
        sink.stop()
        assert sink.await_termination(first) is CloseReason.STOPPED


def test_a_thread_of_the_program_writes_a_batch_only_if_it_inherits_the_batch(counting: Counting) -> None:
    counting.query, files = STATELESS, records(1)
    counting.feed(files)

    def in_a_thread(call: "Callable[..., None]") -> "Callable[[DataFrame, int], None]":
        def write(df: "DataFrame", batch: int) -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(inheritable_thread_target(call) if inherits else call, df, batch).result()

        return write

    inherits = False
    with counting.open() as sink:
        with pytest.raises(ConfigurationError, match=r"thread.*pyspark\.inheritable_thread_target"):
            sink.await_termination(counting.start(in_a_thread(sink)))
        assert not counting.written()
        inherits = True
        assert sink.await_termination(counting.start(in_a_thread(sink))) is CloseReason.FINISHED
    assert counting.written() == copied(files)


def test_the_checkpoint_location_is_read_with_the_file_systems_of_the_session(
    spark: "SparkSession", tmp_path: Path
) -> None:
    session = spark.newSession()
    session.conf.set("fs.viewfs.mounttable.ours.link./data", tmp_path.as_uri())
    df = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = df.writeStream.option("checkpointLocation", "viewfs://ours/data/checkpoint").trigger(availableNow=True)
    query = writer.format("noop").start()
    query.processAllAvailable()
    query.stop()
    assert Query.of(session, query).committed(0)


def test_complete_mode_writes_the_whole_result_of_each_batch_once_if_that_is_accepted(counting: Counting) -> None:
    files = records(3)
    counting.feed(files)
    with counting.open(LosingSink(counting.topics.servers, topic=counting.topic), allow_complete_mode=True) as sink:
        query = counting.writer().outputMode("complete").foreachBatch(sink).start()
        assert sink.await_termination(query) is CloseReason.FINISHED
    assert counting.events("replayed")
    assert counting.written() == whole_results(files)


def whole_results(files: Sequence[stream_queries.File]) -> Counter[tuple[bytes, bytes]]:
    """After each file, the last count and sum of every key so far."""
    totals = (stream_queries.QUERIES["running-count"].oracle(files[:number]) for number in range(1, len(files) + 1))
    return Counter((key, values[-1]) for so_far in totals for key, values in so_far.items())


def test_a_batch_that_spark_made_to_repartition_the_state_is_no_gap(counting: Counting) -> None:
    manager = getattr(counting.spark, "_streamingCheckpointManager", None)
    if manager is None:
        pytest.skip("this Spark does not repartition the state of a query")
    files = records(4)
    for name, value in stream_queries.ROCKSDB.items():
        counting.spark.conf.set(name, value)
    counting.feed(files[:2])
    counting.run()
    manager.repartition(str(counting.checkpoint), 3)
    counting.feed(files[2:])
    assert counting.run() is CloseReason.FINISHED
    assert counting.written() == expected(files)


def test_every_column_of_a_record_counts_in_its_digest_whatever_its_name_and_maps_do_not(spark: "SparkSession") -> None:
    hashes = RecordHashes()

    def digest(columns: str) -> int:
        (row,) = hashes.add_to(spark.sql(f"SELECT 'k' AS key, {columns}")).collect()
        return int(row[DIGEST_COLUMN])

    one = digest("1 AS `a``b c`, map('m', 1) AS headers")
    assert one == digest("1 AS `a``b c`, map('m', 2) AS headers") != digest("2 AS `a``b c`, map('m', 1) AS headers")
    assert one == digest("1 AS `a``b c`") != digest("2 AS other")


def test_a_function_gets_every_column_of_each_dataframe_whatever_its_name(spark: "SparkSession") -> None:
    def shown(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            yield batch.from_pydict({"rows": [str(batch.to_pylist())]})

    function = ArrowFunction(shown, "rows string")
    for row in ({"a`b c": 1, "d.e": "x"}, {"a`b c": 2, "d.e": "y"}, {"other": 3.0}):
        df = spark.createDataFrame([tuple(row.values())], list(row))
        assert function.apply_to(df.coalesce(1)).collect()[0][0] == str([row])


@pytest.mark.parametrize(
    ("options", "trigger"),
    [
        ({"asyncProgressTrackingEnabled": "true"}, {"processingTime": "1 second"}),
        ({}, {"continuous": "1 second"}),
    ],
    ids=["asynchronous progress tracking", "continuous"],
)
def test_spark_refuses_foreach_batch_where_it_would_not_log_each_batch_first(
    spark: "SparkSession", tmp_path: Path, options: dict[str, str], trigger: dict[str, Any]
) -> None:
    writer = spark.readStream.format("rate").load().writeStream.options(**options).trigger(**trigger)
    with pytest.raises(Exception, match=r"(?i)foreachBatch|not supported"):
        writer.option("checkpointLocation", str(tmp_path / "c")).foreachBatch(lambda _df, _n: None).start().stop()


@pytest.mark.kill
def test_a_coordinator_that_is_killed_in_a_batch_costs_the_query_a_wait(counting: Counting, tmp_path: Path) -> None:
    files, address, point = records(3), free_address(), KillPoint.COORDINATOR_BEFORE_DECISION
    counting.feed(files)
    source = str(counting.directory / "input")
    with JobProcesses(tmp_path, counting.job, counting.topics.servers, source, counting.topic) as here:
        serving = here.coordinator(address, kill_at=[f"{point.value}:3"])
        with counting.open(coordinator=address) as sink:
            query = counting.start(sink)
            here.wait_for_kill(point, 3, serving, LIMIT_S)
            here.coordinator(address)
            assert sink.await_termination(query) is CloseReason.FINISHED
            assert sink.batches == 3
    assert counting.written() == expected(files)


@pytest.fixture
def here(topics: Topics, job: str, tmp_path: Path) -> Iterator[JobProcesses]:
    """Drivers of a query that reads the files of ``WHOLE``."""
    source, topic = tmp_path / "input", topics.create("totals", 2)
    feed(source, WHOLE)
    program = "tests.support.stream_queries"
    with JobProcesses(tmp_path, job, topics.servers, str(source), topic, program=program) as made:
        yield made


def assert_written_once(topics: Topics, here: JobProcesses) -> None:
    written = topics.read(here.spec["sink"])
    assert Counter((key, value) for _, _, key, value in written) == expected(WHOLE)


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_query_whose_driver_is_killed_around_the_decision_writes_each_batch_once(
    topics: Topics, here: JobProcesses
) -> None:
    """The second kill leaves a decided batch, whose transactions are then lost: the next life writes them again."""
    for point, count in ((KillPoint.COORDINATOR_BEFORE_DECISION, 3), (KillPoint.DRIVER_AFTER_DECISION, 1)):
        here.wait_for_kill(point, count, here.driver(kill_at=[f"{point.value}:{count}"]), LIMIT_S)
    abort_with_the_brokers_tool(topics.servers, here.spec["sink"], 0)
    here.finish(LIMIT_S)
    assert here.events("replayed")
    assert_written_once(topics, here)


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_query_killed_before_sparks_commit_log_writes_no_batch_twice_and_continues_with_its_state(
    topics: Topics, here: JobProcesses
) -> None:
    here.spec["session"] = stream_queries.NAMED_STATE
    point = KillPoint.BATCH_AFTER_SETTLE
    here.wait_for_kill(point, 2, here.driver(kill_at=[f"{point.value}:2"]), LIMIT_S)
    here.finish(LIMIT_S)
    assert_written_once(topics, here)
