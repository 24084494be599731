"""Columns are taken from a schema only where its text leaves no doubt; else Spark is asked."""

from datetime import timedelta

import pytest

from onceward.connectors.interfaces import JobContext
from onceward.driver.spark.schemas import simple_columns
from onceward.protocol.values import JobName
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from onceward.sinks.kafka.driver.sink import KafkaSink
from onceward.sources.kafka.driver.source import KafkaSource
from tests.support.kafka_model.bench import Bench


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


def test_a_kafka_sink_takes_what_it_can_write_and_nothing_else() -> None:
    context, unused = JobContext(job=JobName("orders"), checkpoint_timeout=timedelta(minutes=1)), Bench().control
    fixed, routed = (
        KafkaSinkSession(sink, context, unused, "")
        for sink in (KafkaSink("localhost:9092", topic="out"), KafkaSink("localhost:9092", topics=["out"]))
    )
    assert fixed.takes({"key": "binary", "value": "string"})
    assert not fixed.takes({"key": "binary"})
    assert not fixed.takes({"value": "int"})
    assert not routed.takes({"value": "binary"})
    assert routed.takes({"value": "binary", "topic": "string"})
