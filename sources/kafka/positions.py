"""The position of a Kafka source, as a typed value and as the document that a checkpoint keeps.

Document ``kafka-positions``, version 2::

    {"cluster": "main", "cluster_id": "GfmE...", "bound": null,
     "topics": {"orders": {"id": "Bm0t...", "partitions": {"0": {"next": 23, "end": null, "epoch": 4}}}}}

``next`` is the offset to read next (last processed + 1). ``end`` bounds the partition, exclusively; ``bound`` is the
``end=`` that it was resolved from: an unchanged ``end=`` keeps its ends, a changed one gets new ends. ``epoch`` is the
leader epoch of the record before ``next`` (epochs.py); null if unknown. Version 1 has no epochs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from onceward.common.errors import HaltedError
from onceward.protocol.values import Author, Document

__all__ = ["KIND", "VERSION", "Cursor", "KafkaPositions", "Partition", "TopicPosition", "check_positions", "skip_to"]

KIND = "kafka-positions"
VERSION = 2
_WITHOUT_EPOCHS = 1
_MAX_OFFSET = 2**63 - 1


class Partition(NamedTuple):
    """One partition of one topic; sorts by topic, then by number."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """The position of one partition."""

    next: int
    """Offset to read next."""
    end: int | None = None
    """Exclusive bound; None = unbounded."""
    epoch: int | None = None
    """Leader epoch of the record before ``next``; None = unknown, so the log cannot be compared."""

    @property
    def done(self) -> bool:
        return self.end is not None and self.next >= self.end


@dataclass(frozen=True, kw_only=True)
class TopicPosition:
    id: str
    """The broker's topic id; it changes when a topic is deleted and recreated."""
    partitions: Mapping[int, Cursor]


@dataclass(frozen=True, kw_only=True)
class KafkaPositions:
    """Positions of all partitions. Iterates over partitions in a stable order: by topic, then by number."""

    cluster: str
    cluster_id: str
    topics: Mapping[str, TopicPosition]
    bound: str | None = None
    """Canonical text of the ``end=`` that the ends were resolved from; None = unbounded."""

    def __iter__(self) -> Iterator[tuple[Partition, Cursor]]:
        for topic in sorted(self.topics):
            partitions = self.topics[topic].partitions
            for number in sorted(partitions):
                yield Partition(topic, number), partitions[number]

    def __contains__(self, partition: Partition) -> bool:
        topic = self.topics.get(partition.topic)
        return topic is not None and partition.number in topic.partitions

    def moved(self, cursors: Mapping[Partition, Cursor], *, bound: str | None) -> "KafkaPositions":
        """Return the same topics with these cursors; partitions that are not named keep theirs."""
        topics = {
            name: replace(
                topic,
                partitions={n: cursors.get(Partition(name, n), cursor) for n, cursor in topic.partitions.items()},
            )
            for name, topic in self.topics.items()
        }
        return replace(self, topics=topics, bound=bound)

    def with_found(self, ids: Mapping[str, str], cursors: Mapping[Partition, Cursor]) -> "KafkaPositions":
        """Add partitions found later. ``ids`` are the topic ids of all their topics."""
        topics = dict(self.topics)
        for partition, cursor in cursors.items():
            known = topics.get(partition.topic, TopicPosition(id=ids[partition.topic], partitions={}))
            topics[partition.topic] = replace(known, partitions={**known.partitions, partition.number: cursor})
        return replace(self, topics=topics)

    def to_document(self) -> Document:
        body = {
            "cluster": self.cluster,
            "cluster_id": self.cluster_id,
            "bound": self.bound,
            "topics": {
                name: {
                    "id": self.topics[name].id,
                    "partitions": {
                        str(number): {"next": cursor.next, "end": cursor.end, "epoch": cursor.epoch}
                        for number, cursor in sorted(self.topics[name].partitions.items())
                    },
                }
                for name in sorted(self.topics)
            },
        }
        return Document(kind=KIND, version=VERSION, body=body)

    @classmethod
    def from_document(cls, document: Document) -> "KafkaPositions":
        """Parse a document. Raises HaltedError if it has another kind, a later version, or is damaged."""
        try:
            return _read(document)
        except ValueError as error:
            raise HaltedError(
                f"The stored positions of the Kafka source cannot be read: {error}. Nothing was read from Kafka. "
                "Run the job with the program version that wrote them, or restore a checkpoint that this one can read."
            ) from None


def _read(document: Document) -> KafkaPositions:
    """Parse a document. Raises ValueError with the reason."""
    if document.kind != KIND:
        raise ValueError(f"the document is of kind {document.kind!r}, and this source reads {KIND!r}")
    if document.version not in (_WITHOUT_EPOCHS, VERSION):
        raise ValueError(
            f"the document has version {document.version}, this program knows versions {_WITHOUT_EPOCHS} to {VERSION}"
        )
    try:
        return KafkaPositions(
            cluster=_text(document.body["cluster"]),
            cluster_id=_text(document.body["cluster_id"]),
            bound=None if document.body["bound"] is None else _text(document.body["bound"]),
            topics={
                _text(name): _topic(topic, epochs=document.version != _WITHOUT_EPOCHS)
                for name, topic in document.body["topics"].items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the document is damaged ({type(error).__name__}: {error})") from None


def _topic(raw: Any, *, epochs: bool) -> TopicPosition:
    partitions = {}
    for number, cursor in raw["partitions"].items():
        end, epoch = cursor["end"], cursor["epoch"] if epochs else None
        partitions[_number(int(number))] = Cursor(
            next=_number(cursor["next"]),
            end=None if end is None else _number(end),
            epoch=None if epoch is None else _number(epoch),
        )
    return TopicPosition(id=_text(raw["id"]), partitions=partitions)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_OFFSET:
        raise ValueError(f"{value!r} is not a number from 0 to {_MAX_OFFSET}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not text")
    return value


def check_positions(document: Document, base: Document | None, author: Author) -> None:
    """Validate positions before the coordinator accepts them.

    Raises ValueError for an unknown version or content, and for positions that go backwards from ``base``: a partition
    with a lower offset or leader epoch, a missing partition, another topic of the same name, another cluster.
    """
    after = _read(document)
    if base is None:
        return
    try:
        before = _read(base)
    except ValueError as error:
        raise ValueError(f"those of the base cannot be read: {error}") from None
    if after.cluster_id != before.cluster_id:
        raise ValueError(f"they are of cluster {after.cluster_id}, the base's of {before.cluster_id}")
    for name, topic in before.topics.items():
        if name not in after.topics:
            raise ValueError(f"topic {name} of the base is missing")
        if after.topics[name].id != topic.id:
            raise ValueError(f"topic {name} has id {after.topics[name].id}, in the base {topic.id}: it was recreated")
    found = dict(after)
    for partition, cursor in before:
        if partition not in found:
            raise ValueError(f"{partition} of the base is missing")
        if found[partition].next < cursor.next:
            raise ValueError(f"{partition} goes backwards, from offset {cursor.next} to {found[partition].next}")
        epoch = found[partition].epoch
        if cursor.epoch is not None and epoch is not None and epoch < cursor.epoch:
            raise ValueError(f"{partition} goes backwards, from leader epoch {cursor.epoch} to {epoch}")


def skip_to(document: Document, topic: str, partition: int, offset: int) -> tuple[Document, int]:
    """Return the positions with one partition moved to ``offset``, and its previous offset.

    The coordinator calls it when a person moves a job past deleted input, or lets it continue at its position in a
    log that was replaced. Raises ValueError for a partition without a position, for an offset before the position, and
    for an offset equal to it if the position has no epoch.
    """
    try:
        positions = KafkaPositions.from_document(document)
    except HaltedError as error:
        raise ValueError(str(error)) from None
    where = Partition(topic, partition)
    if where not in positions:
        known = ", ".join(str(one) for one, _ in positions) or "none"
        raise ValueError(f"{where} has no position; there are positions of {known}")
    cursor = positions.topics[topic].partitions[partition]
    if _number(offset) < cursor.next or (offset == cursor.next and cursor.epoch is None):
        raise ValueError(f"{where} is read next from offset {cursor.next}; {offset} is not after it")
    moved = positions.moved({where: replace(cursor, next=offset, epoch=None)}, bound=positions.bound)
    return moved.to_document(), cursor.next
