"""A Kafka cluster, as far as transactions need it: a state machine without clock, randomness or threads."""

from collections.abc import Callable, Collection
from typing import Any

from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

from onceward.sinks.kafka.control.control_plane import CoordinatorKind, NoAnswer
from tests.support.kafka_model.coordinators import TransactionCoordinators
from tests.support.kafka_model.directory import Directory
from tests.support.kafka_model.endings import Endings, Marked
from tests.support.kafka_model.fetching import Fetching
from tests.support.kafka_model.groups import Groups
from tests.support.kafka_model.log import PartitionLog
from tests.support.kafka_model.parts import Parts
from tests.support.kafka_model.placement import NO_BROKER, Shard
from tests.support.kafka_model.settings import AddOffsets, AddPartitions, CommitOffsets, Partition, Produce, Settings
from tests.support.kafka_model.state import ClusterState, TransactionTable
from tests.support.kafka_model.storage import Appended, Storage
from tests.support.kafka_model.transactions import Entry

__all__ = ["Cluster"]


class Cluster:
    """Brokers, addressed by node id. Time only moves forward; everything due happens before a request.

    Not modelled: replication lag (nothing acknowledged is lost, and the high watermark is the end), authorization,
    quotas, compaction, group members, producers that a partition forgot (the coordinator's check refuses their batches
    anyway).
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._state = ClusterState(self.settings)
        self._endings = Endings(self._state)
        self._coordinators = TransactionCoordinators(self._state, self._endings)
        self._storage = Storage(self._state, self._coordinators)
        self._directory = Directory(self._state)
        fetching, parts = Fetching(self._state), Parts(self._state)
        self._handlers: dict[type, Callable[[int, Any, float], Any]] = {
            EndTxnRequest: self._coordinators.end,
            InitProducerIdRequest: self._coordinators.initialise,
            DescribeTransactionsRequest: self._coordinators.describe,
            ListTransactionsRequest: self._coordinators.list,
            AddPartitions: self._coordinators.add_partitions,
            AddOffsets: self._coordinators.add_offsets,
            AddOffsetsToTxnRequest: self._coordinators.add_offsets,
            AddPartitionsToTxnRequest: self._coordinators.add_named_partitions,
            Produce: self._storage.produce,
            CommitOffsets: self._storage.commit_in_transaction,
            TxnOffsetCommitRequest: self._storage.txn_offset_commit,
            OffsetCommitRequest: self._storage.commit,
            OffsetFetchRequest: self._storage.fetch,
            ListGroupsRequest: self._storage.list_groups,
            DeleteGroupsRequest: self._storage.delete_groups,
            FetchRequest: fetching.fetch,
            ListOffsetsRequest: fetching.list_offsets,
            DescribeProducersRequest: parts.describe,
            WriteTxnMarkersRequest: parts.mark,
            FindCoordinatorRequest: self._directory.find,
            MetadataRequest: self._directory.metadata,
            ApiVersionsRequest: self._directory.versions,
            DescribeConfigsRequest: self._directory.configs,
            CreateTopicsRequest: self._directory.create,
        }

    # -- requests

    def handle(self, node: int, request: Any, now: float) -> Any:
        """`node`'s answer to a request that arrives at `now`, or NoAnswer when `node` does not run and nothing was
        done. Raises KeyError for a request that is not modelled."""
        if now < self._state.due and now >= self._state.now:
            self._state.now = now
        else:
            self._state.advance(now)
        if node not in self._state.alive:
            return NoAnswer(why=f"broker {node} does not run")
        return self._handlers[type(request)](node, request, now)

    def advance(self, now: float) -> None:
        """Let due markers, completions and time-outs happen."""
        self._state.advance(now)

    @property
    def next_event(self) -> float:
        """When the next event without a request is due; infinity for never."""
        return self._state.due

    @property
    def now(self) -> float:
        return self._state.now

    def on_marker(self, listener: Marked) -> None:
        """Call `listener` for every control marker: with it, committed records become visible."""
        self._endings.listeners.append(listener)

    def on_append(self, listener: Appended) -> None:
        """Call `listener` for every batch that is appended."""
        self._storage.listeners.append(listener)

    # -- state

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._state.create_topic(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        """Delete the topic and the offsets committed for it. Transactions that wrote to it end without it."""
        self._storage.delete_topic(topic)

    def log(self, partition: Partition) -> PartitionLog:
        """Raises KeyError when the partition does not exist."""
        log = self._state.log(partition)
        if log is None:
            raise KeyError(partition)
        return log

    def partitions(self, topic: str) -> int:
        return len(self._state.topics[topic])

    def entry(self, transactional_id: str) -> Entry | None:
        """What the current coordinator keeps. Read only."""
        return self._state.transaction_shard(transactional_id).table.get(transactional_id)

    def entries(self) -> list[Entry]:
        """All known transactional ids."""
        return [entry for shard in self._state.transactions for entry in shard.table.values()]

    # -- faults

    @property
    def alive(self) -> tuple[int, ...]:
        return tuple(self._state.alive)

    def fail(self, node: int, now: float, *, election_s: float = 1.0, loading_s: float = 0.2) -> None:
        """Stop `node` at once. Its partitions get another leader after `election_s`, if any broker runs then;
        coordinators load for `loading_s` more. Nothing acknowledged is lost."""
        self._state.advance(now)
        self._state.alive.remove(node)
        for shard in self._shards():
            if shard.leader == node:
                self._state.schedule(now + election_s, self._elect, shard, node, loading_s)
            shard.gone(node)
        for logs in self._state.topics.values():
            for log in logs:
                if log.leader == node:
                    log.leader = NO_BROKER
                    self._state.schedule(now + election_s, self._elect_log, log, node)

    def restart(self, node: int, now: float, *, loading_s: float = 0.2) -> None:
        """Start `node` again; it leads every partition that has no leader."""
        self._state.advance(now)
        self._state.alive = sorted({*self._state.alive, node})
        for shard in self._shards():
            self._elect(now, shard, node, loading_s)
        for logs in self._state.topics.values():
            for log in logs:
                self._elect_log(now, log, node)

    def move_coordinator(
        self,
        kind: CoordinatorKind,
        key: str,
        node: int,
        now: float,
        *,
        loading_s: float = 0.0,
        stale_s: float = 0.0,
        believers: Collection[int] = (),
    ) -> None:
        """Move the partition that keeps `key` (and others) to `node`.

        For `stale_s` seconds the former leader does not know it: it answers reads and refusals from its old state, and
        what it would have to write with NOT_COORDINATOR. `believers`: brokers, besides the former leader, that still
        name it as the coordinator. Raises ValueError when `node` does not run.
        """
        self._state.advance(now)
        if node not in self._state.alive:
            raise ValueError(f"broker {node} does not run")
        shard: Shard[TransactionTable] | Shard[Groups]
        if kind is CoordinatorKind.TRANSACTION:
            shard = self._state.transaction_shard(key)
        else:
            shard = self._state.group_shard(key)
        if shard.leader == node:
            return
        if stale_s > 0:
            believing = frozenset({shard.leader, *believers})
            shard.depose(node, now, loading_s=loading_s, stale_s=stale_s, believers=believing)
        else:
            shard.move(node, now, loading_s=loading_s)

    def _shards(self) -> list[Shard[Any]]:
        return [*self._state.transactions, *self._state.groups]

    def _elect(self, now: float, shard: Shard[Any], former: int, loading_s: float) -> None:
        if shard.leader == NO_BROKER:
            chosen = self._state.elected(former)
            if chosen != NO_BROKER:
                shard.move(chosen, now, loading_s=loading_s)

    def _elect_log(self, _now: float, log: PartitionLog, former: int) -> None:
        if log.leader == NO_BROKER:
            log.leader = self._state.elected(former)
