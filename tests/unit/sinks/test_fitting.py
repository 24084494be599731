"""What a topic or the client would refuse is found before a record is produced, and nothing else is."""

import logging
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

from onceward.connections.cluster import KafkaCluster
from onceward.sinks.kafka.client import ArrowProducer
from onceward.sinks.kafka.client.messages import Partitioning, record_sizes
from onceward.sinks.kafka.executor.fitting import Fitting
from onceward.sinks.kafka.topic_limits import TopicLimits

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def records(*values: bytes | None, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **columns})


def fitting(
    limit: int | None = 10_000, *, topic: str | None = "out", config: dict[str, str | int] | None = None
) -> Fitting:
    limits = tuple(TopicLimits(topic=one, batch_bytes=limit) for one in ("out", "other"))
    return Fitting(
        cluster=KafkaCluster("localhost:1", config=config or {}), topic=topic, topics=("out", "other"), limits=limits
    )


def rows(given: Fitting, batch: pa.RecordBatch) -> list[tuple[int, str]]:
    return [(one.row, one.kind.value) for one in given.unfit(batch)]


def taken(producer: ArrowProducer, batch: pa.RecordBatch) -> bool:
    try:
        producer.produce("out", batch, lambda: None)
    except KafkaException as error:
        return bool(error.args[0].name() != "MSG_SIZE_TOO_LARGE")
    return True


@pytest.mark.parametrize("shape", ["value", "key", "headers"])
def test_the_client_takes_exactly_the_records_that_are_found_to_fit(shape: str) -> None:
    """The client compares a record with its limit before it asks a broker."""
    producer = ArrowProducer(
        {"bootstrap.servers": "127.0.0.1:1", "message.max.bytes": 2000, "log_level": 0},
        topics=["out"],
        failed=lambda error: None,
        logger=logging.getLogger("test"),
    )
    producer._places["out"] = iter([Partitioning(1, 0)] * 10_000)
    given = fitting(None, config={"message.max.bytes": 2000})
    answers = []
    for size in range(1900, 2001):
        batch = {
            "value": records(bytes(size)),
            "key": records(bytes(900), key=pa.array([bytes(size - 900)], pa.binary())),
            "headers": records(
                bytes(100), headers=pa.array([[{"key": "k" * 70, "value": bytes(size - 200)}] * 1], HEADERS)
            ),
        }[shape]
        answers.append(taken(producer, batch))
        assert (not rows(given, batch)) == answers[-1], size
    producer.purge()
    assert {True, False} == set(answers), "the limit is among these"


def test_every_record_has_the_kind_and_the_place_that_it_has_in_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fitting, "_ask", lambda self: {"out": 3, "other": 1})
    batch = records(
        b"x", bytes(20_000), b"x", b"x", None,
        topic=["out", "other", "nowhere", "out", None],
        partition=pa.array([0, None, 1, -1, 2], pa.int32()),
    )  # fmt: skip
    found = rows(fitting(topic=None), batch)
    assert found == [(1, "too_large"), (2, "refused"), (4, "refused"), (3, "refused")]


def test_topics_have_limits_of_their_own() -> None:
    given = Fitting(
        cluster=KafkaCluster("localhost:1"),
        topic=None,
        topics=("a", "b", "c"),
        limits=(TopicLimits(topic="a", batch_bytes=200), TopicLimits(topic="b", batch_bytes=3000)),
    )
    batch = records(*[bytes(n) for n in (50, 250, 250, 2_000_000)], topic=["a", "a", "b", "c"])
    assert rows(given, batch) == [(3, "too_large"), (1, "too_large")], "c has no known limit but the client's"


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    def given(topic: str | None) -> Fitting:
        limits = (TopicLimits(topic="a", keyed=True), TopicLimits(topic="b"))
        return Fitting(cluster=KafkaCluster("localhost:1"), topic=topic, topics=("a", "b"), limits=limits)

    keys = pa.array([b"k", None, b"", None], pa.binary())
    batch = records(*[b"x"] * 4, key=keys, topic=["a", "a", "a", "b"])
    assert rows(given(None), batch) == [(1, "refused")]
    assert rows(given("a"), batch) == [(1, "refused"), (3, "refused")]
    assert rows(given("b"), batch) == []
    assert rows(given("a"), records(b"x")) == [(0, "refused")]
    assert rows(given("a"), records(b"x", key=pa.array([b"k"], pa.binary()))) == []


def test_with_compression_the_client_alone_is_asked() -> None:
    given = fitting(1000, config={"compression.type": "zstd"})
    assert rows(given, records(bytes(5000), bytes(1_000_001))) == [(1, "too_large")]


def test_headers_without_a_usable_name_are_found() -> None:
    one = {"key": "k", "value": b"v"}
    headers = pa.array([[one], [one, {"key": None, "value": b""}], None, [{"key": "a\0b", "value": None}], []], HEADERS)
    batch = records(*[b"x"] * 5, headers=headers)
    assert rows(fitting(), batch) == [(1, "schema"), (3, "schema")]
    assert rows(fitting(), batch.slice(3)) == [(0, "schema")]
    assert rows(fitting(), batch.slice(0, 1)) == []


def test_an_empty_batch_fits() -> None:
    assert rows(fitting(topic=None), records(topic=pa.array([], pa.string()))) == []
    assert len(record_sizes(records()).at_client) == 0
