"""``python -m benchmarks reading``: format("onceward") beside the DataFrame of a job, in one session; JSON and a table.

Both read the same columns of the same topic in alternating rounds and write nothing: two columns, then all of them. A
DataFrame of a job reads only the columns that are used; a Python data source reads those of its schema. Also times the
triggers of a query that is idle.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

import onceward
from benchmarks.machine import describe_machine
from benchmarks.results import RESULTS, new_directory, say, write
from benchmarks.scratch import scratch_directory
from benchmarks.topics import Topics
from benchmarks.workloads import Workload, record
from onceward import KafkaSource
from onceward.connectors.interfaces import JobContext
from onceward.dev.kafka import LocalKafka
from onceward.driver.spark.session import make_session
from onceward.protocol.values import JobName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main"]

_TOPIC = "read"
_PARTITIONS = 4
_USED = ("key", "value")
_IDLE_S = 10.0


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; return the directory with the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks reading", description=__doc__)
    parser.add_argument("--records", type=int, help="default: 4,000,000")
    parser.add_argument("--rounds", type=int, default=6, help="after a first one that does not count")
    parser.add_argument("--quick", action="store_true", help="20,000 records: whether it works, not how fast it is")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the directory of the result goes")
    options = parser.parse_args(arguments)
    records = options.records or (20_000 if options.quick else 4_000_000)
    with scratch_directory(None) as scratch:
        machine = describe_machine(scratch)
    with LocalKafka(heap="768m") as kafka:
        topics = Topics(kafka.bootstrap_servers, _PARTITIONS)
        topics.create(_TOPIC)
        topics.fill(_TOPIC, partial(record, Workload.COPY), records)
        spark, _ = make_session("reading")
        onceward.register(spark)
        read = {
            "job, two columns": _of_a_job(spark, kafka.bootstrap_servers, _USED),
            "format, two columns": lambda: _of_the_format(spark.read.schema("key binary, value binary"), kafka),
            "job, all columns": _of_a_job(spark, kafka.bootstrap_servers, None),
            "format, all columns": lambda: _of_the_format(spark.read, kafka),
        }
        rates = _rates(read, records, options.rounds)
        idle = _idle(spark, kafka)
        spark.stop()
    ratios = {
        columns: median(a / b for a, b in zip(rates[f"format, {columns}"], rates[f"job, {columns}"], strict=True))
        for columns in ("two columns", "all columns")
    }
    results = {
        "machine": machine, "quick": options.quick, "records": records, "records_per_s": rates, "ratio": ratios,
        "idle_trigger_ms": idle,
    }  # fmt: skip
    place = new_directory(options.results, "reading")
    write(results, place)
    table = Table("read by", "records/s, median", title="reading into Spark", title_justify="left")
    for name, measured in rates.items():
        table.add_row(name, f"{median(measured):,.0f}")
    console = Console()
    console.print(table)
    for columns, ratio in ratios.items():
        console.print(f"{columns}: the format reads {ratio:.2f} times what a job reads (median of the rounds)")
    console.print(f"an idle trigger took {median(idle):.0f} ms ({min(idle)} to {max(idle)}, {len(idle)} triggers)")
    console.print(f"machine: {machine}\n{place}", markup=False)
    return place


def _of_a_job(spark: "SparkSession", servers: str, used: Sequence[str] | None) -> "Callable[[], DataFrame]":
    """Return what makes the DataFrame that a job's transform is given, over the whole topic. ``used``: the columns that
    the transform uses; None = all."""
    source = KafkaSource(servers, [_TOPIC], start="earliest", adaptive=False, mirror_offsets=False)
    source.open(JobContext(job=JobName("reading"), checkpoint_timeout=timedelta(minutes=2)))
    splits = source.plan(source.resolve()).splits
    read, schema = source.read(), source.schema
    source.close()
    columns = frozenset(used or spark.createDataFrame([], schema).columns)

    def rows(numbers: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for number in [number for batch in numbers for number in batch.column(0).to_pylist()]:
            yield from read(splits[number], columns)

    return lambda: spark.range(0, len(splits), 1, len(splits)).mapInArrow(rows, schema)


def _of_the_format(reader: Any, kafka: LocalKafka) -> "DataFrame":
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": _TOPIC}
    df: DataFrame = reader.format("onceward").options(**options).load()
    return df


def _rates(read: "dict[str, Callable[[], DataFrame]]", records: int, rounds: int) -> dict[str, list[float]]:
    """Return records per second of each round."""
    rates: dict[str, list[float]] = {name: [] for name in read}
    for number in range(rounds + 1):
        for name, make in read.items():
            began = time.perf_counter()
            make().where("value is not null").select(*_USED).write.format("noop").mode("overwrite").save()
            if number:
                rates[name].append(records / (time.perf_counter() - began))
        say(f"round {number} of {rounds}")
    return rates


def _idle(spark: "SparkSession", kafka: LocalKafka) -> list[int]:
    """Return the ms of triggers without new records, whose only work is to ask for the ends of the partitions."""
    with tempfile.TemporaryDirectory() as place:
        df = _of_the_format(spark.readStream, kafka)
        writer = df.writeStream.format("noop").option("checkpointLocation", place)
        # Spark reports idle triggers at most this often.
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
        query = writer.trigger(processingTime="100 milliseconds").start()
        query.awaitTermination(int(_IDLE_S))
        query.stop()
        idle = [one.durationMs["triggerExecution"] for one in query.recentProgress if "addBatch" not in one.durationMs]
    return idle[1:]  # the first one starts the planner and resolves the start
