"""A lost slot is replayed only where the replay gives the same slot in the same place."""

from dataclasses import replace

import pytest

from onceward.coordinator.pipeline.interfaces import ReplayRefusedError
from onceward.sinks.kafka.control.brokers import TopicFacts
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.driver.replays import alone, lost_splits
from tests.unit.sinks.test_committables import HANDLE

A, B = ({"topic": "in", "partition": number, "start": 0, "end": 5} for number in (0, 1))
TOPIC = TopicFacts(name="out", code=0, id="id-1", partitions=3)
LOST = replace(
    HANDLE,
    topics={"out": TopicRecords(records=5, partitions=(0,), id="id-1", count=3)},
    inputs=[A],
    replayable=True,
)


def splits(handle: KafkaCommittable = LOST, topic: TopicFacts | None = TOPIC) -> list[object]:
    topics = {} if topic is None else {"out": topic}
    return list(lost_splits([handle], cluster_id=LOST.cluster_id, topics=topics))


def test_a_slot_of_one_split_alone_is_written_again_from_that_split() -> None:
    assert splits() == [A]


@pytest.mark.parametrize(
    ("inputs", "slots"),
    [
        ([[A], [B]], {0, 1}),
        ([[A, B], [A, B]], set()),
        ([[A], [A], [B]], {2}),
        ([[A, B]], set()),
        ([[A]], {0}),
    ],
    ids=["copy", "shuffle", "one split in two slots", "coalesced", "one slot"],
)
def test_only_a_split_that_made_one_slot_and_that_alone_gives_the_slot_again(
    inputs: list[list[dict[str, object]]], slots: set[int]
) -> None:
    assert alone(inputs) == slots


@pytest.mark.parametrize(
    ("handle", "topic", "said"),
    [
        (replace(LOST, replayable=False), TOPIC, "moved rows between partitions"),
        (replace(LOST, cluster_id="another"), TOPIC, "written to cluster another"),
        (LOST, None, "cannot be found"),
        (LOST, replace(TOPIC, code=3), "cannot be found"),
        (LOST, replace(TOPIC, id="id-2"), "deleted and recreated"),
        (replace(LOST, topics={"out": TopicRecords(records=5, partitions=(0,))}), TOPIC, "id unknown"),
        (LOST, replace(TOPIC, partitions=4), "had 3 partitions, now it has 4"),
    ],
    ids=["shuffle", "cluster", "gone", "unknown", "recreated", "id not known", "partitions"],
)
def test_everything_else_is_refused_with_the_reason(
    handle: KafkaCommittable, topic: TopicFacts | None, said: str
) -> None:
    with pytest.raises(ReplayRefusedError, match=said):
        splits(handle, topic)
