"""Which columns of the source a plan needs, according to Spark's own optimised plans. Nothing runs."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from onceward.driver.spark import plans
from onceward.executor.functions import BALLOT_SCHEMA, reading, to_one, writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def empty(df: "DataFrame", *columns: str) -> "DataFrame":
    """All columns in their order, with ``columns`` as null constants."""
    return df.select(*[F.lit(None).cast(df.schema[c].dataType).alias(c) if c in columns else F.col(c) for c in ALL])


def mapped(df: "DataFrame") -> "DataFrame":
    return df.mapInArrow(same, "key binary, value binary")


def joined(df: "DataFrame") -> "DataFrame":
    return df.alias("a").join(df.alias("b"), F.expr("a.key = b.value"))


@pytest.mark.parametrize(
    ("transform", "needed"),
    [
        (lambda df: df.select("value"), {"value"}),
        (lambda df: df.where("offset > 3").select("value"), {"value", "offset"}),
        (lambda df: df.select("key", F.col("headers")[0]["value"].alias("value")), {"key", "headers"}),
        (lambda df: df.selectExpr("to_json(struct(timestamp, partition)) value"), {"timestamp", "partition"}),
        (lambda df: df.select(F.col("value").alias("onceward_read")).toDF("value"), {"value"}),
        (lambda df: df.withColumn("n", F.explode("headers")).select("value"), {"value", "headers"}),
        (lambda df: df.repartition(3, "partition").select("value"), {"value", "partition"}),
        (lambda df: df.select("value").union(df.select("key")), {"key", "value"}),
        (lambda df: df.groupBy("key").agg(F.max("value").alias("value")), {"key", "value"}),
        (lambda df: joined(df).select("a.topic"), {"key", "value", "topic"}),
        (lambda df: df.where(F.col("key").isin(b"1", b"2")).select(F.lit("x").alias("value")), {"key"}),
        # A union matches columns by position: nothing refers to the second one's by name.
        (lambda df: mapped(empty(df, "key", "value").union(df)), set(ALL)),
        (lambda df: mapped(empty(df, *ALL).union(df)), set(ALL)),
        (lambda df: mapped(df), set(ALL)),
        (lambda df: df, set(ALL)),
        (lambda df: df.distinct(), set(ALL)),
        (lambda df: df.dropDuplicates(["key"]).select("value"), {"key", "value"}),
    ],
)  # fmt: skip
def test_only_the_columns_that_a_plan_needs_are_read(
    spark: "SparkSession", transform: "Callable[[DataFrame], DataFrame]", needed: set[str]
) -> None:
    source = spark.range(0, 2, 1, 2).mapInArrow(reading(None), SCHEMA)
    written = transform(source).mapInArrow(writing({}, to_one("out")), BALLOT_SCHEMA)
    facts = plans.examine(written, ALL, per_checkpoint_operations=True)
    assert set(facts.columns) == needed


@pytest.mark.parametrize(
    ("transform", "chosen"),
    [
        (lambda df: df.select("key", "value"), {"key": "key", "value": "value"}),
        (lambda df: df, {name: name for name in ALL}),
        (lambda df: df.toDF(*[name.upper() for name in ALL]), {name.upper(): name for name in ALL}),
        (
            lambda df: df.select(F.col("value").alias("key"), F.col("value").cast("binary"), "offset").drop("offset"),
            {"key": "value", "value": "value"},
        ),
        (lambda df: df.select("key", "value").where("value is not null"), None),
        (lambda df: df.select(F.col("topic").cast("binary").alias("value")), None),
        (lambda df: df.select("value", F.lit("x").alias("key")), None),
        (lambda df: df.select(F.upper("topic").alias("topic"), "value"), None),
        (lambda df: df.select("value").coalesce(1), None),
        (lambda df: df.select("value").limit(5), None),
        (lambda df: df.select("value").union(df.select("value")), None),
        (lambda df: mapped(df), None),
        (lambda df: mapped(df).select("value"), None),
        (lambda df: joined(df).select("a.value"), None),
    ],
)
def test_spark_is_left_out_only_where_columns_are_chosen_and_nothing_else(
    spark: "SparkSession", transform: "Callable[[DataFrame], DataFrame]", chosen: dict[str, str] | None
) -> None:
    source = spark.range(0, 2, 1, 2).mapInArrow(reading(None), SCHEMA)
    written = transform(source).mapInArrow(writing({}, to_one("out")), BALLOT_SCHEMA)
    facts = plans.examine(written, ALL, per_checkpoint_operations=True)
    assert facts.chosen == chosen
