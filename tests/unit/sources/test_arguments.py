"""A source that cannot work is refused when it is created, with every problem in one error."""

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from onceward import KafkaCluster, KafkaSource
from onceward.common.errors import CheckpointFailedError, ConfigurationError
from onceward.protocol.values import Role
from onceward.sources.kafka.driver.arguments import SourceArguments
from onceward.sources.kafka.driver.offsets import Limits
from onceward.sources.kafka.driver.resolution import milliseconds
from onceward.sources.kafka.driver.sizing import first_sizing
from onceward.sources.kafka.driver.splitting import MOST_RANGES
from onceward.sources.kafka.driver.starts import bound_text
from onceward.sources.kafka.executor.columns import COLUMNS
from onceward.sources.kafka.executor.offset_gone import OffsetGone, halt_for, offset_gone, offset_gone_in
from onceward.sources.kafka.positions import Partition
from onceward.sources.kafka.rates import BURST_SECONDS


def test_a_source_needs_only_a_cluster_and_topics() -> None:
    source = KafkaSource("a:1", ["orders"])
    assert (source.participant.name, source.participant.role, source.participant.kind) == (
        "source",
        Role.SOURCE,
        "kafka",
    )
    assert source.schema.startswith("key binary, value binary, topic string")
    assert "headers" not in source.schema
    assert KafkaSource("a:1", ["orders"], columns=["offset", "value"]).schema == "offset bigint, value binary"
    assert KafkaSource("a:1", ["orders"], columns=["headers"]).schema.startswith("headers array")
    assert KafkaSource(KafkaCluster("a:1", name="eu"), pattern="orders-.*").cluster.name == "eu"


@pytest.mark.parametrize(
    ("arguments", "copied"),
    [
        ({}, ("key", "value")),
        ({"include_headers": True}, ("key", "value", "headers")),
        ({"columns": ["offset", "value", "key"]}, ("key", "value")),
        ({"columns": ["value"]}, ("value",)),
    ],
)
def test_a_job_without_a_transform_copies_what_spark_would_write_and_the_source_reads(
    arguments: dict[str, Any], copied: tuple[str, ...]
) -> None:
    assert KafkaSource("a:1", ["orders"], **arguments).copied_columns == copied


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topics": []}, "topics"),
        ({"topics": ["a b"]}, "topics"),
        ({"topics": [3]}, "topics"),
        ({"topics": None}, "topics, pattern"),
        ({"pattern": "x"}, "topics, pattern"),
        ({"topics": None, "pattern": "("}, "pattern"),
        ({"start": "begin"}, "start"),
        ({"start": datetime(2025, 1, 1)}, "start"),  # noqa: DTZ001 - the missing zone is the point
        ({"start": datetime.now(UTC) + timedelta(hours=1)}, "start"),
        ({"start": {}}, "start"),
        ({"start": {"orders": {0: -1}}}, "start"),
        ({"start": {"orders": {"0": 1}}}, "start"),
        ({"start": {"orders": 5}}, "start"),
        ({"start": {"other": {0: 1}}}, "start"),
        ({"reset": "none"}, "reset"),
        ({"end": "earliest"}, "end"),
        ({"end": {"other": {0: 1}}}, "end"),
        ({"end": datetime.now(UTC) + timedelta(hours=1)}, "end"),
        ({"group_id": ""}, "group_id"),
        ({"max_offsets_per_checkpoint": 0}, "max_offsets_per_checkpoint"),
        ({"max_offsets_per_checkpoint": 1.5}, "max_offsets_per_checkpoint"),
        ({"max_offsets_per_checkpoint": True}, "max_offsets_per_checkpoint"),
        ({"max_rate_per_partition": 0}, "max_rate_per_partition"),
        ({"max_rate_per_partition": float("inf")}, "max_rate_per_partition"),
        ({"columns": ()}, "columns: give"),
        ({"columns": "value"}, "columns: give"),
        ({"columns": 5}, "columns: give"),
        ({"columns": ["value", "Key"]}, "columns: 'Key' is none"),
        ({"columns": [["value"]]}, "columns: .*is none"),
        ({"columns": ["value", "value"]}, "columns: 'value' is there twice"),
        ({"columns": ["value"], "include_headers": True}, "columns: 'headers' is not one"),
        ({"discovery_interval": "soon"}, "discovery_interval"),
        ({"discovery_interval": 0}, "discovery_interval"),
        ({"name": "Source.1"}, "name"),
        ({"cluster": "nowhere"}, "bootstrap servers"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"- {said}:|{said}"):
        KafkaSource(**{"cluster": "a:1", "topics": ["orders"], **arguments})


DEFAULTS: dict[str, Any] = {
    "topics": ["orders"],
    "pattern": None,
    "start": "group",
    "reset": "earliest",
    "end": None,
    "group_id": None,
    "include_headers": False,
    "columns": None,
    "min_partitions": None,
    "max_offsets_per_checkpoint": None,
    "max_rate_per_partition": None,
    "adaptive": True,
    "discovery_interval": "30s",
    "mirror_offsets": True,
    "name": "source",
}
NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)


def arguments(**given: Any) -> SourceArguments:
    return SourceArguments(cluster="a:1", **{**DEFAULTS, **given})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"topics": "orders"}, {"names": ("orders",)}),
        ({"topics": ["b", "a", "b"]}, {"names": ("a", "b"), "whole_name": None}),
        ({"topics": None, "pattern": "orders-.*"}, {"names": (), "whole_name": re.compile("orders-.*")}),
        ({}, {"read_columns": COLUMNS}),
        ({"include_headers": True}, {"read_columns": (*COLUMNS, "headers")}),
        ({"columns": ["value", "key"]}, {"read_columns": ("value", "key")}),
    ],
)
def test_each_form_of_an_argument_has_one_meaning(given: dict[str, Any], meant: dict[str, Any]) -> None:
    made = arguments(**given)
    assert {name: getattr(made, name) for name in meant} == meant


@pytest.mark.parametrize(
    "given",
    [
        {"start": NOON, "end": {"orders": {0: 5}}},
        {"end": "latest", "reset": "latest", "group_id": "readers"},
        {"min_partitions": 1},
        {"min_partitions": MOST_RANGES},
        {"max_offsets_per_checkpoint": 1, "max_rate_per_partition": 0.5},
        {"adaptive": False, "mirror_offsets": False, "discovery_interval": "100ms"},
    ],
)
def test_a_permitted_value_is_accepted(given: dict[str, Any]) -> None:
    arguments(**given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_partitions": 0},
        {"min_partitions": MOST_RANGES + 1},
        {"min_partitions": 1.0},
        {"max_rate_per_partition": True},
        {"discovery_interval": "99ms"},
        {"topics": ["."]},
        {"topics": [".."]},
        {"group_id": 5},
    ],
)
def test_a_value_just_beyond_its_limit_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError) as caught:
        arguments(**wrong)
    (problem,) = str(caught.value).splitlines()[1:]
    assert problem.startswith(f"  - {name}: ")


def test_each_bound_names_its_topics_that_are_not_read() -> None:
    with pytest.raises(ConfigurationError) as caught:
        arguments(start={"b": {0: 1}, "a": {0: 1}}, end={"c": {0: 2}, "orders": {0: 2}})
    assert str(caught.value).splitlines()[1:] == [
        "  - start: names topics that are not read: a, b",
        "  - end: names topics that are not read: c",
    ]


def saved_up(limits: Limits) -> int:
    """Return the most offsets that a partition may read after any idle time."""
    assert limits.rate is not None
    assert limits.rate.allowed(Partition("orders", 0), 0.0) == 20
    return limits.rate.allowed(Partition("orders", 0), 1000.0)


def test_limits_are_those_that_were_given() -> None:
    made = arguments(max_offsets_per_checkpoint=100, max_rate_per_partition=20, adaptive=False)
    limits = made.limits(interval=timedelta(minutes=1), checkpoint_timeout=timedelta(minutes=2))
    assert (limits.offsets, saved_up(limits), limits.sizing) == (100, 20 * 120, None)
    on_request = made.limits(interval=None, checkpoint_timeout=timedelta(minutes=2))
    assert saved_up(on_request) == 20 * BURST_SECONDS
    free = arguments().limits(interval=timedelta(seconds=2), checkpoint_timeout=timedelta(minutes=2))
    assert (free.offsets, free.rate, free.sizing) == (None, None, first_sizing(2.0, 120.0))


def test_all_problems_are_reported_at_once() -> None:
    wrong: Any = {"topics": ["a b"], "start": "x", "reset": "x", "end": "x", "name": "X", "discovery_interval": "x"}
    with pytest.raises(ConfigurationError) as caught:
        KafkaSource("nowhere", max_offsets_per_checkpoint=-1, max_rate_per_partition=-1, **wrong)
    message = str(caught.value)
    for name in (*wrong, "max_offsets_per_checkpoint", "max_rate_per_partition", "bootstrap servers"):
        assert name in message


def test_one_bound_has_one_text() -> None:
    assert bound_text({"b": {1: 2, 0: 5}, "a": {0: 1}}) == bound_text({"a": {0: 1}, "b": {0: 5, 1: 2}})
    hour = timedelta(hours=1)
    there = datetime(2025, 1, 1, 15, tzinfo=timezone(2 * hour))
    assert bound_text(there) == bound_text(datetime(2025, 1, 1, 12, tzinfo=UTC) + hour)
    assert (bound_text("latest"), bound_text(None)) == ("latest", None)


def test_an_instant_between_two_milliseconds_means_the_later_one() -> None:
    instant = datetime(2025, 1, 1, 0, 0, 0, 5000, tzinfo=UTC)
    assert milliseconds(instant) == 1735689600005
    assert milliseconds(instant + timedelta(microseconds=1)) == 1735689600006


@pytest.mark.parametrize("topic", ["orders", "<odd> {topic}"])
def test_the_fault_of_a_reader_survives_being_wrapped_in_text(topic: str) -> None:
    error = offset_gone(topic, 3, position=5, end=9, log_start=7, log_end=20)
    assert isinstance(error, CheckpointFailedError)
    gone = offset_gone_in(f"org.apache.spark.SparkException: boom\n\n  {error}\n\tat org.apache.spark(X.scala:1)")
    assert gone is not None
    assert (gone.topic, gone.partition, gone.position, gone.end, gone.log_start, gone.log_end) == (
        topic,
        3,
        5,
        9,
        7,
        20,
    )
    assert "2 offsets were deleted" in str(halt_for(gone))
    assert offset_gone_in(str(halt_for(gone))) is None


@pytest.mark.parametrize(
    ("position", "log", "said"),
    [
        (5, (6, 20), "its log starts at 6 now, so 1 offsets were deleted"),
        (6, (6, 20), r"to 30, which the broker refused as out of range; its log is \[6, 20\)"),
        (20, (6, 20), r"its log is \[6, 20\)"),
        (21, (6, 20), "its log ends at 20 now: the partition lost records"),
        (5, (0, 4), "its log ends at 4 now: the partition lost records"),
        (5, (-1, -1), "the broker did not report what its log holds"),
    ],
)
def test_the_log_shows_how_the_input_was_lost(position: int, log: tuple[int, int], said: str) -> None:
    error = offset_gone("orders", 3, position=position, end=30, log_start=log[0], log_end=log[1])
    with pytest.raises(CheckpointFailedError, match=f"orders-3 is to be read from offset {position}.*{said}"):
        raise error


@pytest.mark.parametrize(("position", "log_start", "helps"), [(5, 6, True), (21, 6, False), (5, -1, False)])
def test_a_halt_at_deleted_input_names_the_command_that_skips_it(position: int, log_start: int, helps: bool) -> None:
    gone = OffsetGone(topic="orders", partition=3, position=position, end=30, log_start=log_start, log_end=20)
    said = "onceward resolve JOB --skip-input orders:3 --to 6 --reason 'NAME: REASON'"
    assert (said in str(halt_for(gone))) == helps


def test_an_executor_needs_only_pyarrow_and_confluent_kafka() -> None:
    program = (
        "import sys, onceward.sources.kafka.executor.reader\n"
        "print(*sorted({'pyspark', 'grpc', 'kafka', 'sqlalchemy', 'pandas', 'rich', 'typer', 'google'}\n"
        "              & {m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
