"""A Kafka cluster as far as transactions need it: a state machine without clock, chance or threads."""

from collections.abc import Callable, Collection
from typing import Any

from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DescribeConfigsRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from sinks.kafka.control import CoordinatorKind, NoAnswer
from tests.simulation.kafka.answers import (
    Broker,
    Code,
    ConfigEntry,
    ConfigResult,
    Configs,
    Coordinator,
    Coordinators,
    Feature,
    Metadata,
    PartitionFacts,
    TopicCode,
    TopicFacts,
    TopicsCreated,
    Versions,
)
from tests.simulation.kafka.coordinators import Marked, TransactionCoordinators
from tests.simulation.kafka.groups import Groups
from tests.simulation.kafka.log import PartitionLog
from tests.simulation.kafka.placement import NOBODY, Shard
from tests.simulation.kafka.settings import AddOffsets, AddPartitions, CommitOffsets, Partition, Produce, Settings
from tests.simulation.kafka.state import ClusterState, TransactionTable
from tests.simulation.kafka.storage import Appended, Storage
from tests.simulation.kafka.transactions import Entry

__all__ = ["Cluster"]

_ALL_RIGHTS = frozenset(range(2, 13))
_TOPIC, _BROKER = 2, 4


class Cluster:
    """Brokers, addressed by node id. Time only moves forward; everything that is due happens first.

    Not modelled: replication that lags behind (what is acknowledged is never lost, and the high watermark is the end),
    rights, quotas, compaction, members of groups, forgotten producers of a partition (their batches are refused by the
    coordinator's check all the same).
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._state = ClusterState(self.settings)
        self._coordinators = TransactionCoordinators(self._state)
        self._storage = Storage(self._state, self._coordinators)
        self._handlers: dict[type, Callable[[int, Any, float], Any]] = {
            EndTxnRequest: self._coordinators.end,
            InitProducerIdRequest: self._coordinators.initialise,
            DescribeTransactionsRequest: self._coordinators.describe,
            ListTransactionsRequest: self._coordinators.list,
            AddPartitions: self._coordinators.add_partitions,
            AddOffsets: self._coordinators.add_offsets,
            Produce: self._storage.produce,
            CommitOffsets: self._storage.commit_in_transaction,
            OffsetCommitRequest: self._storage.commit,
            OffsetFetchRequest: self._storage.fetch,
            DeleteGroupsRequest: self._storage.delete_groups,
            FindCoordinatorRequest: self._find,
            MetadataRequest: self._metadata,
            ApiVersionsRequest: self._versions,
            DescribeConfigsRequest: self._configs,
            CreateTopicsRequest: self._create,
        }

    # -- requests

    def handle(self, node: int, request: Any, now: float) -> Any:
        """`node`'s answer to a request that arrives at `now`, or NoAnswer when `node` does not run: then nothing was
        done. Raises KeyError for a request that is not modelled."""
        if now < self._state.due and now >= self._state.now:
            self._state.now = now
        else:
            self._state.advance(now)
        if node not in self._state.alive:
            return NoAnswer(why=f"broker {node} does not run")
        return self._handlers[type(request)](node, request, now)

    def advance(self, now: float) -> None:
        """Let markers, completions and time-outs happen that are due."""
        self._state.advance(now)

    @property
    def next_event(self) -> float:
        """When something happens by itself next; infinity for never."""
        return self._state.due

    @property
    def now(self) -> float:
        return self._state.now

    def on_marker(self, listener: Marked) -> None:
        """Call `listener` for every control marker: what was committed becomes visible with it."""
        self._coordinators.listeners.append(listener)

    def on_append(self, listener: Appended) -> None:
        """Call `listener` for every batch that is appended."""
        self._storage.listeners.append(listener)

    # -- what is there

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        brokers = self.settings.brokers
        self._state.topics[topic] = [
            PartitionLog(self._state.elected(brokers[number % len(brokers)])) for number in range(partitions)
        ]

    def delete_topic(self, topic: str) -> None:
        """Offsets committed for it are gone too; transactions that wrote to it end without it."""
        self._storage.delete_topic(topic)

    def log(self, partition: Partition) -> PartitionLog:
        """Raises KeyError when there is no such partition."""
        log = self._state.log(partition)
        if log is None:
            raise KeyError(partition)
        return log

    def partitions(self, topic: str) -> int:
        return len(self._state.topics[topic])

    def entry(self, transactional_id: str) -> Entry | None:
        """What the coordinator in office keeps: to look at, not to change."""
        return self._state.transaction_shard(transactional_id).table.get(transactional_id)

    def entries(self) -> list[Entry]:
        """All transactional ids that are known."""
        return [entry for shard in self._state.transactions for entry in shard.table.values()]

    # -- what befalls it

    @property
    def alive(self) -> tuple[int, ...]:
        return tuple(self._state.alive)

    def fail(self, node: int, now: float, *, election_s: float = 1.0, loading_s: float = 0.2) -> None:
        """`node` stops at once. What it led gets another leader after `election_s`, if any broker runs then, and
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
                    log.leader = NOBODY
                    self._state.schedule(now + election_s, self._elect_log, log, node)

    def restart(self, node: int, now: float, *, loading_s: float = 0.2) -> None:
        """`node` runs again, and takes what nobody leads."""
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
        """The partition that keeps `key` (and others) moves to `node`.

        `stale_s`: for so long the former leader does not know it, and answers from what it knew: reads and refusals;
        what it would have to write it answers with NOT_COORDINATOR. `believers`: brokers that still name it when they
        are asked for the coordinator, besides itself. Raises ValueError when `node` does not run.
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
        if shard.leader == NOBODY:
            chosen = self._state.elected(former)
            if chosen != NOBODY:
                shard.move(chosen, now, loading_s=loading_s)

    def _elect_log(self, _now: float, log: PartitionLog, former: int) -> None:
        if log.leader == NOBODY:
            log.leader = self._state.elected(former)

    # -- requests about the cluster

    def _find(self, node: int, request: Any, now: float) -> Coordinators:
        found = []
        for key in request.coordinator_keys:
            shard: Shard[Any]
            if request.key_type == CoordinatorKind.TRANSACTION:
                shard = self._state.transaction_shard(key)
            else:
                shard = self._state.group_shard(key)
            leader = shard.leader_according_to(node, now)
            code = Code.COORDINATOR_NOT_AVAILABLE if leader == NOBODY else Code.NONE
            found.append(Coordinator(key=key, node_id=leader, error_code=code))
        return Coordinators(coordinators=found)

    def _metadata(self, _node: int, request: Any, _now: float) -> Metadata:
        if request.topics is None:
            names = list(self._state.topics)
        else:
            names = [str(topic.name) for topic in request.topics]
        return Metadata(
            cluster_id=self.settings.cluster_id,
            brokers=[Broker(node_id=node) for node in self._state.alive],
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> TopicFacts:
        logs = self._state.topics.get(name)
        if logs is None:
            return TopicFacts(name=name, error_code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        replicas = self.settings.brokers[:3]
        return TopicFacts(
            name=name,
            error_code=Code.NONE,
            partitions=[
                PartitionFacts(partition_index=number, leader_id=log.leader, replica_nodes=replicas)
                for number, log in enumerate(logs)
            ],
            authorized_operations=_ALL_RIGHTS,
        )

    def _versions(self, _node: int, _request: Any, _now: float) -> Versions:
        level = self.settings.transaction_version
        features = [Feature(name="transaction.version", max_version_level=level)] if level else []
        return Versions(error_code=Code.NONE, finalized_features=features)

    def _configs(self, _node: int, request: Any, _now: float) -> Configs:
        replicas = min(3, len(self.settings.brokers))
        of_broker = {
            "offsets.retention.minutes": str(self.settings.offsets_retention_minutes),
            "transaction.max.timeout.ms": str(self.settings.max_timeout_ms),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(min(2, replicas)),
        }
        of_topic = {"min.insync.replicas": str(min(2, replicas)), "unclean.leader.election.enable": "false"}
        kinds = {_BROKER: of_broker, _TOPIC: of_topic}
        return Configs(
            results=[
                ConfigResult(
                    error_code=Code.NONE,
                    configs=[
                        ConfigEntry(name=key, value=kinds[resource.resource_type][key])
                        for key in resource.configuration_keys
                    ],
                )
                for resource in request.resources
            ]
        )

    def _create(self, _node: int, request: Any, _now: float) -> TopicsCreated:
        codes = []
        for topic in request.topics:
            known = topic.name in self._state.topics
            if not known:
                self.create_topic(str(topic.name), int(topic.num_partitions))
            code = Code.TOPIC_ALREADY_EXISTS if known else Code.NONE
            codes.append(TopicCode(name=str(topic.name), error_code=code))
        return TopicsCreated(topics=codes)
