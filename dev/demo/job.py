"""The demo's job: how late was every flight? Runs in a separate driver process that the demo kills and restarts.

    python -m onceward.dev.demo.job --brokers HOST:PORT --coordinator HOST:PORT [--table DIRECTORY]

Every message of ``flights`` belongs to one of four classes:

    unparsable   no value, or not one JSON object with the types of FLIGHT      -> flights-rejected
    cancelled    readable, and has no departure time                            -> dropped
    incomplete   departed, but one of the fields NEEDED is null or missing      -> flights-rejected
    flown        all others                                                     -> flights-delayed

Keys are kept. Every flown flight is also a row of the Delta table, if one is named. One decision commits both topics
and the table, so a flight is never in both topics, nor in none, and its row is there once.
"""

import argparse
import logging
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from onceward import CheckpointSettings, DeltaSink, KafkaSink, KafkaSource, Output, Pipeline
from onceward.dev.demo.topics import COLUMNS, DELAYED, FLIGHTS, JOB, OUTPUTS, REJECTED

__all__ = ["FLIGHT", "NEEDED", "delays", "pipeline"]

FLIGHT = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour string"
)
NEEDED = ("time_hour", "carrier", "flight", "origin", "dest", "dep_delay", "arr_delay")


def delays(df: DataFrame) -> DataFrame:
    """Return columns key, topic, value: the delay of every flown flight, and rejected messages with the reason; and
    ``row``, which is what the value of a flown flight has.

    ``delay`` is minutes late at arrival, ``gained`` the minutes made up in the air.
    """
    parsed = F.from_json(
        F.col("value").cast("string"), f"{FLIGHT}, unreadable string", {"columnNameOfCorruptRecord": "unreadable"}
    )
    complete = reduce(and_, [F.col("f")[name].isNotNull() for name in NEEDED])
    reason = F.when(F.col("f").isNull() | F.col("f.unreadable").isNotNull(), "unparsable").when(~complete, "incomplete")
    row = F.struct(
        *(f"f.{name}" for name in ("time_hour", "carrier", "flight", "origin", "dest")),
        F.col("f.arr_delay").alias("delay"),
        (F.col("f.dep_delay") - F.col("f.arr_delay")).alias("gained"),
    )
    rejected = F.to_json(F.struct("reason", F.col("value").cast("string").alias("record")))
    return (
        df.select("key", "value", parsed.alias("f"))
        .where("f is null or f.unreadable is not null or f.dep_time is not null")
        .withColumn("reason", reason)
        .select(
            "key",
            F.when(F.col("reason").isNull(), DELAYED).otherwise(REJECTED).alias("topic"),
            F.when(F.col("reason").isNull(), F.to_json(row)).otherwise(rejected).alias("value"),
            row.alias("row"),
        )
    )


def pipeline(
    brokers: str, coordinator: str, *, table: str | None = None, per_checkpoint: int | None = None
) -> Pipeline:
    """Return the whole job; a checkpoint reads at most ``per_checkpoint`` records, by default all available ones.
    Without a ``table``, it writes to the topics alone."""
    outputs = {"topics": Output(KafkaSink(brokers, topics=list(OUTPUTS)), select=["key", "topic", "value"])}
    if table is not None:
        outputs["lake"] = Output(
            DeltaSink(table), where=f"topic = '{DELAYED}'", select=[f"row.{name}" for name in COLUMNS]
        )
    return Pipeline(
        job=JOB,
        source=KafkaSource(
            brokers,
            topics=[FLIGHTS],
            start="earliest",
            max_offsets_per_checkpoint=per_checkpoint,
            adaptive=per_checkpoint is None,
        ),
        transform=delays,
        outputs=outputs,
        coordinator=coordinator,
        settings=CheckpointSettings(interval="1s", num_retained=1000),
    )


def main() -> None:
    """Run the driver's process; errors become its exit code."""
    parser = argparse.ArgumentParser(description="how late was every flight?")
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--table")
    parser.add_argument("--per-checkpoint", type=int)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    job = pipeline(
        arguments.brokers, arguments.coordinator, table=arguments.table, per_checkpoint=arguments.per_checkpoint
    )
    job.run()


if __name__ == "__main__":
    main()
