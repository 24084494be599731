"""Writes to a topic and to a table of PostgreSQL by one decision: after any crash both have the same changes, once.

    SHOP_DSN=postgresql:///shop python examples/outputs.py

Needs a broker at localhost:9092 with the topics ``order-changes`` and ``big-orders``, and the table:

    CREATE TABLE shop_orders (order_id text PRIMARY KEY, amount bigint)

The key of each change is the order's id, so all changes of an order are in one partition, in order. A change without a
value deletes the order.
"""

from pyspark.sql import DataFrame

from onceward import KafkaSink, KafkaSource, Output, Pipeline, PostgresSink


def changes(df: DataFrame) -> DataFrame:
    return df.selectExpr(
        "cast(key as string) as order_id",
        "from_json(cast(value as string), 'amount bigint').amount as amount",
        "value is null as gone",
    )


Pipeline(
    job="order-changes",
    source=KafkaSource("localhost:9092", topics=["order-changes"], start="earliest"),
    transform=changes,
    outputs={
        # both are made in one pass over the input
        "orders": Output(PostgresSink("env:SHOP_DSN", "shop_orders", mode="upsert", key=["order_id"], delete="gone")),
        "big": Output(
            KafkaSink("localhost:9092", topic="big-orders"),
            where="amount >= 1000",
            select=["order_id as key", "cast(amount as string) as value"],
        ),
    },
).run()
