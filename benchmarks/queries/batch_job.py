"""One query through several sinks in turn, in one session: ``python -m benchmarks.queries.batch_job OPTIONS-AS-JSON``.

All sinks have the same JVM, warmed up alike, and the same load. Each turn is a query with a checkpointLocation of its
own, which reads what arrives from its start on. Appends one JSON line per turn to the result.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onceward
from benchmarks.queries.dataframes import OUTPUT_MODES, QUERIES
from benchmarks.queries.workloads import QueryWorkload
from onceward import KafkaSink, StreamSink
from onceward.driver.journal import EVENTS_VARIABLE
from onceward.driver.spark.session import make_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__: list[str] = []


class _EnoughError(Exception):
    """Ends a query before its next batch: every earlier one then has its progress."""


class _Timed:
    """Calls a sink; notes when Spark called it, and when it returned."""

    def __init__(self, sink: "Callable[[DataFrame, int], None]", batches: int) -> None:
        self._sink, self._batches = sink, batches
        self.calls: dict[int, tuple[float, float]] = {}

    def __call__(self, df: "DataFrame", number: int) -> None:
        called = time.time()
        if len(self.calls) >= self._batches:
            raise _EnoughError
        self._sink(df, number)
        self.calls[number] = (called, time.time())


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    spark, _ = make_session("queries")
    onceward.register(spark)
    for turn in options["turns"]:
        done = _turn(spark, options, turn)
        with Path(options["result"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(done) + "\n")
    spark.stop()


def _turn(spark: "SparkSession", options: dict[str, Any], turn: dict[str, Any]) -> dict[str, Any]:
    from pyspark.errors import StreamingQueryException

    workload = QueryWorkload(options["workload"])
    source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", options["servers"])
    records = source.option("subscribe", options["source"]).option("startingOffsets", "latest").load()
    with ExitStack() as stack:
        timed = _Timed(_sink(stack, spark, options, turn), options["batches"])
        query = (
            QUERIES[workload](records)
            .writeStream.outputMode(OUTPUT_MODES[workload])
            .option("checkpointLocation", f"{options['scratch']}/{turn['name']}")
            .foreachBatch(timed)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if _EnoughError.__name__ not in str(error):
                raise
        progress = [json.loads(one.json) for one in query.recentProgress]
    journal = Path(os.environ[EVENTS_VARIABLE])
    events = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    return {
        **turn,
        "progress": progress,
        "calls": timed.calls,
        "events": [event for event in events if event["job"] == turn["name"]],
    }


def _sink(
    stack: ExitStack, spark: "SparkSession", options: dict[str, Any], turn: dict[str, Any]
) -> "Callable[[DataFrame, int], None]":
    match turn["system"]:
        case "ours":
            return stack.enter_context(
                StreamSink(
                    spark,
                    job=turn["name"],
                    sink=KafkaSink(options["servers"], topic=turn["name"]),
                    state_dir=f"{options['scratch']}/state",
                )
            )
        case "noop-python":
            return _noop_in_python
        case _:
            return _noop


def _noop(df: "DataFrame", number: int) -> None:
    df.write.format("noop").mode("append").save()


def _noop_in_python(df: "DataFrame", number: int) -> None:
    """What a sink in Python asks of Spark: a worker in each task that takes the rows, and a row from each of them."""
    columns = ", ".join(df.columns)
    df.selectExpr("*", f"xxhash64({columns}) as digest").mapInArrow(_counted, "rows long").collect()


def _counted(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow

    rows = sum(batch.num_rows for batch in batches)
    yield pyarrow.RecordBatch.from_pydict({"rows": [rows]})


if __name__ == "__main__":
    main()
