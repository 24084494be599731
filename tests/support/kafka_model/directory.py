"""What any broker reports about the cluster: coordinators, leaders, settings, features."""

from typing import Any
from uuid import NAMESPACE_OID, uuid5

from onceward.sinks.kafka.control.control_plane import TRANSACTIONS_TOPIC, CoordinatorKind
from tests.support.kafka_model.answers import (
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
from tests.support.kafka_model.placement import NOBODY, Shard
from tests.support.kafka_model.state import ClusterState

__all__ = ["Directory"]

_ALL_RIGHTS = frozenset(range(2, 13))
_TOPIC, _BROKER = 2, 4


class Directory:
    """Requests that every broker answers alike, except about coordinators that moved without its knowledge."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def find(self, node: int, request: Any, now: float) -> Coordinators:
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

    def metadata(self, _node: int, request: Any, _now: float) -> Metadata:
        if request.topics is None:
            names = list(self._state.topics)
        else:
            names = [str(topic.name) for topic in request.topics]
        return Metadata(
            cluster_id=self._state.settings.cluster_id,
            brokers=[Broker(node_id=node) for node in self._state.alive],
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> TopicFacts:
        if name == TRANSACTIONS_TOPIC:
            leaders = [
                PartitionFacts(partition_index=shard.number, leader_id=shard.leader, replica_nodes=())
                for shard in self._state.transactions
            ]
            return TopicFacts(name=name, error_code=Code.NONE, partitions=leaders)
        logs = self._state.topics.get(name)
        if logs is None:
            return TopicFacts(name=name, error_code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        replicas = self._state.settings.brokers[:3]
        return TopicFacts(
            name=name,
            error_code=Code.NONE,
            topic_id=uuid5(NAMESPACE_OID, name),
            partitions=[
                PartitionFacts(partition_index=number, leader_id=log.leader, replica_nodes=replicas)
                for number, log in enumerate(logs)
            ],
            authorized_operations=_ALL_RIGHTS,
        )

    def versions(self, _node: int, _request: Any, _now: float) -> Versions:
        level = self._state.settings.transaction_version
        features = [Feature(name="transaction.version", max_version_level=level)] if level else []
        return Versions(error_code=Code.NONE, finalized_features=features)

    def configs(self, _node: int, request: Any, _now: float) -> Configs:
        replicas = min(3, len(self._state.settings.brokers))
        of_broker = {
            "offsets.retention.minutes": str(self._state.settings.offsets_retention_minutes),
            "transaction.max.timeout.ms": str(self._state.settings.max_timeout_ms),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(min(2, replicas)),
        }
        of_topic = {
            "max.message.bytes": "1048588",
            "min.insync.replicas": str(min(2, replicas)),
            "unclean.leader.election.enable": "false",
        }
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

    def create(self, _node: int, request: Any, _now: float) -> TopicsCreated:
        codes = []
        for topic in request.topics:
            known = topic.name in self._state.topics
            if not known:
                self._state.create_topic(str(topic.name), int(topic.num_partitions))
            code = Code.TOPIC_ALREADY_EXISTS if known else Code.NONE
            codes.append(TopicCode(name=str(topic.name), error_code=code))
        return TopicsCreated(topics=codes)
