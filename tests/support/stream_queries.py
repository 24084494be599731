"""Structured Streaming queries with every kind of state, fed from files.

``python -m tests.support.stream_queries SPEC-AS-JSON`` is one life of one of them. The oracles share no code with the
queries.
"""

# ruff: noqa: N802, N803 (the names of a processor's methods and parameters are Spark's)

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import Row, functions
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from onceward import CheckpointSettings, KafkaCluster, KafkaSink, Restart, StreamingPipeline
from onceward.common.killpoints import KillPoint
from onceward.driver.spark.session import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "FAST_STATE",
    "NAMED_STATE",
    "QUERIES",
    "ROCKSDB",
    "VISITS",
    "Changes",
    "File",
    "Query",
    "expected",
    "feed",
    "read",
    "records",
    "session",
]

File: TypeAlias = Sequence[tuple[str, int]]
"""Key and value of each record; a batch reads one file."""
Changes: TypeAlias = Mapping[bytes, Sequence[bytes]]
"""Key -> its values in the order in which they are written."""

_DELAY_S = 100
"""Of the watermark. No record is late."""
_WINDOW_S = 150
_SILENCE_S = 90
"""Ends a session. Some breaks of a key are shorter, some longer."""
_FOLLOWS_S = 150
"""How long a record waits for one that follows it. It spans two files."""

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
NAMED_STATE = {**ROCKSDB, "spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
"""Spark's commit log names the files of the state that the batch has written."""
FAST_STATE = {
    **ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "64",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.join.stateFormatVersion": "4",
}
"""As docs/how-to/streaming.md recommends for speed, from PySpark 4.3 on."""

VISITS = (
    # the third batch: Spark's commit log of the second one is written
    (KillPoint.BATCH_BEFORE_OFFER, 3),
    (KillPoint.BATCH_AFTER_OFFER, 2),
    (KillPoint.BATCH_AFTER_RUN, 2),
    # the batch is completed and missing in Spark's commit log: the next drivers run it again for its state only
    (KillPoint.BATCH_AFTER_SETTLE, 2),
    (KillPoint.BATCH_BEFORE_STATE, 1),
    (KillPoint.BATCH_AFTER_STATE, 1),
    # the batch is completed, and its transactions are lost: the next drivers write it again
    (KillPoint.DRIVER_AFTER_DECISION, 1),
    (KillPoint.BATCH_BEFORE_REPLAY, 1),
    (KillPoint.BATCH_AFTER_REPLAY, 1),
)
"""Kill points of a batch, and which visit kills: each driver dies in what the one before has left."""


def records(files: int, each: int = 20) -> list[File]:
    """Values rise from 300: Spark takes a record of the epoch for late."""
    return [[(f"k{(file + n) % 7}", 100 * file + n) for n in range(each)] for file in range(3, files + 3)]


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


def _watermark(files: Sequence[File]) -> int:
    """The last one."""
    return max(v for file in files for _, v in file) - _DELAY_S


def _windows(files: Sequence[File]) -> Changes:
    """Each window that the watermark has passed writes one count of every key in it."""
    counts = Counter((v // _WINDOW_S * _WINDOW_S, k) for file in files for k, v in file)
    passed = _watermark(files) - _WINDOW_S
    return {b"%d %s" % (at, k.encode()): [b"%d" % n] for (at, k), n in counts.items() if at <= passed}


def _firsts(files: Sequence[File]) -> Changes:
    """Each key is written once in every window."""
    return {b"%d %s" % (v // _WINDOW_S * _WINDOW_S, k.encode()): [b"seen"] for file in files for k, v in file}


def _pairs(files: Sequence[File]) -> Changes:
    """Each record is written with every even one of its key that follows it in time; alone if none has come until the
    watermark has passed."""
    rows = [row for file in files for row in file]
    written: dict[bytes, list[bytes]] = {}
    for k, v in rows:
        followers = [w for key, w in rows if key == k and w % 2 == 0 and v < w <= v + _FOLLOWS_S]
        for w in followers:
            written[b"%d %d" % (v, w)] = [k.encode()]
        if not followers and v + _FOLLOWS_S < _watermark(files):
            written[b"%d alone" % v] = [k.encode()]
    return written


def _by_session(files: Sequence[File]) -> dict[str, list[list[int]]]:
    """The times of each key, cut where it was silent."""
    found: dict[str, list[list[int]]] = {}
    for file in files:
        for k, v in file:
            sessions = found.setdefault(k, [[]])
            if sessions[-1] and v > sessions[-1][-1] + _SILENCE_S:
                sessions.append([])
            sessions[-1].append(v)
    return found


def _sessions(files: Sequence[File]) -> Changes:
    """Each session that the watermark has passed is written once."""
    return {
        b"%d %s" % (times[0], k.encode()): [b"%d" % len(times)]
        for k, sessions in _by_session(files).items()
        for times in sessions
        if times[-1] + _SILENCE_S <= _watermark(files)
    }


def _silences(files: Sequence[File]) -> Changes:
    """Each session is written when its key is back, or when the watermark has passed its end."""
    back = {
        b"%d %s" % (times[0], k.encode()): [b"%d" % len(times)]
        for k, sessions in _by_session(files).items()
        for times in sessions[:-1]
    }
    return {**_sessions(files), **back}


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


def read(spark: "SparkSession", directory: Path) -> "DataFrame":
    """The records of all files, one file in each batch."""
    return spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(directory))


def _running_count(spark: "SparkSession", directory: Path) -> "DataFrame":
    totals = read(spark, directory).groupBy("k").agg(functions.count("*").alias("n"), functions.sum("v").alias("s"))
    return totals.selectExpr("k AS key", "concat_ws('|', n, s) AS value")


def _timed(spark: "SparkSession", directory: Path) -> "DataFrame":
    """Values are seconds since the epoch."""
    timed = read(spark, directory).withColumn("at", functions.timestamp_seconds("v"))
    return timed.withWatermark("at", f"{_DELAY_S} seconds")


def _window_count(spark: "SparkSession", directory: Path) -> "DataFrame":
    counts = _timed(spark, directory).groupBy(functions.window("at", f"{_WINDOW_S} seconds"), "k").count()
    return counts.selectExpr("concat_ws(' ', unix_seconds(window.start), k) AS key", "string(count) AS value")


def _deduplication(spark: "SparkSession", directory: Path) -> "DataFrame":
    begin = functions.timestamp_seconds(functions.expr(f"v - v % {_WINDOW_S}"))
    rows = read(spark, directory).select("k", begin.alias("at")).withWatermark("at", f"{_DELAY_S} seconds")
    once = rows.dropDuplicates(["k", "at"])
    return once.selectExpr("concat_ws(' ', unix_seconds(at), k) AS key", "'seen' AS value")


def _outer_join(spark: "SparkSession", directory: Path) -> "DataFrame":
    follows = f"one.k = next.k AND next.at > one.at AND next.at <= one.at + INTERVAL {_FOLLOWS_S} SECONDS"
    even = _timed(spark, directory).where("v % 2 = 0").alias("next")
    pairs = _timed(spark, directory).alias("one").join(even, functions.expr(follows), "leftOuter")
    return pairs.selectExpr("concat_ws(' ', one.v, coalesce(string(next.v), 'alone')) AS key", "one.k AS value")


def _session_windows(spark: "SparkSession", directory: Path) -> "DataFrame":
    windows = functions.session_window("at", f"{_SILENCE_S} seconds")
    counts = _timed(spark, directory).groupBy(windows, "k").count()
    return counts.selectExpr("concat_ws(' ', unix_seconds(session_window.start), k) AS key", "string(count) AS value")


class _Silence(StatefulProcessor):
    """Keeps the running session of a key, and a timer at its end."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._session = handle.getValueState("session", "first long, last long, count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        running = self._session.get()
        if running is not None:
            self._handle.deleteTimer(self._ends(running))
        for v in sorted(row.v for row in rows):
            if running is not None and v > running[1] + _SILENCE_S:
                yield self._written(key, running)
                running = None
            running = (v, v, 1) if running is None else (running[0], v, running[2] + 1)
        assert running is not None, "Spark calls this with at least one row"
        self._session.update(running)
        self._handle.registerTimer(self._ends(running))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        running = self._session.get()
        assert running is not None, "a timer has a session"
        yield self._written(key, running)
        self._session.clear()

    def close(self) -> None:
        pass

    def _ends(self, running: tuple[Any, ...]) -> int:
        return 1000 * int(running[1] + _SILENCE_S)

    def _written(self, key: Any, running: tuple[Any, ...]) -> Row:
        return Row(key=f"{running[0]} {key[0]}", value=str(running[2]))


def _processor(spark: "SparkSession", directory: Path) -> "DataFrame":
    grouped = _timed(spark, directory).groupBy("k")
    return grouped.transformWithState(_Silence(), "key string, value string", outputMode="append", timeMode="eventTime")


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query, and what it must write."""

    output_mode: str
    build: "Callable[[SparkSession, Path], DataFrame]"
    oracle: Callable[[Sequence[File]], Changes]
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark that it needs."""


QUERIES: Mapping[str, Query] = {
    "running-count": Query(output_mode="update", build=_running_count, oracle=_totals),
    "window-count": Query(output_mode="append", build=_window_count, oracle=_windows),
    "deduplication": Query(output_mode="append", build=_deduplication, oracle=_firsts),
    "outer-join": Query(output_mode="append", build=_outer_join, oracle=_pairs),
    "session-windows": Query(output_mode="append", build=_session_windows, oracle=_sessions),
    "processor": Query(output_mode="append", build=_processor, oracle=_silences, settings=ROCKSDB),
}


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
        checkpoint_location=spec.get("checkpoint") or source.parent / "checkpoint",
        output_mode=query.output_mode,
        trigger=spec.get("trigger", {"availableNow": True}),
        spark=session(made, {**query.settings, **(spec.get("session") or {})}),
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
