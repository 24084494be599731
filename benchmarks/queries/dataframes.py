"""The queries in Spark's functions: from records to the columns ``key`` and ``value``."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchmarks.queries.workloads import LATE_MS, MATCH_MS, RIGHT, TIME_DIGITS, WINDOW_MS, QueryWorkload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["COLUMNS", "OUTPUT_MODES", "QUERIES", "result"]

_TIME = f"substring(cast(value as string), 1, {TIME_DIGITS})"


def _copy(records: "DataFrame") -> "DataFrame":
    return records.select("key", "value")


def _running_count(records: "DataFrame") -> "DataFrame":
    return records.groupBy("key").count().selectExpr("key", "cast(count as string) as value")


def _window_count(records: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import window

    timed = records.selectExpr("key", f"timestamp_millis(cast({_TIME} as long)) as at").withWatermark(
        "at", f"{LATE_MS} milliseconds"
    )
    counts = timed.groupBy(window("at", f"{WINDOW_MS} milliseconds"), "key").count()
    key = "concat(cast(key as string), '@', cast(unix_millis(window.start) as string)) as key"
    return counts.selectExpr(key, "cast(count as string) as value")


def _join(left: "DataFrame", right: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import expr

    late = f"{LATE_MS} milliseconds"
    sides = [
        side.selectExpr(f"key as {name}_key", f"{_TIME} as {name}")
        .selectExpr("*", f"timestamp_millis(cast({name} as long)) as {name}_at")
        .withWatermark(f"{name}_at", late)
        for name, side in (("l", left), ("r", right))
    ]
    match = f"l_key = r_key and r_at between l_at and l_at + interval {MATCH_MS} milliseconds"
    return sides[0].join(sides[1], expr(match)).selectExpr("l_key as key", "concat(l, '-', r) as value")


QUERIES: "dict[QueryWorkload, Callable[[DataFrame], DataFrame]]" = {
    QueryWorkload.COPY: _copy,
    QueryWorkload.RUNNING_COUNT: _running_count,
    QueryWorkload.WINDOW_COUNT: _window_count,
}
COLUMNS: Mapping[QueryWorkload, str] = {QueryWorkload.RUNNING_COUNT: "key binary"}
"""Columns that a query reads; the others read keys and values."""
OUTPUT_MODES = {
    QueryWorkload.COPY: "append",
    QueryWorkload.RUNNING_COUNT: "update",
    QueryWorkload.WINDOW_COUNT: "append",
    QueryWorkload.JOIN: "append",
}


def result(workload: QueryWorkload, read: "Callable[[str], DataFrame]") -> "DataFrame":
    """Return the result of a query. ``read``: gives the records of a topic, by the end of its name."""
    if workload is QueryWorkload.JOIN:
        return _join(read(""), read(RIGHT))
    return QUERIES[workload](read(""))
