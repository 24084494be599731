"""What a user may say to a Kafka sink; every problem at once."""

import subprocess
import sys
from typing import Any

import pytest

from coordinator.errors import ConfigurationError
from sinks import KafkaSink
from sinks.kafka.columns import column_problems


def test_all_argument_problems_are_reported_together() -> None:
    wrong: dict[str, Any] = {
        "topics": ["ok", "not ok", "onceward"],
        "on_lost": "forget",
        "delivery": "maybe_once",
        "transaction_timeout": "1 fortnight",
        "name": "No.Name",
    }
    with pytest.raises(ConfigurationError) as caught:
        KafkaSink("nowhere", **wrong)
    message = str(caught.value)
    for said in ("'not ok'", "'onceward'", "on_lost", "delivery", "transaction_timeout", "name:", "cluster:"):
        assert said in message


@pytest.mark.parametrize("topics", [{}, {"topic": "a", "topics": ["b"]}, {"topics": []}, {"topics": "abc"}])
def test_exactly_one_of_topic_and_topics_is_needed(topics: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="topic"):
        KafkaSink("localhost:9092", **topics)


@pytest.mark.parametrize("timeout", ["10ms", "30d", 5])
def test_transaction_timeouts_that_kafka_cannot_hold_are_refused(timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="transaction_timeout"):
        KafkaSink("localhost:9092", topic="a", transaction_timeout=timeout)


def test_declared_topics_are_kept_once_and_in_order() -> None:
    assert KafkaSink("localhost:9092", topics=["b", "a", "b"]).topics == ("b", "a")


GOOD = [
    ("key", "string"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("headers", "array<struct<key:string,value:binary>>"),
    ("timestamp", "timestamp"),
    ("anything", "map<string,int>"),
]


def test_the_columns_of_sparks_kafka_sink_are_accepted_and_others_ignored() -> None:
    assert column_problems(GOOD, routed=True) == []
    assert column_problems([("VALUE", "string")], routed=False) == []


def test_all_column_problems_are_reported_together() -> None:
    wrong = [(name, "double") for name, _ in GOOD]
    problems = column_problems(wrong, routed=True)
    assert [problem.split(":")[0] for problem in problems] == [
        "key",
        "value",
        "headers",
        "topic",
        "partition",
        "timestamp",
    ]


def test_value_is_required_and_topic_only_when_routed() -> None:
    assert [problem.split(":")[0] for problem in column_problems([], routed=True)] == ["value", "topic"]
    assert column_problems([("value", "string"), ("topic", "double")], routed=False) == []


def test_two_columns_of_one_name_are_refused() -> None:
    assert "2 columns" in column_problems([("value", "string"), ("Value", "string")], routed=False)[0]


def test_the_executors_part_needs_neither_spark_nor_the_control_plane() -> None:
    """Executors have the standard library, pyarrow and confluent_kafka."""
    code = (
        "import sys, sinks.kafka.writer\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(names & {'kafka', 'pyspark', 'grpc', 'sqlalchemy', 'typer', 'google'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
