"""Adds to each page view the town of its user: a stream joined with a table.

    python examples/streams/page_views.py

The table is the compacted topic ``streams-users``: the newest value of each key, without the keys whose newest value
is a tombstone. Each batch joins with the table as it is then. Views of unknown users have no town.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from onceward import KafkaSink, StreamingPipeline, kafka_table, register

SERVERS = "localhost:9092"


def enrich(views: DataFrame, users: DataFrame) -> DataFrame:
    page = F.get_json_object(F.col("value").cast("string"), "$.page").alias("page")
    town = F.get_json_object(F.col("value").cast("string"), "$.town").alias("town")
    enriched = views.select("key", page).join(users.select("key", town), "key", "left_outer")
    return enriched.selectExpr("key", "to_json(struct(page, town)) as value")


def query(spark: SparkSession) -> DataFrame:
    register(spark)
    spark.conf.set("spark.sql.shuffle.partitions", 2)  # as many tasks
    source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", SERVERS)
    views = source.option("subscribe", "streams-views").option("startingOffsets", "earliest").load()
    return enrich(views, kafka_table(spark, SERVERS, "streams-users"))


if __name__ == "__main__":
    StreamingPipeline(
        job="page-views",
        query=query,
        sink=KafkaSink(SERVERS, topic="streams-enriched-views"),
        checkpoint_location="checkpoints/page-views",
        trigger={"processingTime": "1 second"},
    ).run()
