"""A lost slot is written again only to the place where it was before."""

from dataclasses import replace

import pytest

from onceward.connections.topics import TopicFacts
from onceward.connectors.interfaces import ReplayRefusedError
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.driver.replays import refuse_changed
from tests.unit.sinks.test_committables import HANDLE

TOPIC = TopicFacts(name="out", code=0, id="id-1", partitions=3)
LOST = replace(HANDLE, topics={"out": TopicRecords(records=5, partitions=(0,), id="id-1", count=3)})


def refuse(handle: KafkaCommittable = LOST, topic: TopicFacts | None = TOPIC) -> None:
    refuse_changed([handle], cluster_id=LOST.cluster_id, topics={} if topic is None else {"out": topic})


def test_a_place_that_has_not_changed_is_not_refused() -> None:
    refuse()


@pytest.mark.parametrize(
    ("handle", "topic", "said"),
    [
        (replace(LOST, cluster_id="another"), TOPIC, "written to cluster another"),
        (LOST, None, "cannot be found"),
        (LOST, replace(TOPIC, code=3), "cannot be found"),
        (LOST, replace(TOPIC, id="id-2"), "deleted and recreated"),
        (replace(LOST, topics={"out": TopicRecords(records=5, partitions=(0,))}), TOPIC, "id unknown"),
        (LOST, replace(TOPIC, partitions=4), "had 3 partitions, now it has 4"),
    ],
    ids=["cluster", "gone", "unknown", "recreated", "id not known", "partitions"],
)
def test_a_place_that_has_changed_is_refused_with_the_reason(
    handle: KafkaCommittable, topic: TopicFacts | None, said: str
) -> None:
    with pytest.raises(ReplayRefusedError, match=said):
        refuse(handle, topic)
