"""Moving positions past missing input: one partition, forwards, everything else unchanged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.protocol.values import Document
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition, TopicPosition, check_positions, skip_to
from tests.support.documents import author

BEFORE = KafkaPositions(
    cluster="main",
    cluster_id="c",
    topics={
        "orders": TopicPosition(id="t1", partitions={0: Cursor(next=10), 1: Cursor(next=0, end=100)}),
        "refunds": TopicPosition(id="t2", partitions={0: Cursor(next=7, epoch=3)}),
    },
    bound="latest",
)


@given(st.sampled_from(sorted(dict(BEFORE))), st.integers(1, 2**40))
def test_only_one_partition_moves_and_the_coordinator_would_take_it(where: Partition, further: int) -> None:
    at = dict(BEFORE)[where].next
    moved, former = skip_to(BEFORE.to_document(), where.topic, where.number, at + further)
    assert former == at
    expected = json.loads(json.dumps(BEFORE.to_document().body))
    expected["topics"][where.topic]["partitions"][str(where.number)] |= {"next": at + further, "epoch": None}
    assert moved == Document(kind="kafka-positions", version=2, body=expected)
    check_positions(moved, BEFORE.to_document(), author())


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "says"),
    [
        ("orders", 0, 10, "is read next from offset 10; 10 is not after it"),
        ("orders", 0, 0, "0 is not after it"),
        ("orders", 7, 50, "orders-7 has no position; there are positions of orders-0, orders-1, refunds-0"),
        ("returns", 0, 50, "returns-0 has no position"),
        ("orders", 0, 2**63, "is not a number"),
    ],
)
def test_a_skip_backwards_or_to_nowhere_is_refused(topic: str, partition: int, offset: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        skip_to(BEFORE.to_document(), topic, partition, offset)


def test_a_partition_may_stay_where_it_is_without_being_compared_with_its_log_any_more() -> None:
    moved, former = skip_to(BEFORE.to_document(), "refunds", 0, 7)
    assert former == 7
    assert dict(KafkaPositions.from_document(moved))[Partition("refunds", 0)] == Cursor(next=7, epoch=None)
    with pytest.raises(ValueError, match="7 is not after it"):
        skip_to(moved, "refunds", 0, 7)


def test_positions_of_another_version_are_not_guessed_at() -> None:
    newer = Document(kind="kafka-positions", version=3, body=BEFORE.to_document().body)
    with pytest.raises(ValueError, match="version 3"):
        skip_to(newer, "orders", 0, 50)
