"""The queries in Spark's functions: from records to the columns ``key`` and ``value``."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.queries.workloads import LATE_MS, TIME_DIGITS, WINDOW_MS, QueryWorkload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["OUTPUT_MODES", "QUERIES"]


def _copy(records: "DataFrame") -> "DataFrame":
    return records.select("key", "value")


def _running_count(records: "DataFrame") -> "DataFrame":
    return records.groupBy("key").count().selectExpr("key", "cast(count as string) as value")


def _window_count(records: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import window

    at = f"timestamp_millis(cast(substring(cast(value as string), 1, {TIME_DIGITS}) as long)) as at"
    timed = records.selectExpr("key", at).withWatermark("at", f"{LATE_MS} milliseconds")
    counts = timed.groupBy(window("at", f"{WINDOW_MS} milliseconds"), "key").count()
    key = "concat(cast(key as string), '@', cast(unix_millis(window.start) as string)) as key"
    return counts.selectExpr(key, "cast(count as string) as value")


QUERIES: "dict[QueryWorkload, Callable[[DataFrame], DataFrame]]" = {
    QueryWorkload.COPY: _copy,
    QueryWorkload.RUNNING_COUNT: _running_count,
    QueryWorkload.WINDOW_COUNT: _window_count,
}
OUTPUT_MODES = {
    QueryWorkload.COPY: "append",
    QueryWorkload.RUNNING_COUNT: "update",
    QueryWorkload.WINDOW_COUNT: "append",
}
