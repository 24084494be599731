"""Options of format("onceward"): read as Spark's Kafka source reads them, or refused with the remedy."""

import pickle
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from onceward.common.errors import ConfigurationError
from onceward.sources.kafka.driver.format import OncewardDataSource
from onceward.sources.kafka.driver.options import EARLIEST, LATEST, OPTIONS, REFUSED, Mode, ReadOptions
from onceward.sources.kafka.executor.columns import COLUMNS, HEADERS, schema_of
from onceward.sources.kafka.positions import Partition

LEAST = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def parsed(mode: Mode | None = Mode.STREAM, **options: str) -> ReadOptions:
    return ReadOptions.parse({**LEAST, **options}, mode)


def refusal(options: Mapping[str, str], mode: Mode | None = Mode.STREAM) -> str:
    with pytest.raises(ConfigurationError) as refused:
        ReadOptions.parse(options, mode)
    return str(refused.value)


def test_a_stream_begins_with_new_records_and_a_batch_reads_everything() -> None:
    assert parsed(Mode.STREAM).start.at == LATEST
    batch = parsed(Mode.BATCH)
    assert (batch.start.at, batch.end.at) == (EARLIEST, LATEST)


def test_names_of_options_ignore_case() -> None:
    assert parsed(MAXOFFSETSPERTRIGGER="10").max_offsets == 10
    assert parsed(maxoffsetspertrigger="10").max_offsets == 10


def test_topics_are_named_matched_or_assigned_by_partition() -> None:
    servers = {"kafka.bootstrap.servers": "localhost:9092"}
    assert ReadOptions.parse({**servers, "subscribe": "b, a"}).topics == ("a", "b")
    pattern = ReadOptions.parse({**servers, "subscribePattern": "orders-.*"}).pattern
    assert pattern is not None
    assert pattern.fullmatch("orders-eu")
    options = ReadOptions.parse({**servers, "assign": '{"a": [0, 2], "b": [1]}'})
    assert options.assigned == frozenset([Partition("a", 0), Partition("a", 2), Partition("b", 1)])
    assert options.topics == ("a", "b")


@pytest.mark.parametrize("given", [{}, {"subscribe": "a", "assign": '{"a": [0]}'}])
def test_exactly_one_way_to_name_topics_is_required(given: dict[str, str]) -> None:
    assert "give exactly one" in refusal({"kafka.bootstrap.servers": "localhost:9092", **given})


def test_offsets_are_words_or_json_with_kafkas_numbers_for_both_ends() -> None:
    assert parsed(startingOffsets="earliest").start.at == EARLIEST
    named = parsed(startingOffsets='{"orders": {"0": 23, "1": -2, "2": -1}}').start
    assert named.at == {Partition("orders", 0): 23, Partition("orders", 1): EARLIEST, Partition("orders", 2): LATEST}
    assert not named.times


def test_timestamps_go_before_offsets_as_in_spark() -> None:
    both = parsed(startingTimestamp="1700000000000", startingOffsets="earliest").start
    assert (both.option, both.at, both.times, both.or_latest) == ("startingTimestamp", 1700000000000, True, False)
    each = parsed(startingOffsetsByTimestamp='{"orders": {"0": 5}}', startingOffsetsByTimestampStrategy="latest").start
    assert (each.at, each.times, each.or_latest) == ({Partition("orders", 0): 5}, True, True)
    assert parsed(Mode.BATCH, endingTimestamp="7").end.or_latest


def test_a_trigger_waits_15_minutes_for_its_least_offsets_unless_an_option_says_otherwise() -> None:
    assert parsed(minOffsetsPerTrigger="5").max_delay == timedelta(minutes=15)
    assert parsed(maxTriggerDelay="2m").max_delay == timedelta(minutes=2)
    assert parsed(maxTriggerDelay="500ms").max_delay == timedelta(milliseconds=500)


def test_kafka_settings_reach_the_client_and_secrets_stay_references() -> None:
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "env:KAFKA_USER",
        "kafka.sasl.password": "env:KAFKA_PASSWORD",
    }
    config = ReadOptions.parse({**LEAST, **options}).cluster.config
    assert config["sasl.password"] == "env:KAFKA_PASSWORD"
    assert config["security.protocol"] == "SASL_SSL"


@pytest.mark.parametrize("key", ["kafka.sasl.password", "kafka.sasl.jaas.config", "kafka.ssl.truststore.password"])
def test_a_secret_in_plain_text_is_refused_and_not_repeated(key: str) -> None:
    said = refusal({**LEAST, "kafka.security.protocol": "SASL_SSL", key: "hunter2"})
    assert "hunter2" not in said
    assert key.removeprefix("kafka.") in said


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    said = refusal({**LEAST, "startingOffset": "earliest"})
    assert "startingoffset: unknown" in said
    assert all(name in said for name in OPTIONS)


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_mean_nothing_here_are_refused_with_the_reason(name: str) -> None:
    assert f"{name}: {REFUSED[name]}" in refusal({**LEAST, name: "x"})


@pytest.mark.parametrize(
    ("mode", "name", "text"),
    [(Mode.STREAM, "endingOffsets", "latest"), (Mode.BATCH, "maxOffsetsPerTrigger", "10")],
)
def test_options_of_the_other_kind_of_read_are_refused(mode: Mode, name: str, text: str) -> None:
    assert f"{name}: has no meaning for {mode}" in refusal({**LEAST, name: text}, mode)
    ReadOptions.parse({**LEAST, name: text}, None)  # while the kind is unknown


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("startingOffsets", "first", "is not JSON"),
        ("startingOffsets", '{"orders": {"0": -3}}', "-3 is not a whole number from -2"),
        ("startingOffsets", '{"invoices": {"0": 1}}', "names topics that are not read: invoices"),
        ("startingOffsetsByTimestampStrategy", "guess", "none of error, latest"),
        ("maxOffsetsPerTrigger", "0", "'0' is not a whole number from 1"),
        ("maxTriggerDelay", "soon", "is not a duration"),
        ("minPartitions", "many", "'many' is not a whole number"),
        ("includeHeaders", "yes", "neither true nor false"),
        ("failOnDataLoss", "false", "would skip input"),
        ("kafka.isolation.level", "read_uncommitted", "must be read_committed"),
        ("kafka.bootstrap.servers", "localhost", "is not host:port"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, text: str, said: str) -> None:
    message = refusal({**LEAST, name: text})
    assert name.removeprefix("kafka.").partition(".")[0] in message
    assert said in message


def test_all_problems_are_reported_together() -> None:
    said = refusal({"kafka.bootstrap.servers": "localhost:9092", "minPartitions": "0", "maxOffsetsPerTrigger": "x"})
    assert said.count("\n  - ") == 3


def test_a_batch_cannot_end_at_the_earliest_offset() -> None:
    assert "cannot be earliest" in refusal({**LEAST, "endingOffsets": "earliest"}, Mode.BATCH)
    assert "cannot be earliest" in refusal({**LEAST, "endingOffsets": '{"orders": {"0": -2}}'}, Mode.BATCH)


def test_executors_unpickle_the_reader_without_what_only_planners_need() -> None:
    code = (
        "import pickle, sys\n"
        "import onceward.sources.kafka.driver.format\n"
        "read = pickle.loads(bytes.fromhex(sys.argv[1])).read\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] in ('kafka', 'grpc', 'onceward')))\n"
    )
    reader = OncewardDataSource(dict(LEAST)).streamReader(StructType().add("value", "binary"))
    command = [sys.executable, "-c", code, pickle.dumps(reader).hex()]
    loaded = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    planning = [name for name in loaded if name.startswith(("grpc", "kafka", "onceward.sources.kafka.driver."))]
    assert planning == ["onceward.sources.kafka.driver.format"]


@pytest.mark.parametrize("schema", [StructType(), StructType().add("value", "string"), StructType().add("v", "binary")])
def test_a_schema_names_columns_of_kafka_with_their_types(schema: StructType) -> None:
    with pytest.raises(ConfigurationError, match="value binary"):
        OncewardDataSource(dict(LEAST)).reader(schema)
    OncewardDataSource(dict(LEAST)).reader(from_arrow_schema(schema_of([HEADERS, *COLUMNS])))


def test_writing_is_refused_and_says_what_to_use() -> None:
    source = OncewardDataSource(dict(LEAST))
    with pytest.raises(ConfigurationError, match=r"foreachBatch\(StreamSink"):
        source.streamWriter(None, False)  # type: ignore[arg-type] # refused before it is looked at
    with pytest.raises(ConfigurationError, match="reading only"):
        source.writer(None, False)  # type: ignore[arg-type] # as above
