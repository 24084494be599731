"""Joins each order with its payment, if that comes within the hour: two streams joined within a window.

    python examples/streams/paid_orders.py

A left outer join: a paid order is written when the second of the two arrives, an unpaid one when the watermark says
that no payment in time can arrive any more.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from onceward import KafkaSink, StreamingPipeline, register

SERVERS = "localhost:9092"


def join(orders: DataFrame, payments: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), "order long, cents long, at timestamp")
    ordered = (
        orders.select(order.alias("it"))
        .select("it.order", "it.cents", "it.at")
        .withWatermark("at", "1 hour")
        .dropDuplicatesWithinWatermark(["order"])
    )
    paid = (
        payments.select(order.alias("it"))
        .selectExpr("it.order as paid_order", "it.at as paid_at")
        .withWatermark("paid_at", "1 hour")
    )
    in_time = "order = paid_order and paid_at >= at and paid_at <= at + interval 1 hour"
    joined = ordered.join(paid, F.expr(in_time), "left_outer")
    return joined.selectExpr("cast(order as string) as key", "to_json(struct(cents, at, paid_at)) as value")


def query(spark: SparkSession) -> DataFrame:
    register(spark)
    spark.conf.set("spark.sql.shuffle.partitions", 2)  # as many tasks and state stores
    source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", SERVERS)
    source = source.option("startingOffsets", "earliest")
    orders = source.option("subscribe", "streams-orders").load()
    return join(orders, source.option("subscribe", "streams-payments").load())


if __name__ == "__main__":
    StreamingPipeline(
        job="paid-orders",
        query=query,
        sink=KafkaSink(SERVERS, topic="streams-paid-orders"),
        checkpoint_location="checkpoints/paid-orders",
        output_mode="append",
        trigger={"processingTime": "1 second"},
    ).run()
