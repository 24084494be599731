"""Orders per hour and category, into a Delta table and a topic by one decision.

    python examples/streams/lake_windows.py

Each hour is written once, when the watermark has passed its end. A batch of the query is one commit of the table, and a
transaction of the topic: after any crash, both have the same hours.
"""

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from onceward import DeltaSink, KafkaSink, Output, StreamSink, register

SERVERS = "localhost:9092"
TABLE = "lake/hours"
COLUMNS = pa.schema(
    [
        ("hour", pa.timestamp("us", "UTC")),
        ("category", pa.string()),
        ("orders", pa.int64()),
        ("cents", pa.int64()),
    ]
)


def per_hour(orders: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), "order long, category string, cents long, at timestamp")
    return (
        orders.select(order.alias("it"))
        .select("it.*")
        .withWatermark("at", "1 hour")
        .dropDuplicatesWithinWatermark(["order"])
        .groupBy(F.window("at", "1 hour"), "category")
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
        .selectExpr("window.start as hour", "category", "orders", "cents")
    )


if __name__ == "__main__":
    DeltaTable.create(TABLE, COLUMNS, mode="ignore")  # once: later runs find the table
    # as many tasks and state stores
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    register(spark)
    source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", SERVERS)
    orders = source.option("subscribe", "streams-orders").option("startingOffsets", "earliest").load()
    key = "concat(date_format(hour, \"yyyy-MM-dd'T'HH\"), ' ', category) as key"
    outputs = {
        "lake": Output(DeltaSink(TABLE)),
        "topic": Output(
            KafkaSink(SERVERS, topic="streams-hours"), select=[key, "to_json(struct(orders, cents)) as value"]
        ),
    }
    with StreamSink(spark, job="lake-windows", outputs=outputs) as sink:
        query = (
            per_hour(orders)
            .writeStream.outputMode("append")
            .option("checkpointLocation", "checkpoints/lake-windows")
            .trigger(processingTime="1 second")
            .foreachBatch(sink)
            .start()
        )
        sink.await_termination(query)
