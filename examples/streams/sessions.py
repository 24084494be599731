"""Sessions of users: what a user does with breaks of at most 30 minutes, from login to logout.

    python examples/streams/sessions.py

A session window grows with every action and merges with the next one where a late action fills the break. It is written
once, when the watermark has passed its end.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from onceward import KafkaSink, StreamingPipeline, register

SERVERS = "localhost:9092"


def sessions(actions: DataFrame) -> DataFrame:
    action = F.from_json(F.col("value").cast("string"), "action string, at timestamp")
    found = (
        actions.select(F.col("key").cast("string").alias("user"), action.alias("it"))
        .select("user", "it.*")
        .withWatermark("at", "10 minutes")
        .groupBy(F.session_window("at", "30 minutes"), "user")
        .agg(
            F.min("at").alias("first"),
            F.max("at").alias("last"),
            F.count("*").alias("actions"),
            F.expr("bool_or(action = 'logout')").alias("logged_out"),
        )
    )
    return found.selectExpr("user as key", "to_json(struct(first, last, actions, logged_out)) as value")


def query(spark: SparkSession) -> DataFrame:
    register(spark)
    spark.conf.set("spark.sql.shuffle.partitions", 2)  # as many tasks and state stores
    source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", SERVERS)
    return sessions(source.option("subscribe", "streams-actions").option("startingOffsets", "earliest").load())


if __name__ == "__main__":
    StreamingPipeline(
        job="sessions",
        query=query,
        sink=KafkaSink(SERVERS, topic="streams-sessions"),
        checkpoint_location="checkpoints/sessions",
        output_mode="append",
        trigger={"processingTime": "1 second"},
    ).run()
