"""The input topic and its source: numbered records in transactions, and positions in the real source's format."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa

from onceward.connectors.interfaces import (
    Assignment,
    Finding,
    FollowedSource,
    JobContext,
    Pace,
    Plan,
    ReplayRefusedError,
    Resource,
    SplitFollower,
    SplitReader,
)
from onceward.connectors.tasks import ranges_of
from onceward.protocol.values import Document, JsonObject, Participant, ParticipantName, Role
from onceward.sources.kafka.driver import following
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition, TopicPosition
from tests.simulation.threads import Event, scheduler

__all__ = ["CLUSTER_ID", "SOURCE", "InputTopic", "ModelSource", "all_ranges", "positions_of"]

CLUSTER_ID = "simulated-cluster"
SOURCE = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="kafka")
_TOPIC = "in"


class InputTopic:
    """A log per partition; record ``o`` of partition ``p`` is the text ``p-o`` and goes to a fixed output partition.

    The records were written in transactions, some of them aborted. So not every offset has a record that a reader gets.
    """

    def __init__(self, *, totals: Sequence[int], outputs: int) -> None:
        self.totals = tuple(totals)
        """Records that each partition has in the end."""
        self.there = [0] * len(totals)
        """Records that each partition has now."""
        self.outputs = outputs
        random = Random(repr((self.totals, outputs)))
        self._silent = [frozenset(_silent(random, total)) for total in self.totals]

    def silent(self, partition: int, offset: int) -> bool:
        """Whether a reader gets nothing at ``offset``: a marker, or a record of an aborted transaction."""
        return offset in self._silent[partition]

    def passed(self, partition: int, offset: int) -> int:
        """The position of a reader that has come to ``offset`` and has passed what it does not get."""
        while offset < self.there[partition] and self.silent(partition, offset):
            offset += 1
        return offset

    def route(self, partition: int, offset: int) -> int:
        """The output partition of a record: consecutive pairs of offsets take different outputs, so two outputs share
        every slot of three records or more."""
        return (partition + offset // 2) % self.outputs

    def records(self, partition: int, offsets: Iterable[int]) -> pa.RecordBatch:
        """The records of one partition, as tasks read them."""
        offsets = [offset for offset in offsets if not self.silent(partition, offset)]
        return pa.RecordBatch.from_arrays(
            [
                pa.array([b"%d-%d" % (partition, offset) for offset in offsets], pa.binary()),
                pa.array([self.route(partition, offset) for offset in offsets], pa.int32()),
            ],
            names=["value", "partition"],
        )

    @property
    def complete(self) -> bool:
        return tuple(self.there) == self.totals


def _silent(random: Random, total: int) -> Iterator[int]:
    """Draw transactions over ``total`` offsets; yield the offsets of markers and of aborted records."""
    begin = 0
    while begin < total:
        marker = begin + random.randint(1, 5)
        yield from range(begin if random.random() < 0.2 else marker, marker + 1)
        begin = marker + 1


def positions_of(document: Document) -> list[int]:
    """The next offset of each input partition."""
    partitions = document.body["topics"][_TOPIC]["partitions"]
    return [int(partitions[str(number)]["next"]) for number in range(len(partitions))]


def all_ranges(splits: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """The ranges of all splits; one split may join several."""
    return itertools.chain.from_iterable(map(ranges_of, splits))


class ModelSource(FollowedSource):
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
        for split in all_ranges(splits):
            if split["end"] > positions_of(positions)[split["partition"]]:
                raise ReplayRefusedError(f"{split} is not what the checkpoint has read")

    def read(self) -> SplitReader:
        raise NotImplementedError("tasks read by themselves here")

    # -- staying tasks

    def follow(self) -> SplitFollower:
        return partial(ModelFollower, self._topic)

    def assign(self, base: Document, most: int) -> Assignment:
        self._pause()
        positions = KafkaPositions.from_document(base)
        return following.assign(positions, self._all, most)

    def reached(self, assigned: Document, reports: Sequence[JsonObject]) -> Plan:
        return following.reached(KafkaPositions.from_document(assigned), self._all, reports)

    @property
    def _all(self) -> set[Partition]:
        return {Partition(_TOPIC, number) for number in range(len(self._topic.totals))}

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


class ModelFollower:
    """What :class:`KafkaFollower` does, on an `InputTopic`."""

    def __init__(
        self, topic: InputTopic, split: JsonObject, _columns: frozenset[str], pace: Pace, news: Callable[..., None]
    ) -> None:
        self._topic = topic
        self._hold = float(pace["hold"])
        self._news = news
        self._ranges = [(int(each["partition"]), int(each["end"])) for each in ranges_of(split)]
        self._starts = [int(each["start"]) for each in ranges_of(split)]
        self._positions = list(self._starts)
        self._cut = Event()
        self._finished = False

    def cut(self, allowed: Sequence[int] = ()) -> None:
        self._cut.set()

    def batches(self) -> Iterator[pa.RecordBatch]:
        clock, since, reported = scheduler(), None, False
        while not self._cut.is_set():
            if not self._finished and all(
                at >= end for at, (_, end) in zip(self._positions, self._ranges, strict=True)
            ):
                self._finished = True
                self._news()
            if self._finished or (since is not None and clock.now - since >= self._hold):
                self._cut.wait()
                break
            batch = self._some(1 if since is None else 3)
            if batch is None:
                if self._pass() and not reported:
                    reported = True
                    self._news(urgent=False)
                self._cut.wait(0.05)
                continue
            if since is None:
                since = clock.now
                self._news()
            yield batch
        self._cut.clear()

    def reached(self) -> JsonObject:
        if scheduler().random.random() < 0.5:  # the client may not have fetched them yet
            self._pass()
        ranges = [
            {"topic": _TOPIC, "partition": partition, "start": start, "end": at}
            for (partition, _), start, at in zip(self._ranges, self._starts, self._positions, strict=True)
        ]
        self._starts = list(self._positions)
        there = [self._topic.there[partition] for partition, _ in self._ranges]
        return {"ranges": ranges, "lags": [end - at for end, at in zip(there, self._positions, strict=True)]}

    def close(self) -> None:
        pass

    def _pass(self) -> bool:
        """Pass what the client does not yield. Return whether there was something."""
        before = self._positions
        self._positions = [
            self._topic.passed(partition, at) for (partition, _), at in zip(self._ranges, before, strict=True)
        ]
        return self._positions != before

    def _some(self, most: int) -> pa.RecordBatch | None:
        """Take records of one partition, if any has some."""
        random = scheduler().random
        order = list(range(len(self._ranges)))
        random.shuffle(order)
        for index in order:
            partition = self._ranges[index][0]
            at = self._topic.passed(partition, self._positions[index])
            left = min(most, self._topic.there[partition] - at)
            if left > 0:
                self._positions[index] = at + random.randint(1, left)
                return self._topic.records(partition, range(at, self._positions[index]))
        return None
