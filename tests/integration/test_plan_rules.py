"""Which transforms are refused, which plans are reused, and which slots can be written again, by Spark's own plans.
Nothing runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from onceward import parse_json
from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Chosen
from onceward.driver.output import Output
from onceward.driver.spark import plans
from onceward.driver.spark.job import CheckpointJob, numbers
from onceward.driver.spark.passes import Marks, Pass, Share, passes_of
from onceward.driver.spark.plans import PlanFacts
from onceward.driver.spark.session import Spark
from onceward.executor.functions import BALLOT_SCHEMA, reading, to_one, writing
from onceward.protocol.values import JobName, ParticipantName
from onceward.sinks.kafka.driver.columns import choose

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    Transform = Callable[[DataFrame, DataFrame], DataFrame]

SCHEMA = "key binary, value binary, partition int, offset bigint"
COLUMNS = ("key", "value", "partition", "offset")


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def python(column: str) -> "Column":
    return F.udf(lambda value: value, "binary")(column)


def pandas(column: str) -> "Column":
    functions: Any = F

    def same(values: pd.Series) -> pd.Series:
        return values

    made: Column = functions.pandas_udf(same, "binary")(column)
    return made


@pytest.fixture(scope="module")
def table(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> "DataFrame":
    """A small table in a file, whose size Spark knows."""
    path: Path = tmp_path_factory.mktemp("table") / "names"
    spark.createDataFrame([(b"a", "Ada")], "key binary, name string").coalesce(1).write.parquet(str(path))
    return spark.read.parquet(str(path))


def read(spark: "SparkSession") -> "DataFrame":
    """The DataFrame that a transform gets."""
    return numbers(spark, 2).mapInArrow(reading(None), SCHEMA)


def facts_of(
    spark: "SparkSession", table: "DataFrame", transform: "Transform", *, per_checkpoint_operations: bool = False
) -> PlanFacts:
    df = read(spark)
    df.createOrReplaceTempView("input")
    table.createOrReplaceTempView("names")
    written = transform(df, table).mapInArrow(writing({}, to_one("out")), BALLOT_SCHEMA)
    return plans.examine(written, COLUMNS, per_checkpoint_operations=per_checkpoint_operations)


def sql(text: str) -> "Transform":
    return lambda df, _: df.sparkSession.sql(text)


RECORDS_STAY: "dict[str, Transform]" = {
    "where": lambda df, _: df.where("partition >= 0"),
    "explode": lambda df, _: df.withColumn("each", F.explode(F.array("key", "value"))),
    "Python UDF": lambda df, _: df.select(python("value").alias("value")),
    "pandas UDF": lambda df, _: df.select(pandas("value").alias("value")),
    "mapInArrow": lambda df, _: df.mapInArrow(same, SCHEMA),
    "mapInPandas": lambda df, _: df.mapInPandas(same, SCHEMA),
    "broadcast join": lambda df, table: df.join(F.broadcast(table), "key"),
    "broadcast join, table first": lambda df, table: F.broadcast(table).join(df, "key"),
    "join with a small table": lambda df, table: df.join(table, "key"),
    "join with a cached table": lambda df, table: df.join(table.select("key").cache(), "key"),
    "join with totals of a table": lambda df, table: df.join(F.broadcast(table.groupBy("key").count()), "key"),
    "left join": lambda df, table: df.join(F.broadcast(table), "key", "left"),
    "right join of a table": lambda df, table: F.broadcast(table).join(df, "key", "right"),
    "left semi join": lambda df, table: df.join(table, "key", "leftsemi"),
    "left anti join": lambda df, table: df.join(table, "key", "leftanti"),
    "cross join": lambda df, table: df.crossJoin(F.broadcast(table.select("name"))),
    "join without equality": lambda df, table: df.join(F.broadcast(table.toDF("other", "name")), F.expr("key > other")),
    "in a table": sql("select * from input where key in (select key from names)"),
    "compared with a table": sql("select * from input where key > (select max(key) from names)"),
    "with": sql("with some as (select * from input where offset > 3) select * from some"),
}


@pytest.mark.parametrize("name", RECORDS_STAY)
def test_where_records_stay_in_their_slot_one_plan_serves_and_a_lost_slot_can_be_written_again(
    spark: "SparkSession", table: "DataFrame", name: str
) -> None:
    facts = facts_of(spark, table, RECORDS_STAY[name])
    assert (facts.reusable, facts.one_to_one) == (True, True)


RECORDS_ARE_GATHERED: "dict[str, Transform]" = {
    "coalesce": lambda df, _: df.coalesce(1),
    "union": lambda df, _: df.union(df),
}


@pytest.mark.parametrize("name", RECORDS_ARE_GATHERED)
def test_where_partitions_are_gathered_one_plan_serves_and_no_range_alone_made_a_slot(
    spark: "SparkSession", table: "DataFrame", name: str
) -> None:
    facts = facts_of(spark, table, RECORDS_ARE_GATHERED[name])
    assert (facts.reusable, facts.one_to_one) == (True, False)


RECORDS_MOVE: "dict[str, Transform]" = {
    "repartition": lambda df, _: df.repartition(3),
    "repartition by key": lambda df, _: df.repartition(3, "key"),
    "rebalance": lambda df, _: df.hint("rebalance"),
    "shuffled join": lambda df, table: df.join(table.hint("shuffle_hash"), "key"),
    "sorted join": lambda df, table: df.join(table.hint("merge"), "key"),
    "input sent to all tasks": lambda df, table: F.broadcast(df).join(table, "key"),
}


@pytest.mark.parametrize("name", RECORDS_MOVE)
def test_where_records_move_each_checkpoint_has_its_own_plan(
    spark: "SparkSession", table: "DataFrame", name: str
) -> None:
    facts = facts_of(spark, table, RECORDS_MOVE[name])
    assert (facts.reusable, facts.one_to_one) == (False, False)


PER_CHECKPOINT: "dict[str, Transform]" = {
    "a sort, limit": lambda df, _: df.orderBy("offset").limit(3),
    "limit": lambda df, _: df.limit(3),
    "offset": lambda df, _: df.offset(3),
    "an aggregation": lambda df, _: df.groupBy("key").count(),
    "distinct": lambda df, _: df.distinct(),
    "a window function": lambda df, _: df.withColumn(
        "n", F.row_number().over(Window.partitionBy("key").orderBy("offset"))
    ),
    "a grouped function": lambda df, _: df.groupBy("key").applyInPandas(same, SCHEMA),
    "a join of the input with itself": lambda df, _: df.join(df.select("key"), "key"),
    r"a join \(FullOuter\)": lambda df, table: df.join(table, "key", "full"),
    r"a join \(LeftOuter\)": lambda df, table: table.join(df, "key", "left"),
    r"a join \(RightOuter\)": lambda df, table: df.join(table, "key", "right"),
    r"a join \(LeftSemi\)": lambda df, table: table.join(df, "key", "leftsemi"),
    r"a join \(LeftAnti\)": lambda df, table: table.join(df, "key", "leftanti"),
    "intersect": lambda df, table: df.select("key").intersect(table.select("key")),
    "except": lambda df, table: df.select("key").exceptAll(table.select("key")),
    "a union with another table": lambda df, table: df.select("key").union(table.select("key")),
    "a subquery over the input": sql("select key from names where key in (select key from input)"),
    "with itself": sql("with some as (select * from input) select a.key from some a join some b on a.key = b.value"),
    "monotonically_increasing_id": lambda df, _: df.withColumn("id", F.monotonically_increasing_id()),
    "spark_partition_id": lambda df, _: df.withColumn("task", F.spark_partition_id()),
}


@pytest.mark.parametrize("name", PER_CHECKPOINT)
def test_a_plan_that_depends_on_checkpoint_cuts_is_refused_or_planned_for_each_checkpoint(
    spark: "SparkSession", table: "DataFrame", name: str
) -> None:
    with pytest.raises(ConfigurationError, match=name):
        facts_of(spark, table, PER_CHECKPOINT[name])
    wanted = facts_of(spark, table, PER_CHECKPOINT[name], per_checkpoint_operations=True)
    assert not wanted.reusable or "union" in name  # each checkpoint writes the other table's rows


def test_operations_on_other_tables_are_not_refused(spark: "SparkSession", table: "DataFrame") -> None:
    facts = facts_of(spark, table, lambda df, table: df.join(table.distinct().orderBy("key").limit(5), "key"))
    assert facts.columns == COLUMNS


CHANGING: "dict[str, Transform]" = {
    "sample": lambda df, _: df.sample(0.5),
    "sample in SQL": sql("select * from input tablesample (50 percent)"),
    "rand": lambda df, _: df.where(F.rand() < 0.5),
    "uuid": lambda df, _: df.withColumn("id", F.expr("uuid()")),
    "shuffle of an array": lambda df, _: df.withColumn("both", F.shuffle(F.array("key", "value"))),
}


@pytest.mark.parametrize("name", CHANGING)
def test_each_plan_draws_with_a_new_seed(spark: "SparkSession", table: "DataFrame", name: str) -> None:
    one, other = (facts_of(spark, table, CHANGING[name]) for _ in range(2))
    assert not one.reusable
    assert one.one_to_one
    assert len(one.seeds) == 1
    assert one.seeds == other.seeds == (None,) or one.seeds != other.seeds


@pytest.mark.parametrize("draw", [lambda df: df.sample(fraction=0.5, seed=3), lambda df: df.where(F.rand(3) < 0.5)])
def test_a_fixed_seed_shows_in_each_plan(
    spark: "SparkSession", table: "DataFrame", draw: "Callable[[DataFrame], DataFrame]"
) -> None:
    one, other = (facts_of(spark, table, lambda df, _: draw(df)) for _ in range(2))
    assert one.seeds == other.seeds != (None,)


def test_each_plan_reads_the_clock(spark: "SparkSession", table: "DataFrame") -> None:
    facts = facts_of(spark, table, lambda df, _: df.withColumn("now", F.current_timestamp()))
    assert not facts.reusable


@pytest.mark.parametrize("cached", ["cache", "checkpoint"])
def test_a_copy_of_the_input_that_a_first_checkpoint_made_is_refused(
    spark: "SparkSession", table: "DataFrame", cached: str
) -> None:
    kept: list[DataFrame] = []

    def transform(df: "DataFrame", table: "DataFrame") -> "DataFrame":
        kept.append(df.select("key").cache() if cached == "cache" else df.select("key").localCheckpoint(eager=False))
        return kept[0]

    with pytest.raises(ConfigurationError, match="cache or persist" if cached == "cache" else "checkpointed copy"):
        facts_of(spark, table, transform)
    for df in kept:
        df.unpersist()


def test_a_cached_copy_beside_the_input_is_refused_too(spark: "SparkSession", table: "DataFrame") -> None:
    kept: list[DataFrame] = []

    def transform(df: "DataFrame", table: "DataFrame") -> "DataFrame":
        kept.append(df.where("offset > 3").cache())
        return df.select("key").union(kept[0].select("key"))

    with pytest.raises(ConfigurationError, match="cache or persist"):
        facts_of(spark, table, transform)
    kept[0].unpersist()


def every(columns: Sequence[tuple[str, str]]) -> Sequence[Chosen]:
    return [Chosen(column=name, name=name) for name, _ in columns]


def job_of(
    spark: "SparkSession",
    transform: "Callable[[DataFrame], DataFrame] | None",
    *,
    choose: "Callable[[Sequence[tuple[str, str]]], Sequence[Chosen]] | None" = None,
    copied: tuple[str, ...] = ("key", "value"),
) -> CheckpointJob:
    return job_over(spark, Pass([Share(sink_of(ParticipantName("out"), choose))], transform), copied)


def sink_of(
    name: ParticipantName, choose: "Callable[[Sequence[tuple[str, str]]], Sequence[Chosen]] | None" = None
) -> Any:
    return SimpleNamespace(write=lambda: None, choose=choose or every, participant=SimpleNamespace(name=name))


def job_over(spark: "SparkSession", work: Pass, copied: tuple[str, ...] = ("key", "value")) -> CheckpointJob:
    source: Any = SimpleNamespace(schema=SCHEMA, read=lambda: None, copied_columns=copied)
    return CheckpointJob(
        spark=Spark.of(spark),
        job=JobName("job"),
        source=source,
        work=work,
        transform_batches=None,
        per_checkpoint_operations=True,
    )


def test_a_copy_without_a_column_that_the_sink_needs_is_refused_before_it_runs(spark: "SparkSession") -> None:
    choosing = partial(choose, routed=False)
    job_of(spark, None, choose=choosing).check()
    with pytest.raises(ConfigurationError, match="value: the column is missing"):
        job_of(spark, None, choose=choosing, copied=("key",)).check()


NOWHERE: Any = None
"""Instead of the sink that a program names; :func:`check` puts another one there."""
A, B = ParticipantName("a"), ParticipantName("b")


def check(
    spark: "SparkSession",
    outputs: "Mapping[ParticipantName, Output]",
    transform: "Callable[[DataFrame], DataFrame] | None" = None,
) -> None:
    """Check the plan of each pass, as the start of a job does."""
    for work in passes_of(outputs, [*map(sink_of, outputs)], transform):
        job_over(spark, work).check()


MISTAKES: "dict[str, tuple[Callable[[], Output], str]]" = {
    "a condition": (
        lambda: Output(NOWHERE, where="valeu is null"),
        r"Output b: where='valeu is null': .*`valeu` cannot be resolved\. Did you mean .*`value`",
    ),
    "a condition that is a column": (
        lambda: Output(NOWHERE, where=F.col("valeu").isNull()),
        r"Output b: where=Column<'.*valeu.*'>: .*Did you mean .*`value`",
    ),
    "a condition of a choice": (
        lambda: Output(NOWHERE, where="valeu is null", select=["key"]),
        r"Output b: where='valeu is null': .*Did you mean .*`value`",
    ),
    "an expression": (
        lambda: Output(NOWHERE, where="key is null", select=["key", "upper(valeu) as value"]),
        r"Output b: 'upper\(valeu\) as value' in select=: .*Did you mean .*`value`",
    ),
    "a name": (
        lambda: Output(NOWHERE, select=["key", "valeu"]),
        r"Output b: 'valeu' in select=: .*Did you mean .*`value`",
    ),
    "a function": (
        lambda: Output(NOWHERE, select=["uper(key) as value"]),
        r"Output b: 'uper\(key\) as value' in select=: .*`uper`",
    ),
    "SQL": (lambda: Output(NOWHERE, where="value ==== 3"), r"Output b: where='value ==== 3': .*Syntax error"),
    "a type": (lambda: Output(NOWHERE, where="partition + 1"), r"Output b: where='partition \+ 1': .*BOOLEAN"),
    "a branch": (
        lambda: Output(NOWHERE, transform=lambda df: df.where("valeu is null")),
        r"Output b: transform: .*Did you mean .*`value`",
    ),
    "an attribute": (
        lambda: Output(NOWHERE, transform=lambda df: df.where(df.valeu.isNull())),
        r"Output b: transform: .*`valeu`",
    ),
}


@pytest.mark.parametrize("beside", ["alone", "beside another"])
@pytest.mark.parametrize("name", MISTAKES)
def test_what_spark_cannot_plan_is_an_error_of_the_program_that_names_it(
    spark: "SparkSession", name: str, beside: str
) -> None:
    make, said = MISTAKES[name]
    with pytest.raises(ConfigurationError, match=said) as refused:
        check(spark, {B: make()} if beside == "alone" else {A: Output(NOWHERE), B: make()})
    assert "SQLSTATE" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_output_that_makes_several_records_of_one_beside_others_is_refused(spark: "SparkSession") -> None:
    several = Output(NOWHERE, select=["explode(array(key)) as value"])
    check(spark, {B: several})
    with pytest.raises(ConfigurationError, match=r"Output b: 'explode\(array\(key\)\) as value' in select=: .*nested"):
        check(spark, {A: Output(NOWHERE), B: several})


def test_a_transform_of_the_job_that_spark_cannot_plan_is_named_as_such(spark: "SparkSession") -> None:
    branch = Output(NOWHERE, transform=lambda df: df.select("key"))
    with pytest.raises(ConfigurationError, match=r"^transform: Spark cannot plan it: .*Did you mean .*`value`"):
        check(spark, {A: branch}, lambda df: df.where("valeu is null"))


def test_a_table_that_another_program_may_make_is_no_error_of_the_program(spark: "SparkSession") -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        check(spark, {A: Output(NOWHERE)}, lambda df: df.join(df.sparkSession.table("not_there_yet"), "key"))
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        check(spark, {A: Output(NOWHERE)}, lambda df: df.join(df.sparkSession.read.parquet("/not/there"), "key"))


def test_a_plan_that_each_checkpoint_builds_is_examined_once(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[DataFrame] = []
    examine = plans.examine

    def counted(df: "DataFrame", *arguments: Any, **options: Any) -> PlanFacts:
        examined.append(df)
        return examine(df, *arguments, **options)

    monkeypatch.setattr(plans, "examine", counted)
    job = job_of(spark, lambda df: df.groupBy("key").agg(F.first("value").alias("value")))
    job.check()
    job.check()
    assert job.moving
    assert len(examined) == 1


def with_letters(marks: Marks, transform: "Callable[[DataFrame], DataFrame]", *along: str) -> Pass:
    choosing = partial(choose, routed=False)
    out = Share(sink_of(A, choosing), "reason is null", ["key", "cast(p.record.n as string) as value"])
    dead = Share(sink_of(ParticipantName("dead-letters"), choosing), planned=False)
    return Pass([out, dead], transform, along=along or ("key", "value", "partition", "offset"), marks=marks)


def marked(df: "DataFrame") -> "DataFrame":
    return df.withColumn("p", parse_json("value", "n bigint, m bigint")).select("*", "p.reason")


MARKS = Marks("reason is not null", "reason")


def test_a_dataframe_that_marks_letters_parses_each_record_once(spark: "SparkSession") -> None:
    source = spark.range(0, 2, 1, 2).mapInArrow(reading(None), SCHEMA)
    made = with_letters(MARKS, marked).dataframe(source)
    assert made.columns == ["a", "onceward_reason", "onceward_input"]
    plan = made._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json(") == 1
    assert "onceward.error" not in plan, "the task makes the letters: Spark would make one of every record"


@pytest.mark.parametrize(
    ("marks", "along", "says"),
    [
        (
            Marks("reson is not null", "reason"),
            (),
            r"dead_letters: where='reson is not null': .*Did you mean .*`reason`",
        ),
        (Marks("p.reason is not null", "reson"), (), r"dead_letters: reason='reson': .*Did you mean .*`reason`"),
        (MARKS, ("key", "valeu"), r"dead_letters: the columns of a letter: .*Did you mean .*`value`"),
        (MARKS, ("key", "offset"), r"(?s)Output dead-letters: .*value: the column is missing"),
    ],
)
def test_marks_of_letters_that_cannot_be_planned_are_refused(
    spark: "SparkSession", marks: Marks, along: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        job_over(spark, with_letters(marks, marked, *along)).check()
