"""Writes orders to an Iceberg table, a table of PostgreSQL and a topic, by one decision.

    SHOP_DSN=postgresql:///shop python examples/lake.py

The Iceberg table gets every order, PostgreSQL the last one of each customer, and the topic the large ones. After any
crash, all three are as if nothing had happened. Needs a broker at localhost:9092 with the topics ``purchases`` and
``large-purchases``, and the table:

    CREATE TABLE customers (customer text PRIMARY KEY, last_order bigint, amount numeric(12, 2), at timestamptz)

The first run makes the Iceberg table, in a catalogue in the directory ``lake``. The key of a message is the customer,
so all orders of a customer are in one partition, in order.
"""

from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame

from onceward import IcebergSink, KafkaSink, KafkaSource, Output, Pipeline, PostgresSink

SERVERS = "localhost:9092"
LAKE = Path("lake").absolute()
CATALOG = {"type": "sql", "uri": f"sqlite:///{LAKE}/catalog.sqlite", "warehouse": f"file://{LAKE}/warehouse"}
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("customer", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def orders(df: DataFrame) -> DataFrame:
    """What is no order is left out."""
    order = "from_json(cast(value as string), 'id bigint, amount decimal(12,2), at timestamp') as o"
    parsed = df.selectExpr("value", "cast(key as string) as customer", order)
    return parsed.select("value", "customer", "o.*").where("id is not null")


if __name__ == "__main__":
    LAKE.mkdir(exist_ok=True)
    catalog = load_catalog("default", **CATALOG)
    catalog.create_namespace_if_not_exists("shop")
    catalog.create_table_if_not_exists("shop.orders", COLUMNS)
    Pipeline(
        job="purchases",
        source=KafkaSource(SERVERS, topics=["purchases"], start="earliest"),
        transform=orders,
        outputs={  # all are made in one pass over the input
            "lake": Output(IcebergSink("shop.orders", catalog=CATALOG), select=["id", "customer", "amount", "at"]),
            "customers": Output(
                PostgresSink("env:SHOP_DSN", "customers", mode="upsert", key=["customer"]),
                where="customer is not null",
                select=["customer", "id as last_order", "amount", "at"],
            ),
            "large": Output(
                KafkaSink(SERVERS, topic="large-purchases"),
                where="amount >= 1000",
                select=["cast(customer as binary) as key", "value"],
            ),
        },
    ).run()
