"""Columns are taken from a schema only where its text leaves no doubt; else Spark is asked."""

import pytest

from onceward.driver.spark.schemas import simple_columns
from onceward.sources.kafka.driver.source import KafkaSource


def test_every_schema_of_a_kafka_source_is_known_without_spark() -> None:
    source = KafkaSource("localhost:9092", topics=["orders"], include_headers=True)
    assert simple_columns(source.schema) == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
        "headers": "array<struct<key:string,value:binary>>",
    }


@pytest.mark.parametrize(
    "schema",
    ["", "a long", "`a` int", "a: int", "a int NOT NULL", "a decimal(1,2)", "a struct<b: int>", "a int, a string", "a"],
)
def test_any_other_schema_is_left_to_spark(schema: str) -> None:
    assert simple_columns(schema) is None
