"""What our job does with the records of each workload, as DataFrames and as Arrow batches."""

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Batches", "on_batches", "on_dataframes", "through_spark"]

Batches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def on_dataframes(workload: Workload) -> "Callable[[DataFrame], DataFrame]":
    """The transform in DataFrame functions; for a copy the least that one can do."""
    match workload:
        case Workload.JSON:
            return _json
        case Workload.FILTER:
            return _filter
        case _:
            return _chosen


def _chosen(df: "DataFrame") -> "DataFrame":
    return df.select("key", "value")


def through_spark(df: "DataFrame") -> "DataFrame":
    """A copy whose rows go from the reader's worker through the JVM to the writer's: to choose columns would not need
    Spark, to look at each row does."""
    return df.select("key", "value").where("partition >= 0")


def _filter(df: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import col

    return df.select("key", "value").where(col("key").cast("string").endswith("00"))


def _json(df: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import col, from_json, struct, to_json, upper

    schema = "id long, amount long, quantity long, currency string"
    parsed = df.select("key", from_json(col("value").cast("string"), schema).alias("r"))
    total = (col("r.amount") * col("r.quantity")).alias("total")
    return parsed.select(
        "key",
        to_json(struct(col("r.id").alias("id"), total, upper(col("r.currency")).alias("currency"))).alias("value"),
    )


def on_batches(workload: Workload) -> Batches:
    """The transform on Arrow batches; for a copy the least that one can do."""
    match workload:
        case Workload.JSON:
            return json_batches
        case Workload.FILTER:
            return filter_batches
        case _:
            return through_batches


def through_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In the worker that reads and writes."""
    yield from batches


def filter_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keys that end in 00."""
    for batch in batches:
        yield batch.filter(pc.ends_with(batch["key"], "00"))


_PARSED = pa.json.ParseOptions(
    explicit_schema=pa.schema(
        [("id", pa.int64()), ("amount", pa.int64()), ("quantity", pa.int64()), ("currency", pa.string())]
    ),
    unexpected_field_behavior="ignore",
)
"""Fields as the other systems declare them."""
_WHOLE = pa.json.ReadOptions(block_size=1 << 26)


def json_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All values of a batch parsed as one text with a record a line."""
    for batch in batches:
        if batch.num_rows:
            yield _json_batch(batch)


def _json_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    lines = io.BytesIO(b"\n".join(batch["value"].to_pylist()))
    rows = pa.json.read_json(lines, _WHOLE, _PARSED).combine_chunks()
    total = pc.multiply(rows["amount"], rows["quantity"])
    texts = (
        '{"id":', rows["id"].cast(pa.string()), ',"total":', total.cast(pa.string()),
        ',"currency":"', pc.utf8_upper(rows["currency"]), '"}', "",
    )  # fmt: skip
    values = pc.binary_join_element_wise(*texts).cast(pa.binary()).combine_chunks()
    return pa.RecordBatch.from_arrays([batch["key"], values], ["key", "value"])
