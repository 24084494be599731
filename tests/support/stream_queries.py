"""Structured Streaming queries with state, fed from files: a running count and sum by key, and counts in windows.

``python -m tests.support.stream_queries SPEC-AS-JSON`` is one life of one of them. The oracles share no code with the
queries.
"""

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import functions

from onceward import CheckpointSettings, KafkaCluster, KafkaSink, Restart, StreamingPipeline
from onceward.coordinator.pipeline.spark import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "NAMED_STATE",
    "QUERIES",
    "ROCKSDB",
    "Changes",
    "File",
    "Query",
    "expected",
    "feed",
    "records",
    "running_count",
    "session",
    "writer",
]

File: TypeAlias = Sequence[tuple[str, int]]
"""Key and value of each record; a batch reads one file."""
Changes: TypeAlias = Mapping[bytes, Sequence[bytes]]
"""Key -> its values in the order in which they are written."""

_WINDOW_S, _DELAY_S = 150, 100

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
NAMED_STATE = {**ROCKSDB, "spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
"""Spark's commit log names the files of the state that the batch has written."""


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
    return Counter((key, value) for key, values in _totals(files).items() for value in values)


def _totals(files: Sequence[File]) -> Changes:
    """Each batch writes the new count and sum of every key that it touches."""
    totals: dict[str, tuple[int, int]] = {}
    written: dict[bytes, list[bytes]] = {}
    for file in files:
        for k, v in file:
            count, total = totals.get(k, (0, 0))
            totals[k] = count + 1, total + v
        for k in {k for k, _ in file}:
            written.setdefault(k.encode(), []).append(b"%d|%d" % totals[k])
    return written


def _windows(files: Sequence[File]) -> Changes:
    """Each window that the watermark has passed writes one count of every key in it. No record is late."""
    counts = Counter((v // _WINDOW_S * _WINDOW_S, k) for file in files for k, v in file)
    watermark = max(v for file in files for _, v in file) - _DELAY_S
    return {b"%d %s" % (at, k.encode()): [b"%d" % n] for (at, k), n in counts.items() if at + _WINDOW_S <= watermark}


def session(spark: "SparkSession", more: Mapping[str, str] | None = None) -> "SparkSession":
    """A session with two shuffle partitions, in the application of ``spark``. ``more``: further settings."""
    small = spark.newSession()
    for name, value in {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
        "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
        **(more or {}),
    }.items():
        small.conf.set(name, value)
    return small


def _read(spark: "SparkSession", directory: Path) -> "DataFrame":
    return spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(directory))


def running_count(spark: "SparkSession", directory: Path) -> "DataFrame":
    totals = _read(spark, directory).groupBy("k").agg(functions.count("*").alias("n"), functions.sum("v").alias("s"))
    return totals.selectExpr("k AS key", "concat_ws('|', n, s) AS value")


def window_count(spark: "SparkSession", directory: Path) -> "DataFrame":
    """Values are seconds since the epoch."""
    timed = _read(spark, directory).selectExpr("k", "timestamp_seconds(v) AS at")
    windows = functions.window("at", f"{_WINDOW_S} seconds")
    counts = timed.withWatermark("at", f"{_DELAY_S} seconds").groupBy(windows, "k").count()
    return counts.selectExpr("concat_ws(' ', unix_seconds(window.start), k) AS key", "string(count) AS value")


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query, and what it must write."""

    output_mode: str
    build: "Callable[[SparkSession, Path], DataFrame]"
    oracle: Callable[[Sequence[File]], Changes]


QUERIES: Mapping[str, Query] = {
    "running-count": Query(output_mode="update", build=running_count, oracle=_totals),
    "window-count": Query(output_mode="append", build=window_count, oracle=_windows),
}


def writer(df: "DataFrame", checkpoint: Path) -> "DataStreamWriter":
    return df.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def main() -> int:
    """Process all files, and wait for more unless the trigger says otherwise, or die on the way."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    source = Path(spec["source"])
    query = QUERIES[spec.get("query", "running-count")]
    cluster = KafkaCluster(spec["servers"], name=spec["cluster"]) if "cluster" in spec else spec["servers"]
    made, _ = make_session("tests")
    pipeline = StreamingPipeline(
        job=spec["job"],
        query=lambda spark: query.build(spark, source),
        sink=KafkaSink(cluster, topic=spec["sink"]),
        checkpoint_location=source.parent / "checkpoint",
        output_mode=query.output_mode,
        trigger=spec.get("trigger", {"availableNow": True}),
        spark=session(made, spec.get("session")),
        coordinator=spec.get("coordinator"),
        settings=CheckpointSettings(**spec.get("settings", {})),
        state_dir=spec.get("state_dir"),
        restart=Restart(initial="100ms", maximum="1s"),
    )
    print("ended:", pipeline.run().value)
    made.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
