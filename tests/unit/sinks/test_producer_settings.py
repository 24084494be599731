"""Batches fit the client's own limits and those of the topics."""

import pytest

from onceward import KafkaCluster
from onceward.sinks.kafka.executor.producers import producer_settings, record_bytes


@pytest.mark.parametrize(
    ("config", "topics_take", "size"),
    [
        ({}, (), 1_000_000),
        ({}, (1_048_588,), 1_000_000),
        ({}, (10_000, 2_000_000), 10_000),
        ({"batch.size": 5_000}, (10_000,), 5_000),
        ({"batch.size": 4_000_000}, (1_048_588,), 1_000_000),  # a batch is never larger than a record may be
        ({"batch.size": 4_000_000, "message.max.bytes": 8_000_000}, (1_048_588,), 1_048_588),
        ({"message.max.bytes": 20_000}, (), 20_000),
        ({"batch.size": "many"}, (), 1_000_000),  # not a number: ignored
    ],
)
def test_batches_are_as_large_as_client_and_topics_allow(
    config: dict[str, int | str], topics_take: tuple[int, ...], size: int
) -> None:
    cluster = KafkaCluster("localhost:1", config=config)
    assert producer_settings(cluster, topics_take)["batch.size"] == size


@pytest.mark.parametrize(
    ("config", "topics_take", "size"),
    [
        ({}, (), 1_000_000),
        ({}, (20_000, 41_943_040), 41_943_040),
        ({}, (20_000,), 1_000_000),  # it may be smaller when it is compressed
        ({"message.max.bytes": "2000000"}, (41_943_040,), 2_000_000),
    ],
)
def test_the_client_refuses_no_record_that_a_topic_takes_unless_its_user_says_so(
    config: dict[str, int | str], topics_take: tuple[int, ...], size: int
) -> None:
    cluster = KafkaCluster("localhost:1", config=config)
    assert record_bytes(cluster, topics_take) == size
    assert producer_settings(cluster, topics_take)["message.max.bytes"] == size


def test_a_task_that_stays_sends_before_its_cut_unless_the_cluster_says_otherwise() -> None:
    ours, users = KafkaCluster("localhost:1"), KafkaCluster("localhost:1", config={"linger.ms": 7})
    assert producer_settings(ours, (), stays=True) == {**producer_settings(ours, ()), "linger.ms": 1}
    assert "linger.ms" not in producer_settings(users, (), stays=True)
