"""Raises an alert when a sensor is silent for ten minutes: a processor with state and a timer of its own.

    python examples/streams/silent_sensors.py

``transformWithState`` calls the processor for each sensor with its new readings, and when the watermark has passed a
timer of the sensor. Needs PySpark 4.1, and RocksDB as state store.
"""

# ruff: noqa: N802, N803 (the names of methods and parameters are Spark's)

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from onceward import KafkaSink, StreamingPipeline, register

SERVERS = "localhost:9092"
SILENCE_MS = 10 * 60 * 1000


class SilenceAlert(StatefulProcessor):
    """Keeps the newest reading of each sensor, and a timer ten minutes after it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._newest = handle.getValueState("newest", "at_ms long, celsius double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        readings = sorted((row.at_ms, row.celsius) for row in rows)
        newest = self._newest.get()
        if newest is not None:
            self._handle.deleteTimer(newest[0] + SILENCE_MS)
        for reading in readings:
            if newest is not None and reading[0] > newest[0] + SILENCE_MS:  # it began and ended since the last batch
                yield alert(key, newest)
            newest = max(newest or reading, reading)  # a late reading is not the newest
        assert newest is not None, "Spark calls this with at least one row"
        self._newest.update(newest)
        self._handle.registerTimer(newest[0] + SILENCE_MS)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        newest = self._newest.get()
        assert newest is not None, "a timer has a reading"
        yield alert(key, newest)
        self._newest.clear()

    def close(self) -> None:
        pass


def alert(key: Any, newest: tuple[Any, ...]) -> Row:
    since = datetime.fromtimestamp(newest[0] / 1000, UTC)
    return Row(key=key[0], value=f"silent since {since:%H:%M:%S}, {newest[1]} °C")


def alerts(readings: DataFrame) -> DataFrame:
    reading = F.from_json(F.col("value").cast("string"), "celsius double, at timestamp")
    return (
        readings.select(F.col("key").cast("string").alias("sensor"), reading.alias("it"))
        .selectExpr("sensor", "it.celsius", "it.at", "unix_millis(it.at) as at_ms")
        .withWatermark("at", "1 minute")
        .groupBy("sensor")
        .transformWithState(SilenceAlert(), "key string, value string", outputMode="append", timeMode="eventTime")
    )


def query(spark: SparkSession) -> DataFrame:
    register(spark)
    spark.conf.set("spark.sql.shuffle.partitions", 2)  # as many tasks and state stores
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", SERVERS)
    return alerts(source.option("subscribe", "streams-readings").option("startingOffsets", "earliest").load())


if __name__ == "__main__":
    StreamingPipeline(
        job="silent-sensors",
        query=query,
        sink=KafkaSink(SERVERS, topic="streams-alerts"),
        checkpoint_location="checkpoints/silent-sensors",
        output_mode="append",
        trigger={"processingTime": "1 second"},
    ).run()
