"""The driver's requests to partition leaders about epochs. Raw requests, because librdkafka offers none of these.

Connects for each round of requests. There is one at a start and one after each election, none in between.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from kafka.protocol.admin import DescribeProducersRequest, DescribeProducersResponse
from kafka.protocol.consumer import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

from onceward.common.errors import CheckpointFailedError
from onceward.common.links import Links
from onceward.connections.cluster import KafkaCluster
from onceward.connections.errors import ControlPlaneError
from onceward.connections.requests import BrokerRequests, NoAnswer
from onceward.connections.topics import cluster_facts, metadata_request
from onceward.sources.kafka.control.metadata import insist
from onceward.sources.kafka.epochs import (
    Asked,
    AskEnds,
    Difference,
    EpochEnd,
    Lineage,
    Unknown,
    difference,
    lineages,
    refuse_differences,
)
from onceward.sources.kafka.positions import Cursor, Partition

__all__ = ["Leaders", "OpenTransaction"]

_CONSUMER = -1
"""Replica id of a client that is not a follower."""
_Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
_Partition = _Topic.OffsetForLeaderPartition


class OpenTransaction(NamedTuple):
    start: int
    """Offset of its first record in the partition."""
    producer: str
    """Who writes it, and when it did so last, for people."""


class Leaders:
    """The leaders of one cluster's partitions. Every method raises CheckpointFailedError if they do not answer."""

    def __init__(self, cluster: KafkaCluster, links: Links) -> None:
        self._cluster = cluster
        self._links = links
        self._lineages: dict[Partition, Lineage] = {}
        """Lineages for plans. Each is valid until its leader changes."""

    def differences(self, cursors: Mapping[Partition, Cursor]) -> list[Difference]:
        """Return differences for the logs that are not the ones read up to these cursors."""

        def ask(partitions: Collection[Partition]) -> dict[Partition, Difference | None]:
            with self._asking(partitions) as (leaders, ends):
                found = ends(_epochs({p: cursors[p] for p in partitions}, leaders))
            return {p: difference(p, cursors[p], end) for p, end in found.items()}

        known = {p for p, cursor in cursors.items() if cursor.epoch is not None}
        return [one for one in insist(ask, known).values() if one is not None]

    def epochs_before(self, offsets: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Return the epochs of the records before these offsets; None if unknown."""

        def ask(partitions: Collection[Partition]) -> dict[Partition, int | None]:
            with self._asking(partitions) as (leaders, ends):
                found = lineages({p: Unknown(epoch, offsets[p] - 1) for p, epoch in leaders.items()}, ends)
            return {p: lineage.before(offsets[p], None) for p, lineage in found.items()}

        return {**dict.fromkeys(offsets), **insist(ask, [p for p, offset in offsets.items() if offset > 0])}

    def open_transactions(self, partitions: Collection[Partition]) -> dict[Partition, OpenTransaction]:
        """Return the transaction that begins first, of each partition that has an open one. Omits partitions whose
        leader does not answer, or not to this user. Sends nothing if there are no partitions."""
        if not partitions:
            return {}
        with self._connected() as requests:
            return _open_transactions(requests, _leaders(requests, partitions)[0])

    def lineages(
        self, cursors: Mapping[Partition, Cursor], leaders: Mapping[Partition, int]
    ) -> dict[Partition, Lineage]:
        """Return the epochs of the records after the cursors. Raises HaltedError for logs that are not the ones read up
        to the cursors.

        ``leaders``: the epochs of the leaders that reported the log ends. No request is sent while they equal the
        cursors' epochs, or those of the last call. Omits partitions whose leader has changed since.
        """
        for partition, epoch in leaders.items():
            if cursors[partition].epoch == epoch:
                self._lineages[partition] = Lineage(epoch)
        new = {p: epoch for p, epoch in leaders.items() if not self._leads(p, epoch)}
        if new:
            self._ask_for_lineages({partition: cursors[partition] for partition in new}, new)
        return {p: self._lineages[p] for p, epoch in leaders.items() if self._leads(p, epoch)}

    def _ask_for_lineages(self, cursors: Mapping[Partition, Cursor], leaders: Mapping[Partition, int]) -> None:
        with self._asking(cursors) as (_, ends):
            ended = ends(_epochs(cursors, leaders))
            differences = [difference(partition, cursors[partition], end) for partition, end in ended.items()]
            refuse_differences([one for one in differences if one is not None])
            same = {p for p, cursor in cursors.items() if p in ended or cursor.epoch is None}
            wanted = {p: Unknown(leaders[p], cursors[p].next, cursors[p].epoch) for p in same}
            self._lineages.update(lineages(wanted, ends))

    def _leads(self, partition: Partition, epoch: int) -> bool:
        return partition in self._lineages and self._lineages[partition].leader == epoch

    @contextmanager
    def _asking(self, partitions: Collection[Partition]) -> Iterator[tuple[dict[Partition, int], AskEnds]]:
        """Yield the leaders' epochs, from the metadata, and a function that requests the ends of epochs."""
        with self._connected() as requests:
            nodes, epochs = _leaders(requests, partitions)
            yield epochs, lambda asked: _ends(requests, nodes, asked)

    @contextmanager
    def _connected(self) -> Iterator[BrokerRequests]:
        requests = BrokerRequests(self._cluster, links=self._links)
        try:
            yield requests
        except ControlPlaneError as error:
            raise CheckpointFailedError(str(error)) from None
        finally:
            requests.close()


def _epochs(cursors: Mapping[Partition, Cursor], leaders: Mapping[Partition, int]) -> dict[Partition, Asked]:
    return {
        p: Asked(leaders[p], cursor.epoch) for p, cursor in cursors.items() if p in leaders and cursor.epoch is not None
    }


def _leaders(
    requests: BrokerRequests, partitions: Collection[Partition]
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Return nodes and epochs of the leaders; omits partitions without one."""
    topics = cluster_facts(requests.ask(metadata_request({p.topic for p in partitions}))).topics
    led = [p for p in partitions if topics[p.topic].leaders.get(p.number, -1) >= 0]
    return {p: topics[p.topic].leaders[p.number] for p in led}, {p: topics[p.topic].epochs[p.number] for p in led}


def _ends(
    requests: BrokerRequests, nodes: Mapping[Partition, int], asked: Mapping[Partition, Asked]
) -> dict[Partition, EpochEnd]:
    by_node: dict[int, dict[str, list[_Partition]]] = defaultdict(lambda: defaultdict(list))
    for partition, (leader, epoch) in asked.items():
        if partition in nodes:
            by_node[nodes[partition]][partition.topic].append(
                _Partition(partition=partition.number, current_leader_epoch=leader, leader_epoch=epoch)
            )
    sent = [
        (
            node,
            OffsetForLeaderEpochRequest(
                replica_id=_CONSUMER,
                topics=[_Topic(topic=name, partitions=partitions) for name, partitions in topics.items()],
                min_version=3,
                max_version=4,
            ),
        )
        for node, topics in by_node.items()
    ]
    found = {}
    answers: list[OffsetForLeaderEpochResponse | NoAnswer] = requests.send_all(sent)
    for answer in answers:
        if isinstance(answer, NoAnswer):
            continue
        for topic in answer.topics:
            for one in topic.partitions:
                partition = Partition(str(topic.topic), int(one.partition))
                if one.error_code == 0:
                    found[partition] = _end(partition, asked[partition], int(one.leader_epoch), int(one.end_offset))
    return found


def _end(partition: Partition, asked: Asked, epoch: int, offset: int) -> EpochEnd:
    if epoch < 0:
        raise CheckpointFailedError(
            f"The leader of {partition} (leader epoch {asked.leader}) does not know leader epoch {asked.epoch}, of "
            "which this job has read records. Either that broker is out of date and another one leads by now, or the "
            "cluster was put back to an older state. Nothing was read; starting again asks again. If this stays, bring "
            "the cluster's newer state back, or start a job under another name with start= where the data begins."
        )
    return EpochEnd(epoch, offset)


def _open_transactions(requests: BrokerRequests, nodes: Mapping[Partition, int]) -> dict[Partition, OpenTransaction]:
    topic = DescribeProducersRequest.TopicRequest
    by_node: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for partition, node in nodes.items():
        by_node[node][partition.topic].append(partition.number)
    sent = [
        (node, DescribeProducersRequest(topics=[topic(name=name, partition_indexes=of) for name, of in named.items()]))
        for node, named in by_node.items()
    ]
    answers: list[DescribeProducersResponse | NoAnswer] = requests.send_all(sent)
    found = {}
    for answer in answers:
        for described in () if isinstance(answer, NoAnswer) else answer.topics:
            for one in described.partitions:
                begun = [each for each in one.active_producers if each.current_txn_start_offset >= 0]
                if begun:
                    first = min(begun, key=lambda each: int(each.current_txn_start_offset))
                    found[Partition(str(described.name), int(one.partition_index))] = OpenTransaction(
                        start=int(first.current_txn_start_offset),
                        producer=f"producer {first.producer_id}, epoch {first.producer_epoch}, "
                        f"last wrote {_time(int(first.last_timestamp))}",
                    )
    return found


def _time(milliseconds: int) -> str:
    """Return a record's time for people. Producers choose it, and may choose any number."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return f"at {milliseconds} ms since 1970"
