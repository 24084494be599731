"""Whether every partition still holds its part of an open transaction, by DescribeProducers from the leaders.

The transaction's coordinator answers EndTxn without knowing what the partitions hold. The brokers' tool for hanging
transactions (``kafka-transactions abort``) writes an ABORT marker into one partition, and an unclean leader election
truncates records. A commit is still answered with NONE, and the lost part never becomes visible.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kafka.protocol.admin import DescribeProducersRequest, DescribeProducersResponse

from onceward.connections.codes import ErrorCode
from onceward.connections.topics import TopicFacts
from onceward.sinks.kafka.control.brokers import describing_topics, topic_facts
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.control_plane import ControlPlane, NoAnswer, Operation
from onceward.sinks.kafka.control.logs import PartitionId
from onceward.sinks.kafka.errors import ControlPlaneError

__all__ = ["OpenPart", "Parts", "look_for_open", "open_parts", "reading_parts"]

_REFUSED = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION})
"""Error codes if the user lacks DESCRIBE or READ on the topic, or the brokers do not support the request."""


_AT_ONCE = 500
"""Partitions in one request: an answer names every producer that has written lately."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    records: int
    first_offset: int
    written_ms: int
    """When its last record was written, as that record says, in ms since 1970; negative if it says nothing."""


_Held = Mapping[tuple[int, int], _Part]
"""What one partition holds: (producer id, epoch) of each open transaction -> its part."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the partitions of one transaction hold."""

    gone: tuple[str, ...] = ()
    """Missing or incomplete parts, as text."""
    unknown: bool = False
    """A leader did not answer."""
    open: Mapping[PartitionId, int] = field(default_factory=dict)
    """Partitions in which the part has no marker yet, with the offset of its first record: readers wait there."""

    @property
    def whole(self) -> bool:
        """No part is missing and every leader answered: a commit makes every record visible.

        Partitions that the user may not describe count as whole.
        """
        return not self.gone and not self.unknown


def reading_parts(
    control: ControlPlane, handles: Collection[KafkaCommittable], topics: Mapping[str, TopicFacts] | None = None
) -> Operation[dict[int, Parts]]:
    """Return the parts of each transaction, by slot. Changes nothing. ``topics``: described a moment ago."""
    if topics is None:
        try:
            topics = yield from describing_topics(control, {name for handle in handles for name in handle.topics})
        except ControlPlaneError:
            return {handle.slot: Parts(unknown=True) for handle in handles}
    places = [
        (name, number) for one in handles for name, written in one.topics.items() for number in written.partitions
    ]
    held = yield from _held(topics, places, {handle.transaction.producer_id for handle in handles})
    return {handle.slot: _parts(handle, topics, held) for handle in handles}


@dataclass(frozen=True, kw_only=True)
class OpenPart:
    """What one partition holds of an open transaction."""

    place: PartitionId
    producer_id: int
    epoch: int
    first_offset: int
    written_ms: int = field(compare=False)
    """See :class:`_Part`."""


def look_for_open(
    control: ControlPlane, facts: Mapping[str, TopicFacts]
) -> tuple[list[OpenPart], list[PartitionId], list[PartitionId]]:
    """Return all open parts in the topics, the partitions that the user may not look into, and those whose leader does
    not answer. Raises ControlPlaneError."""
    places = [(name, number) for name, topic in sorted(facts.items()) for number in sorted(topic.leaders)]
    held: dict[PartitionId, _Held | None] = {}
    for start in range(0, len(places), _AT_ONCE):
        held |= control.run(_held(facts, places[start : start + _AT_ONCE], None))
    found = [
        OpenPart(
            place=place,
            producer_id=producer,
            epoch=epoch,
            first_offset=part.first_offset,
            written_ms=part.written_ms,
        )
        for place, parts in held.items()
        for (producer, epoch), part in (parts or {}).items()
    ]
    refused = [place for place in places if place in held and held[place] is None]
    return found, refused, [place for place in places if place not in held]


def open_parts(control: ControlPlane, topics: Collection[str] | None) -> dict[int, dict[PartitionId, tuple[int, int]]]:
    """Return every open part in ``topics``: producer id -> partition -> (epoch, first offset). Leaves out partitions
    whose leader does not answer or may not be asked. None: in all topics. Raises ControlPlaneError."""
    found: dict[int, dict[PartitionId, tuple[int, int]]] = {}
    for part in look_for_open(control, topic_facts(control, topics))[0]:
        found.setdefault(part.producer_id, {})[part.place] = (part.epoch, part.first_offset)
    return found


def _held(
    topics: Mapping[str, TopicFacts], places: Collection[PartitionId], producers: Collection[int] | None
) -> Operation[dict[PartitionId, _Held | None]]:
    """Return what each partition holds of ``producers``, None = of all; None if describing is not allowed, no entry if
    the leader did not answer."""
    asked: dict[int, dict[str, set[int]]] = {}
    for name, number in places:
        leader = topics[name].leaders.get(number, -1) if name in topics else -1
        if leader >= 0:
            asked.setdefault(leader, {}).setdefault(name, set()).add(number)
    topic = DescribeProducersRequest.TopicRequest
    answers: list[DescribeProducersResponse | NoAnswer] = yield [
        (
            leader,
            DescribeProducersRequest(
                topics=[topic(name=name, partition_indexes=sorted(found)) for name, found in sorted(named.items())]
            ),
        )
        for leader, named in asked.items()
    ]
    held: dict[PartitionId, _Held | None] = {}
    for named, answer in zip(asked.values(), answers, strict=True):
        if isinstance(answer, NoAnswer):
            if answer.code in _REFUSED:
                held.update({(name, number): None for name, found in named.items() for number in found})
            continue
        for entry in answer.topics:
            for partition in entry.partitions:
                place = (str(entry.name), int(partition.partition_index))
                if partition.error_code in _REFUSED:
                    held[place] = None
                elif partition.error_code == ErrorCode.NONE:
                    held[place] = {
                        (int(one.producer_id), int(one.producer_epoch)): _Part(
                            records=int(one.last_sequence) + 1,
                            first_offset=int(one.current_txn_start_offset),
                            written_ms=int(one.last_timestamp),
                        )
                        for one in partition.active_producers
                        if one.current_txn_start_offset >= 0 and (producers is None or one.producer_id in producers)
                    }
    return held


def _parts(
    handle: KafkaCommittable, topics: Mapping[str, TopicFacts], held: Mapping[PartitionId, _Held | None]
) -> Parts:
    gone: list[str] = []
    unknown = False
    open_: dict[PartitionId, int] = {}
    pair = (handle.transaction.producer_id, handle.transaction.epoch)
    for name, written in sorted(handle.topics.items()):
        topic = topics.get(name)
        if topic is None or topic.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            gone.append(f"topic {name} is not there")
        elif topic.code in _REFUSED:
            continue
        elif written.id and topic.id and written.id != topic.id:
            gone.append(f"topic {name} was deleted and recreated: its id was {written.id} and is {topic.id}")
        elif any((name, number) not in held for number in written.partitions):
            unknown = True
        else:
            found = [held[name, number] for number in written.partitions]
            gone += _missing(name, written, pair, found)
            for number, partition in zip(written.partitions, found, strict=True):
                if partition is not None and pair in partition:
                    open_[name, number] = partition[pair].first_offset
    return Parts(gone=tuple(gone), unknown=unknown, open=open_)


def _missing(name: str, written: TopicRecords, pair: tuple[int, int], held: Sequence[_Held | None]) -> Iterator[str]:
    records = 0
    for number, partition in zip(written.partitions, held, strict=True):
        if partition is None:
            return
        found = partition.get(pair)
        if found is None:
            yield f"{name}-{number} holds no open part of it"
            continue
        # A pair (producer id, epoch) begins at sequence 0 and serves one transaction: the last one counts its records.
        records += found.records
    if records < written.records:
        yield f"{records} of {written.records} records of {name} are there"
