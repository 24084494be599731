"""The input topic and its source: distinguishable records, and positions in the real source's format."""

from collections.abc import Callable, Sequence
from typing import Any

from onceward.coordinator.pipeline.interfaces import (
    Finding,
    JobContext,
    Plan,
    ReplayRefusedError,
    Resource,
    Source,
    SplitReader,
)
from onceward.coordinator.protocol.values import Document, JsonObject, Participant, ParticipantName, Role
from onceward.sources.kafka.positions import Cursor, KafkaPositions, TopicPosition

__all__ = ["CLUSTER_ID", "SOURCE", "InputTopic", "ModelSource", "positions_of"]

CLUSTER_ID = "simulated-cluster"
SOURCE = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="kafka")
_TOPIC = "in"


class InputTopic:
    """A log per partition; record ``o`` of partition ``p`` is the text ``p-o`` and goes to a fixed output partition."""

    def __init__(self, *, totals: Sequence[int], outputs: int) -> None:
        self.totals = tuple(totals)
        """Records that each partition has in the end."""
        self.there = [0] * len(totals)
        """Records that each partition has now."""
        self.outputs = outputs

    def route(self, partition: int, offset: int) -> int:
        """The output partition of a record: consecutive pairs of offsets take different outputs, so two outputs share
        every slot of three records or more."""
        return (partition + offset // 2) % self.outputs

    @property
    def complete(self) -> bool:
        return tuple(self.there) == self.totals


def positions_of(document: Document) -> list[int]:
    """The next offset of each input partition."""
    partitions = document.body["topics"][_TOPIC]["partitions"]
    return [int(partitions[str(number)]["next"]) for number in range(len(partitions))]


class ModelSource(Source):
    """Plans over an `InputTopic`, with at most ``limit`` records of a partition per checkpoint."""

    def __init__(
        self,
        topic: InputTopic,
        *,
        limit: Callable[[], int],
        pause: Callable[[], None],
        restored: Callable[[list[int]], None],
    ) -> None:
        self.participant = SOURCE
        self.schema = "value binary, partition int"
        self.copied_columns = ("value",)
        self._topic = topic
        self._limit = limit
        self._pause = pause
        self._restored = restored

    def open(self, context: JobContext) -> None:
        pass

    def preflight(self) -> Sequence[Finding]:
        return ()

    def resolve(self) -> Document:
        self._pause()
        return self._document([0] * len(self._topic.totals))

    def restore(self, positions: Document) -> None:
        self._pause()
        self._restored(positions_of(positions))

    def plan(self, base: Document) -> Plan:
        self._pause()
        topic = self._topic
        starts = positions_of(base)
        ends = [max(start, min(there, start + self._limit())) for start, there in zip(starts, topic.there, strict=True)]
        return Plan(
            splits=tuple(
                {"topic": _TOPIC, "partition": number, "start": start, "end": end}
                for number, (start, end) in enumerate(zip(starts, ends, strict=True))
            ),
            positions=self._document(ends),
            records=sum(ends) - sum(starts),
            lag=sum(topic.there) - sum(ends),
            finished=tuple(ends) == topic.totals,
        )

    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None:
        self._pause()
        for split in splits:
            if split["end"] > positions_of(positions)[split["partition"]]:
                raise ReplayRefusedError(f"{split} is not what the checkpoint has read")

    def read(self) -> SplitReader:
        raise NotImplementedError("tasks read by themselves here")

    def reads(self, resource: Resource) -> bool:
        return False

    def close(self) -> None:
        pass

    def _document(self, positions: Sequence[int]) -> Document:
        cursors: dict[int, Any] = {
            number: Cursor(next=next_, end=end)
            for number, (next_, end) in enumerate(zip(positions, self._topic.totals, strict=True))
        }
        return KafkaPositions(
            cluster="main",
            cluster_id=CLUSTER_ID,
            topics={_TOPIC: TopicPosition(id="in-1", partitions=cursors)},
            bound="latest",
        ).to_document()
