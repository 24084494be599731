"""Positions survive a round trip through a store exactly, and damaged ones are refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.common.errors import HaltedError
from onceward.protocol.values import Document
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition, TopicPosition

offsets = st.integers(0, 2**63 - 1)
cursors = st.builds(Cursor, next=offsets, end=st.none() | offsets, epoch=st.none() | st.integers(0, 2**31 - 1))
names = st.text("abc._-", min_size=1, max_size=5)
kafka_positions = st.builds(
    KafkaPositions,
    cluster=names,
    cluster_id=names,
    bound=st.none() | names,
    topics=st.dictionaries(
        names,
        st.builds(TopicPosition, id=names, partitions=st.dictionaries(st.integers(0, 99), cursors, max_size=4)),
        max_size=4,
    ),
)
GOOD = KafkaPositions(
    cluster="main", cluster_id="c", topics={"t": TopicPosition(id="i", partitions={0: Cursor(next=3, end=9, epoch=4)})}
).to_document()


def through_a_store(document: Document) -> Document:
    return replace(document, body=json.loads(json.dumps(document.body)))


@given(kafka_positions)
def test_a_document_gives_back_the_same_positions(positions: KafkaPositions) -> None:
    document = positions.to_document()
    assert KafkaPositions.from_document(through_a_store(document)) == positions
    assert through_a_store(document) == document


@given(kafka_positions)
def test_partitions_come_in_a_stable_order(positions: KafkaPositions) -> None:
    order = [partition for partition, _ in positions]
    assert order == sorted(order)
    assert all(partition in positions for partition in order)
    assert order == [partition for partition, _ in KafkaPositions.from_document(positions.to_document())]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("topics", "t", "partitions", "0", "next"), -1),
        (("topics", "t", "partitions", "0", "next"), 2**63),
        (("topics", "t", "partitions", "0", "next"), 1.5),
        (("topics", "t", "partitions", "0", "next"), True),
        (("topics", "t", "partitions", "0", "next"), None),
        (("topics", "t", "partitions", "0", "next"), "3"),
        (("topics", "t", "partitions", "0", "end"), -2),
        (("topics", "t", "partitions", "0", "epoch"), -1),
        (("topics", "t", "partitions", "0"), {"next": 3, "end": 9}),
        (("topics", "t", "partitions"), {"-1": {"next": 1, "end": None}}),
        (("topics", "t", "partitions"), {"x": {"next": 1, "end": None}}),
        (("topics", "t", "partitions"), []),
        (("topics", "t", "id"), ""),
        (("topics", "t"), 7),
        (("topics",), None),
        (("cluster_id",), 5),
        (("bound",), ""),
    ],
)
def test_damaged_documents_halt(path: tuple[str, ...], value: object) -> None:
    body: Any = json.loads(json.dumps(GOOD.body))
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(HaltedError, match="damaged"):
        KafkaPositions.from_document(replace(GOOD, body=body))


def test_documents_from_before_epochs_were_kept_are_read_without_them() -> None:
    body = json.loads(json.dumps(GOOD.body))
    del body["topics"]["t"]["partitions"]["0"]["epoch"]
    earlier = KafkaPositions.from_document(replace(GOOD, version=1, body=body))
    assert dict(earlier) == {Partition("t", 0): Cursor(next=3, end=9, epoch=None)}
    assert earlier.to_document().version == 2


@pytest.mark.parametrize("version", [0, 3, 99])
def test_another_version_halts(version: int) -> None:
    with pytest.raises(HaltedError, match=f"version {version}"):
        KafkaPositions.from_document(replace(GOOD, version=version))


def test_partitions_found_later_join_their_topic_or_a_new_one() -> None:
    base = KafkaPositions.from_document(GOOD)
    grown = base.with_found(
        {"t": "i", "u": "j"}, {Partition("t", 1): Cursor(next=0), Partition("u", 0): Cursor(next=5)}
    )
    assert [(str(p), c.next) for p, c in grown] == [("t-0", 3), ("t-1", 0), ("u-0", 5)]
    assert grown.topics["u"].id == "j"
    assert [str(p) for p, _ in base] == ["t-0"]
