"""Counts the words of all lines so far. Each batch writes the new count of every word that it saw.

    python examples/streams/word_count.py

The output is a changelog: the newest value of a key is its count. After a crash no count is missing, doubled or older
than one before it. README.md says how to fill the topics.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from onceward import KafkaSink, StreamingPipeline, register

SERVERS = "localhost:9092"


def count_words(lines: DataFrame) -> DataFrame:
    words = lines.select(F.explode(F.split(F.lower(F.col("value").cast("string")), r"\W+")).alias("word"))
    return words.where("word != ''").groupBy("word").count().selectExpr("word as key", "cast(count as string) as value")


def query(spark: SparkSession) -> DataFrame:
    register(spark)
    spark.conf.set("spark.sql.shuffle.partitions", 2)  # as many tasks and state stores
    source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", SERVERS)
    return count_words(source.option("subscribe", "streams-lines").option("startingOffsets", "earliest").load())


if __name__ == "__main__":
    StreamingPipeline(
        job="word-count",
        query=query,
        sink=KafkaSink(SERVERS, topic="streams-word-counts"),
        checkpoint_location="checkpoints/word-count",
        output_mode="update",
        trigger={"processingTime": "1 second"},
    ).run()
