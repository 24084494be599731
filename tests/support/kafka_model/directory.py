"""What any broker reports about the cluster: coordinators, leaders, settings, features."""

from typing import Any
from uuid import NAMESPACE_OID, uuid5

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.control_plane import TRANSACTIONS_TOPIC, CoordinatorKind
from tests.support.kafka_model import answers
from tests.support.kafka_model.placement import NO_BROKER, Shard
from tests.support.kafka_model.state import ClusterState

__all__ = ["Directory"]

_ALL_RIGHTS = frozenset(range(2, 13))
_TOPIC, _BROKER = 2, 4


class Directory:
    """Requests that every broker answers alike, except about coordinators that moved without its knowledge."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def find(self, node: int, request: Any, now: float) -> answers.Coordinators:
        found = []
        for key in request.coordinator_keys:
            shard: Shard[Any]
            if request.key_type == CoordinatorKind.TRANSACTION:
                shard = self._state.transaction_shard(key)
            else:
                shard = self._state.group_shard(key)
            leader = shard.leader_according_to(node, now)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if leader == NO_BROKER else ErrorCode.NONE
            found.append(answers.Coordinator(key=key, node_id=leader, error_code=code))
        return answers.Coordinators(coordinators=found)

    def metadata(self, _node: int, request: Any, _now: float) -> answers.Metadata:
        if request.topics is None:
            names = list(self._state.topics)
        else:
            names = [str(topic.name) for topic in request.topics]
        return answers.Metadata(
            cluster_id=self._state.settings.cluster_id,
            brokers=[answers.Broker(node_id=node) for node in self._state.alive],
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> answers.TopicFacts:
        if name == TRANSACTIONS_TOPIC:
            leaders = [
                answers.PartitionFacts(partition_index=shard.number, leader_id=shard.leader, replica_nodes=())
                for shard in self._state.transactions
            ]
            return answers.TopicFacts(name=name, error_code=ErrorCode.NONE, partitions=leaders)
        logs = self._state.topics.get(name)
        if logs is None:
            return answers.TopicFacts(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        replicas = self._state.settings.brokers[:3]
        return answers.TopicFacts(
            name=name,
            error_code=ErrorCode.NONE,
            topic_id=uuid5(NAMESPACE_OID, name),
            partitions=[
                answers.PartitionFacts(partition_index=number, leader_id=log.leader, replica_nodes=replicas)
                for number, log in enumerate(logs)
            ],
            authorized_operations=_ALL_RIGHTS,
        )

    def versions(self, _node: int, _request: Any, _now: float) -> answers.Versions:
        level = self._state.settings.transaction_version
        features = [answers.Feature(name="transaction.version", max_version_level=level)] if level else []
        return answers.Versions(error_code=ErrorCode.NONE, finalized_features=features)

    def configs(self, _node: int, request: Any, _now: float) -> answers.Configs:
        replicas = min(3, len(self._state.settings.brokers))
        of_broker = {
            "offsets.retention.minutes": str(self._state.settings.offsets_retention_minutes),
            "transaction.max.timeout.ms": str(self._state.settings.max_timeout_ms),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(min(2, replicas)),
        }
        of_topic = {
            "cleanup.policy": "delete",
            "max.message.bytes": "1048588",
            "min.insync.replicas": str(min(2, replicas)),
            "unclean.leader.election.enable": "false",
        }
        kinds = {_BROKER: of_broker, _TOPIC: of_topic}
        return answers.Configs(
            results=[
                answers.ConfigResult(
                    error_code=ErrorCode.NONE,
                    configs=[
                        answers.ConfigEntry(name=key, value=kinds[resource.resource_type][key])
                        for key in resource.configuration_keys
                    ],
                )
                for resource in request.resources
            ]
        )

    def create(self, _node: int, request: Any, _now: float) -> answers.TopicsCreated:
        codes = []
        for topic in request.topics:
            known = topic.name in self._state.topics
            if not known:
                self._state.create_topic(str(topic.name), int(topic.num_partitions))
            code = ErrorCode.TOPIC_ALREADY_EXISTS if known else ErrorCode.NONE
            codes.append(answers.TopicCode(name=str(topic.name), error_code=code))
        return answers.TopicsCreated(topics=codes)
