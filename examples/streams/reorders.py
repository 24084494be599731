"""Orders new pieces of each product of which fewer than ten are left: reads the table that stock.py keeps.

    python examples/streams/reorders.py

A job of its own reads the table's changes as a stream (Kafka Streams: KTable.toStream). It keeps no state, so it needs
no Structured Streaming: a Pipeline will do. To read the table as a table, see page_views.py.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from onceward import KafkaSink, KafkaSource, Pipeline

SERVERS = "localhost:9092"


def reorders(changes: DataFrame) -> DataFrame:
    pieces = F.coalesce(F.col("value").cast("string").cast("long"), F.lit(0))  # a tombstone: sold out
    return changes.where(pieces < 10).select("key", (20 - pieces).cast("string").alias("value"))


if __name__ == "__main__":
    Pipeline(
        job="reorders",
        source=KafkaSource(SERVERS, topics=["streams-stock"], start="earliest"),
        transform=reorders,
        sink=KafkaSink(SERVERS, topic="streams-reorders"),
    ).run()
