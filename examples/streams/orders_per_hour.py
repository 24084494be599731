"""Orders per hour and category, in two queries of one program: every change at once, and each hour when it is over.

    python examples/streams/orders_per_hour.py

An order counts if it arrives at most an hour late (Kafka Streams: grace), and its second copy does not count. Output
mode "update" writes the totals that a batch has changed. Mode "append" writes an hour once, when the watermark has
passed its end (Kafka Streams: suppress until the window closes).
"""

from contextlib import ExitStack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from onceward import KafkaSink, StreamSink, register

SERVERS = "localhost:9092"


def per_hour(orders: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), "order long, category string, cents long, at timestamp")
    totals = (
        orders.select(order.alias("it"))
        .select("it.*")
        .withWatermark("at", "1 hour")
        .dropDuplicatesWithinWatermark(["order"])
        .groupBy(F.window("at", "1 hour"), "category")
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
    )
    hour = "date_format(window.start, \"yyyy-MM-dd'T'HH\")"
    return totals.selectExpr(f"concat({hour}, ' ', category) as key", "to_json(struct(orders, cents)) as value")


def read(spark: SparkSession, topic: str) -> DataFrame:
    source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", SERVERS)
    return source.option("subscribe", topic).option("startingOffsets", "earliest").load()


if __name__ == "__main__":
    # as many tasks and state stores
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    register(spark)
    totals = per_hour(read(spark, "streams-orders"))
    with ExitStack() as stack:
        running = []
        for mode, name in (("update", "orders-per-hour"), ("append", "final-orders-per-hour")):
            sink = stack.enter_context(StreamSink(spark, job=name, sink=KafkaSink(SERVERS, topic=f"streams-{name}")))
            query = (
                totals.writeStream.outputMode(mode)
                .option("checkpointLocation", f"checkpoints/{name}")
                .trigger(processingTime="1 second")
                .foreachBatch(sink)
                .start()
            )
            running.append((sink, query))
        StreamSink.await_all(running)
