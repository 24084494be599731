"""``onceward verify`` reads the positions that the Kafka source writes."""

import pytest

from onceward.common.errors import ConfigurationError
from onceward.driver.streaming.batches import positions_before_the_first
from onceward.operate.verify.asking import origin_of, positions_of
from onceward.operate.verify.history import Lane
from onceward.protocol.values import Document, ParticipantName, Snapshot
from onceward.sources.kafka.positions import Cursor, KafkaPositions, TopicPosition

SOURCE = ParticipantName("in")


def test_positions_are_read_as_the_source_writes_them() -> None:
    topic = TopicPosition(id="i", partitions={0: Cursor(next=3, epoch=4), 1: Cursor(next=7, end=9)})
    written = KafkaPositions(cluster="main", cluster_id="c", topics={"t": topic}).to_document()
    snapshots = {SOURCE: Snapshot(positions=written)}
    assert positions_of(snapshots) == {Lane("t", 0): 3, Lane("t", 1): 7}
    assert origin_of(snapshots) == ("c", {"t": "i"})


def test_positions_of_a_later_version_are_not_guessed_at() -> None:
    later = Snapshot(positions=Document(kind="kafka-positions", version=99, body={"topics": {}}))
    with pytest.raises(ConfigurationError, match=r"version 99 cannot be read\. .* Nothing was judged"):
        positions_of({SOURCE: later})


def test_a_structured_streaming_query_has_no_offsets_to_read() -> None:
    written = Snapshot(positions=positions_before_the_first())
    assert positions_of({SOURCE: written}) == {}
    assert origin_of({SOURCE: written}) == ("", {})
