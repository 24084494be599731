"""Topics and brokers as a cluster reports them: the one request for metadata, and what its answer says."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

__all__ = ["ClusterFacts", "TopicFacts", "cluster_facts", "metadata_request"]

_READ, _WRITE = 3, 4
"""Bit numbers in a set of authorized operations."""
_NOT_TOLD = 31
"""The bit that is set if the brokers do not report authorized operations."""


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """One topic as the cluster reports it."""

    name: str
    code: int
    """0 = exists; 3 = unknown; 29 = describing it is not authorized."""
    id: str = ""
    """Changes when a topic is deleted and recreated; empty if the brokers do not report it."""
    internal: bool = False
    """The brokers' own."""
    partitions: int = 0
    replication: int = 0
    """The smallest number of replicas of any partition."""
    may_write: bool | None = None
    """None if the brokers do not report it."""
    may_read: bool | None = None
    """None if the brokers do not report it."""
    leaders: Mapping[int, int] = field(default_factory=dict)
    """The brokers that lead, by partition; -1 if it has no leader."""
    epochs: Mapping[int, int] = field(default_factory=dict)
    """Of the leaders, by partition."""
    holders: frozenset[int] = frozenset()
    """The brokers with a replica of any partition, running or not."""


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """What an answer says."""

    id: str
    brokers: tuple[int, ...]
    """Those that run, ascending."""
    topics: Mapping[str, TopicFacts]


def metadata_request(names: Collection[str] | None) -> MetadataRequest:
    """Return the request for these topics; None: for all. It creates none."""
    topic = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=None if names is None else [topic(name=name) for name in sorted(set(names))],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        min_version=8,
        max_version=12,
    )


def cluster_facts(answer: MetadataResponse) -> ClusterFacts:
    return ClusterFacts(
        id=str(answer.cluster_id),
        brokers=tuple(sorted(int(broker.node_id) for broker in answer.brokers)),
        topics={str(entry.name): _topic_facts(entry) for entry in answer.topics},
    )


def _topic_facts(entry: MetadataResponse.MetadataResponseTopic) -> TopicFacts:
    operations = {int(bit) for bit in entry.authorized_operations or ()}
    return TopicFacts(
        name=str(entry.name),
        code=int(entry.error_code),
        id=str(entry.topic_id) if entry.topic_id else "",
        internal=bool(entry.is_internal),
        partitions=len(entry.partitions),
        replication=min((len(partition.replica_nodes) for partition in entry.partitions), default=0),
        may_write=None if _NOT_TOLD in operations else _WRITE in operations,
        may_read=None if _NOT_TOLD in operations else _READ in operations,
        leaders={int(partition.partition_index): int(partition.leader_id) for partition in entry.partitions},
        epochs={int(partition.partition_index): int(partition.leader_epoch) for partition in entry.partitions},
        holders=frozenset(int(node) for partition in entry.partitions for node in partition.replica_nodes),
    )
