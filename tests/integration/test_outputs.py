"""Jobs with several outputs, on the real broker: each gets what it asks for, once, and one pass serves them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from onceward import CheckpointSettings, KafkaCluster, KafkaSink, KafkaSource, Output, Pipeline
from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import JobContext
from onceward.dev.kafka import LocalKafka
from onceward.driver.journal import EVENTS_VARIABLE
from onceward.driver.restarts import NO_RESTART, Restart
from onceward.protocol.events import CloseReason
from tests.support.commands import onceward
from tests.support.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

RECORDS = 300


class Bench:
    """A job with one input topic of three partitions, and as many output topics as it names."""

    def __init__(self, topics: Topics, job: str, spark: "SparkSession", directory: Path) -> None:
        self.topics, self.job, self.spark, self.directory = topics, job, spark, directory
        self.source = topics.create("in", 3)
        for partition in range(3):
            values: list[bytes | None] = [
                json.dumps({"n": n, "amount": n % 100, "currency": "EUR" if n % 3 == 0 else "USD"}).encode()
                for n in range(partition * RECORDS, (partition + 1) * RECORDS)
            ]
            topics.fill(self.source, values, partition=partition, key=b"key-%d" % partition)
        self._outputs: dict[str, str] = {}

    def sink(self, name: str, **options: Any) -> KafkaSink:
        if name not in self._outputs:
            self._outputs[name] = self.topics.create(f"out-{name}", 2)
        return KafkaSink(self.topics.servers, topic=self._outputs[name], **options)

    def pipeline(self, outputs: dict[str, Output], **options: Any) -> Pipeline:
        return Pipeline(
            job=self.job,
            source=KafkaSource(
                self.topics.servers,
                topics=[self.source],
                **{"start": "earliest", "end": "latest", "max_offsets_per_checkpoint": 250, **options.pop("read", {})},
            ),
            outputs=outputs,
            state_dir=self.directory / "state",
            **{
                "settings": CheckpointSettings(interval="50ms"),
                "restart": NO_RESTART,
                "spark": self.spark,
                **options,
            },
        )

    def written(self, name: str) -> list[Any]:
        """The values of an output's records, in order: numbers."""
        return sorted(int(value or b"") for value in self.topics.values(self._outputs[name]))

    def numbers(self, name: str) -> list[int]:
        """The numbers of an output's records, in order: each value is a whole input record."""
        return sorted(json.loads(value or b"")["n"] for value in self.topics.values(self._outputs[name]))

    def keys(self, name: str) -> set[bytes | None]:
        return {key for _, _, key, _ in self.topics.read(self._outputs[name])}

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.directory / "events").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["event"] == name]


@pytest.fixture
def bench(topics: Topics, job: str, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    return Bench(topics, job, spark, tmp_path)


def parsed(df: "DataFrame") -> "DataFrame":
    record = F.from_json(F.col("value").cast("string"), "n long, amount int, currency string")
    return df.select("key", record.alias("r")).select("key", "r.*")


N = range(3 * RECORDS)


def test_outputs_filter_and_choose_in_one_pass_and_a_transform_is_a_branch(bench: Bench) -> None:
    outputs = {
        "eur": Output(bench.sink("eur"), where="currency = 'EUR'", select=["key", "cast(n as string) as value"]),
        "big": Output(bench.sink("big"), where=F.col("amount") > 90, select=[F.col("n").cast("string").alias("value")]),
        "all": Output(bench.sink("all"), select=["key", "to_json(struct(*)) as value"]),
        "twice": Output(
            bench.sink("twice"),
            transform=lambda df: df.selectExpr("explode(array(n, n + 1)) as m").selectExpr(
                "cast(m as string) as value"
            ),
        ),
    }
    assert bench.pipeline(outputs, transform=parsed).run() is CloseReason.FINISHED
    assert bench.written("eur") == [n for n in N if n % 3 == 0]
    assert bench.written("big") == [n for n in N if n % 100 > 90]
    assert bench.written("twice") == sorted([*N, *(n + 1 for n in N)])
    assert bench.numbers("all") == list(N)
    assert bench.keys("eur") == {b"key-0", b"key-1", b"key-2"}
    assert [(one["path"], one["outputs"]) for one in bench.events("planned")] == [
        ("dataframe", ["all", "big", "eur"]),
        ("dataframe", ["twice"]),
    ]
    listed = onceward("checkpoints", bench.job, "--json", "--state-dir", str(bench.directory / "state"))
    branches = {"eur": False, "big": False, "all": False, "twice": True}
    assert {one["name"]: one["branch"] for one in json.loads(listed.stdout)[0]["outputs"]} == branches


def test_outputs_that_choose_columns_only_are_written_without_spark(bench: Bench) -> None:
    outputs = {"a": Output(bench.sink("a")), "b": Output(bench.sink("b"), select=["value"])}
    bench.pipeline(outputs).run()
    for name in outputs:
        assert bench.numbers(name) == list(N)
    assert bench.keys("a") == {b"key-0", b"key-1", b"key-2"}
    assert bench.keys("b") == {None}
    assert [(one["path"], one["outputs"]) for one in bench.events("planned")] == [("copy", ["a", "b"])]


Routed = Iterator[tuple[str, pa.RecordBatch]]


def by_parity(batches: Iterator[pa.RecordBatch]) -> Routed:
    for batch in batches:
        odd = pc.equal(pc.bit_wise_and(batch.column("offset"), 1), 1)
        yield "odd", batch.filter(odd).select(["value"])
        yield "even", batch.filter(pc.invert(odd)).select(["key", "value"])


@pytest.mark.parametrize("tasks", ["per_checkpoint", "staying"])
def test_a_function_on_batches_yields_the_name_of_an_output_with_each_batch(bench: Bench, tasks: Any) -> None:
    outputs = {"odd": Output(bench.sink("odd")), "even": Output(bench.sink("even"))}
    read = {} if tasks == "per_checkpoint" else {"max_offsets_per_checkpoint": None}
    bench.pipeline(outputs, transform_batches=by_parity, tasks=tasks, read=read).run()
    assert bench.numbers("odd") == [n for n in N if n % 2 == 1]
    assert bench.numbers("even") == [n for n in N if n % 2 == 0]


def test_a_batch_for_an_output_that_there_is_not_ends_the_job_and_nothing_is_visible(bench: Bench) -> None:
    def wrong(batches: Iterator[pa.RecordBatch]) -> Routed:
        for batch in batches:
            yield "odd", batch.select(["value"])
            yield "other", batch.select(["value"])

    outputs = {"odd": Output(bench.sink("odd")), "even": Output(bench.sink("even"))}
    with pytest.raises(ConfigurationError, match=r"'other'.*The names are even, odd\."):
        bench.pipeline(outputs, transform_batches=wrong).run()
    assert bench.written("odd") == []


def test_a_column_that_an_output_cannot_take_is_refused_before_the_start_with_the_outputs_name(bench: Bench) -> None:
    outputs = {
        "good": Output(bench.sink("good"), select=["cast(n as string) as value"]),
        "bad": Output(bench.sink("bad"), select=["n as value", "currency as partition"]),
    }
    with pytest.raises(ConfigurationError) as refused:
        bench.pipeline(outputs, transform=parsed).run()
    assert "Output bad" in str(refused.value)
    assert "value: is bigint" in str(refused.value)
    assert "partition: is string" in str(refused.value)


MISSPELT: dict[str, tuple[dict[str, Any], str]] = {
    "where": ({"where": "curency = 'EUR'", "select": ["key as value"]}, "where="),
    "select": ({"select": ["key as value", "curency as key"]}, "'curency as key' in select="),
    "transform": ({"transform": lambda df: df.selectExpr("curency as value")}, "transform"),
}


@pytest.mark.parametrize(
    ("name", "tasks"), [("where", "per_checkpoint"), ("select", "staying"), ("transform", "per_checkpoint")]
)
def test_a_column_that_an_output_misspells_ends_the_job_at_once_instead_of_restarting_it(
    bench: Bench, name: str, tasks: Any
) -> None:
    wrong, named = MISSPELT[name]
    pipeline = bench.pipeline(
        {
            "all": Output(bench.sink("all"), select=["to_json(struct(*)) as value"]),
            "eur": Output(bench.sink("eur"), **wrong),
        },
        transform=parsed,
        tasks=tasks,
        spark=None,  # so that a generation makes the plan, and a restart could follow it
        restart=Restart(initial="10ms", attempts=2),
        read={"max_offsets_per_checkpoint": None},
    )
    with pytest.raises(ConfigurationError, match=rf"^Output eur: {named}.*Did you mean .*`currency`"):
        pipeline.run()
    assert len(bench.events("failed")) == 1, "no generation followed"
    assert bench.numbers("all") == []


def test_a_new_output_begins_with_the_next_checkpoint_and_one_that_is_gone_gets_nothing_more(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Output(bench.sink("first")), Output(bench.sink("second"))
    bench.pipeline({"first": first}).run()
    assert "outputs have changed" not in caplog.text
    bench.topics.fill(bench.source, [b'{"n": 5000}'])
    bench.pipeline({"first": first, "second": second}).run()
    assert "second begins with the next checkpoint and gets nothing of what was read before" in caplog.text
    bench.topics.fill(bench.source, [b'{"n": 6000}'])
    bench.pipeline({"second": second}).run()
    assert "first is gone: it is settled, and gets nothing from now on" in caplog.text
    assert bench.numbers("first") == [*N, 5000]
    assert bench.numbers("second") == [5000, 6000]


@pytest.mark.slow
def test_one_decision_covers_outputs_on_two_clusters(bench: Bench, job: str) -> None:
    with LocalKafka() as other:
        there = Topics(other.bootstrap_servers, job)
        topic = there.create("out", 2)
        elsewhere = KafkaSink(KafkaCluster(other.bootstrap_servers, name="other"), topic=topic)

        def outputs() -> dict[str, Output]:
            return {
                "here": Output(losing_one(bench.sink("here"), "here")),
                "there": Output(losing_one(elsewhere, "there")),
            }

        bench.pipeline(outputs(), read={"adaptive": False}).run()
        bench.topics.fill(bench.source, [b'{"n": 5000}'])
        bench.pipeline(outputs(), read={"adaptive": False}).run()
        assert bench.numbers("here") == [*N, 5000]
        assert sorted(json.loads(value or b"")["n"] for value in there.values(topic)) == [*N, 5000]
    assert len(bench.events("replayed")) == 4, "each run has lost a transaction on each cluster"


def losing_one(sink: KafkaSink, name: str) -> KafkaSink:
    """A sink of which one transaction is aborted after the decision and before the commit."""
    connect, robberies = KafkaSink.connect, iter([True])

    class Robbed(KafkaSink):
        def connect(self, context: JobContext) -> Any:
            session = connect(self, context)
            real = session.system()
            commit: Callable[..., Any] = real.commit

            def lose(author: Any, committables: Any, **options: Any) -> Any:
                if committables and author.participant == name and next(robberies, False):
                    real.abort(author, committables[:1])
                return commit(author, committables, **options)

            real.commit = lose  # type: ignore[method-assign]
            session.system = lambda: real  # type: ignore[method-assign]
            return session

    sink.__class__ = Robbed
    return sink


def test_a_lost_transaction_of_one_output_is_written_again_there_and_nowhere_else(bench: Bench) -> None:
    outputs = {
        "eur": Output(bench.sink("eur"), where="currency = 'EUR'", select=["cast(n as string) as value"]),
        "all": Output(losing_one(bench.sink("all"), "all"), select=["cast(n as string) as value"]),
        "branch": Output(bench.sink("branch"), transform=lambda df: df.selectExpr("cast(n as string) as value")),
    }
    bench.pipeline(outputs, transform=parsed, read={"adaptive": False}).run()
    assert bench.written("eur") == [n for n in N if n % 3 == 0]
    assert bench.written("all") == list(N)
    assert bench.written("branch") == list(N)
    assert [event["slots"] for event in bench.events("replayed")] == [1]
