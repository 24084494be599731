"""A Structured Streaming query with state, fed from files: a running count and sum by key.

``python -m tests.support.running_count SPEC-AS-JSON`` is one life of it. The oracle shares no code with the query.
"""

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import functions

from onceward import KafkaSink, Restart, StreamingPipeline
from onceward.coordinator.pipeline.spark import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["File", "expected", "feed", "records", "running_count", "session", "writer"]

File: TypeAlias = Sequence[tuple[str, int]]
"""Key and value of each record; a batch reads one file."""


def records(files: int, each: int = 20) -> list[File]:
    return [[(f"k{(file + n) % 7}", 100 * file + n) for n in range(each)] for file in range(files)]


def feed(directory: Path, files: Sequence[File], *, first: int = 0) -> None:
    """Add files, whose times make Spark read them in order. ``first``: the number of the first one."""
    directory.mkdir(exist_ok=True)
    for number, file in enumerate(files, start=first):
        unseen = directory.parent / f"{number}.unseen"
        unseen.write_text("".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in file))
        os.utime(unseen, (1_700_000_000 + number, 1_700_000_000 + number))
        unseen.rename(directory / f"{number}.json")


def expected(files: Sequence[File]) -> Counter[tuple[bytes, bytes]]:
    """Each batch writes the new count and sum of every key that it touches."""
    totals: dict[str, tuple[int, int]] = {}
    written: Counter[tuple[bytes, bytes]] = Counter()
    for file in files:
        for k, v in file:
            count, total = totals.get(k, (0, 0))
            totals[k] = count + 1, total + v
        written.update((k.encode(), b"%d|%d" % totals[k]) for k in {k for k, _ in file})
    return written


def session(spark: "SparkSession") -> "SparkSession":
    """A session with two shuffle partitions, in the application of ``spark``."""
    small = spark.newSession()
    for name, value in {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
        "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    }.items():
        small.conf.set(name, value)
    return small


def running_count(spark: "SparkSession", directory: Path) -> "DataFrame":
    read = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(directory))
    totals = read.groupBy("k").agg(functions.count("*").alias("n"), functions.sum("v").alias("s"))
    return totals.selectExpr("k AS key", "concat_ws('|', n, s) AS value")


def writer(df: "DataFrame", checkpoint: Path) -> "DataStreamWriter":
    return df.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def main() -> int:
    """Process all files, or die on the way."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    source = Path(spec["source"])
    made, _ = make_session("tests")
    pipeline = StreamingPipeline(
        job=spec["job"],
        query=lambda spark: running_count(spark, source),
        sink=KafkaSink(spec["servers"], topic=spec["sink"]),
        checkpoint_location=source.parent / "checkpoint",
        output_mode="update",
        trigger={"availableNow": True},
        spark=session(made),
        state_dir=spec["state_dir"],
        restart=Restart(initial="100ms", maximum="1s"),
    )
    print("ended:", pipeline.run().value)
    made.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
