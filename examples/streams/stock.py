"""Keeps the stock of each product as a table in the compacted topic ``stock`` (Kafka Streams: a KTable).

    python examples/streams/stock.py

A product that is sold out leaves the table: its value is a tombstone. reorders.py is a job that reads the table.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from onceward import KafkaSink, StreamingPipeline, register

SERVERS = "localhost:9092"


def stock(movements: DataFrame) -> DataFrame:
    pieces = F.col("value").cast("string").cast("long")
    totals = movements.groupBy(F.col("key").cast("string").alias("key")).agg(F.sum(pieces).alias("pieces"))
    return totals.selectExpr("key", "cast(nullif(pieces, 0) as string) as value")


def query(spark: SparkSession) -> DataFrame:
    register(spark)
    spark.conf.set("spark.sql.shuffle.partitions", 2)  # as many tasks and state stores
    source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", SERVERS)
    return stock(source.option("subscribe", "streams-movements").option("startingOffsets", "earliest").load())


if __name__ == "__main__":
    StreamingPipeline(
        job="stock",
        query=query,
        sink=KafkaSink(SERVERS, topic="streams-stock"),
        checkpoint_location="checkpoints/stock",
        output_mode="update",
        trigger={"processingTime": "1 second"},
    ).run()
