"""Routes record by record: valid readings go to one topic, all others to a dead-letter topic.

    python examples/routing.py

Needs a broker at localhost:9092 with the topics ``readings``, ``valid-readings`` and ``rejected-readings``. The same
transactions write both outputs, so each reading is in exactly one of them, once, whatever crashes.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from onceward import KafkaSink, KafkaSource, Pipeline

VALID, REJECTED = "valid-readings", "rejected-readings"


def route(df: DataFrame) -> DataFrame:
    """Name the topic of each record, and the reason in a header of the dead letters, whose value stays as it came."""
    reading = F.from_json(F.col("value").cast("string"), "sensor string, celsius double")
    reason = (
        F.when(reading.sensor.isNull() | reading.celsius.isNull(), "not a reading")
        .when(reading.celsius < -273.15, "below absolute zero")
        .otherwise(None)
    )
    header = F.struct(F.lit("reason").alias("key"), F.col("reason").cast("binary").alias("value"))
    return df.withColumn("reason", reason).select(
        "key",
        "value",
        F.when(F.col("reason").isNull(), VALID).otherwise(REJECTED).alias("topic"),
        F.when(F.col("reason").isNotNull(), F.array(header)).alias("headers"),
    )


Pipeline(
    job="readings",
    source=KafkaSource("localhost:9092", topics=["readings"], start="earliest"),
    transform=route,
    # every topic that the column may name; another name aborts the checkpoint
    sink=KafkaSink("localhost:9092", topics=[VALID, REJECTED]),
).run()
