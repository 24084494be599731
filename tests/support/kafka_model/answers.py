"""Answers of the model, named like kafka-python's; only fields that are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

__all__ = [
    "Broker",
    "Coded",
    "ConfigEntry",
    "ConfigResult",
    "Configs",
    "Coordinator",
    "Coordinators",
    "DeletedGroup",
    "DeletedGroups",
    "Ended",
    "Enlisted",
    "EnlistedPartition",
    "EnlistedTopic",
    "Feature",
    "GroupOffsets",
    "Groups",
    "Initialised",
    "ListedGroup",
    "ListedTransaction",
    "ListedTransactions",
    "Metadata",
    "OffsetTopic",
    "OffsetsCommitted",
    "OffsetsFetched",
    "PartitionCode",
    "PartitionFacts",
    "PartitionOffset",
    "Produced",
    "TopicCode",
    "TopicFacts",
    "TopicPartitions",
    "TopicsCreated",
    "TransactionDescription",
    "TransactionDescriptions",
    "Versions",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Coded:
    """An answer that consists of a code only."""

    error_code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EnlistedPartition:
    partition_error_code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EnlistedTopic:
    results_by_partition: Sequence[EnlistedPartition]


@dataclass(frozen=True, kw_only=True, slots=True)
class Enlisted:
    """Answer to AddPartitionsToTxnRequest."""

    results_by_topic_v3_and_below: Sequence[EnlistedTopic]


@dataclass(frozen=True, kw_only=True, slots=True)
class Broker:
    """A broker named by the cluster."""

    node_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionFacts:
    """The leader of a partition."""

    partition_index: int
    leader_id: int
    replica_nodes: Sequence[int]
    leader_epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicFacts:
    """A topic in the metadata."""

    name: str
    error_code: int
    topic_id: UUID | None = None
    partitions: Sequence[PartitionFacts] = ()
    is_internal: bool = False
    authorized_operations: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """Answer to MetadataRequest."""

    cluster_id: str
    brokers: Sequence[Broker]
    topics: Sequence[TopicFacts]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """A finalized feature of the cluster."""

    name: str
    max_version_level: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """Answer to ApiVersionsRequest."""

    error_code: int
    finalized_features: Sequence[Feature]


@dataclass(frozen=True, kw_only=True, slots=True)
class Coordinator:
    """Where the coordinator of one key is."""

    key: str
    node_id: int
    error_code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Coordinators:
    """Answer to FindCoordinatorRequest."""

    coordinators: Sequence[Coordinator]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """Answer to EndTxnRequest; producer id and epoch from version 5, else -1."""

    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Initialised:
    """Answer to InitProducerIdRequest."""

    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicPartitions:
    """Partitions of one topic in a transaction."""

    topic: str
    partitions: Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionDescription:
    """What a coordinator reports about one id."""

    error_code: int
    transactional_id: str
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: Sequence[TopicPartitions] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionDescriptions:
    """Answer to DescribeTransactionsRequest."""

    transaction_states: Sequence[TransactionDescription]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedTransaction:
    """One entry of a list."""

    transactional_id: str
    producer_id: int
    transaction_state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedTransactions:
    """Answer to ListTransactionsRequest."""

    error_code: int
    unknown_state_filters: Sequence[str] = ()
    transaction_states: Sequence[ListedTransaction] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionOffset:
    """One committed offset; -1 and empty if there is none."""

    partition_index: int
    committed_offset: int
    metadata: str
    error_code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetTopic:
    """Committed offsets of one topic."""

    name: str
    partitions: Sequence[PartitionOffset]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupOffsets:
    """Committed offsets of one group."""

    group_id: str
    error_code: int
    topics: Sequence[OffsetTopic] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetsFetched:
    """Answer to OffsetFetchRequest from version 8."""

    groups: Sequence[GroupOffsets]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionCode:
    """The result for one partition's offset."""

    partition_index: int
    error_code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicCode:
    """The result for one topic's offsets, or for its creation."""

    name: str
    error_code: int = 0
    partitions: Sequence[PartitionCode] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetsCommitted:
    """Answer to OffsetCommitRequest."""

    topics: Sequence[TopicCode]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeletedGroup:
    """The result for one group."""

    group_id: str
    error_code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeletedGroups:
    """Answer to DeleteGroupsRequest."""

    results: Sequence[DeletedGroup]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedGroup:
    """One group that a broker coordinates."""

    group_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """Answer to ListGroupsRequest."""

    error_code: int
    groups: Sequence[ListedGroup] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigEntry:
    """One setting."""

    name: str
    value: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigResult:
    """Settings of one resource."""

    error_code: int
    configs: Sequence[ConfigEntry] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Configs:
    """Answer to DescribeConfigsRequest."""

    results: Sequence[ConfigResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicsCreated:
    """Answer to CreateTopicsRequest."""

    topics: Sequence[TopicCode]


@dataclass(frozen=True, kw_only=True, slots=True)
class Produced:
    """Answer to a produce request for one partition, with the offset of its first record."""

    error_code: int
    base_offset: int = -1
