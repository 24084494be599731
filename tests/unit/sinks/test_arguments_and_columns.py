"""The checks of a Kafka sink's arguments and columns report every problem at once."""

import subprocess
import sys
from typing import Any

import pytest

from onceward import KafkaSink
from onceward.common.errors import ConfigurationError
from onceward.sinks.kafka.driver.columns import choose, column_problems


def test_all_argument_problems_are_reported_together() -> None:
    wrong: dict[str, Any] = {
        "topics": ["ok", "not ok", "onceward", ".."],
        "on_lost": "forget",
        "delivery": "maybe_once",
        "transaction_timeout": "1 fortnight",
        "name": "No.Name",
    }
    with pytest.raises(ConfigurationError) as caught:
        KafkaSink("nowhere", **wrong)
    message = str(caught.value)
    for said in (
        "'not ok'",
        "'onceward'",
        "topic '..'",
        "on_lost",
        "delivery",
        "transaction_timeout",
        "name:",
        "cluster:",
    ):
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
    overridden = [("value", "string"), ("topic", "double"), ("partition", "bigint")]
    assert [problem.split(":")[0] for problem in column_problems(overridden, routed=False)] == ["partition"]


def test_text_of_any_collation_is_text() -> None:
    assert column_problems([("value", "string collate UNICODE_CI")], routed=False) == []
    assert column_problems([("value", "strings")], routed=False) != []


def test_the_types_that_would_do_are_named() -> None:
    (problem,) = column_problems([("value", "double")], routed=False)
    assert problem.startswith("value: is double, must be string or binary; ")


@pytest.mark.parametrize(("routed", "topics"), [(True, [("Topic", "topic")]), (False, [])])
def test_columns_get_the_sinks_names_and_the_topic_is_taken_only_when_it_routes(
    routed: bool, topics: list[tuple[str, str]]
) -> None:
    chosen = choose([(name.title(), kind) for name, kind in GOOD], routed=routed)
    assert [(one.column, one.name) for one in chosen] == [
        ("Key", "key"),
        ("Value", "value"),
        ("Headers", "headers"),
        *topics,
        ("Partition", "partition"),
        ("Timestamp", "timestamp"),
    ]
    assert {one.cast for one in chosen} == {None}


def test_columns_that_are_not_there_are_not_taken() -> None:
    assert [one.name for one in choose([("value", "string"), ("other", "int")], routed=False)] == ["value"]


def test_a_text_with_a_collation_is_taken_as_its_bytes() -> None:
    assert [one.cast for one in choose([("value", "string collate UNICODE_CI")], routed=False)] == ["binary"]


def test_each_problem_has_a_line_and_nothing_is_read() -> None:
    with pytest.raises(ConfigurationError) as caught:
        choose([("key", "double"), ("topic", "int")], routed=True)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()[1:]] == ["  - key", "  - value", "  - topic"]


def test_two_columns_of_one_name_are_refused() -> None:
    assert "2 columns" in column_problems([("value", "string"), ("Value", "string")], routed=False)[0]


def test_the_executors_part_needs_neither_spark_nor_the_control_plane() -> None:
    """Executors have the standard library, pyarrow and confluent_kafka."""
    code = (
        "import sys, onceward.sinks.kafka.executor.writer\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(names & {'kafka', 'pyspark', 'grpc', 'sqlalchemy', 'typer', 'google'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
