"""The settings of a modelled cluster, and producer requests that kafka-python does not have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = [
    "OFFSETS_TOPIC",
    "AddOffsets",
    "AddPartitions",
    "CommitOffsets",
    "Offset",
    "Partition",
    "Produce",
    "Record",
    "Settings",
]

OFFSETS_TOPIC = "__consumer_offsets"

Partition = tuple[str, int]
"""Topic and partition number."""

_DAY_S = 86_400.0


def _unused(_transactional_id: str) -> int:
    return -1


def _never(_transactional_id: str, _partition: Partition) -> bool:
    return False


def _at_once(_transactional_id: str, _partition: Partition) -> float:
    return 0.002


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a cluster. Times are in virtual seconds."""

    brokers: tuple[int, ...] = (1,)
    cluster_id: str = "simulated-cluster"
    transaction_version: int = 2
    coordinator_partitions: int = 4
    """For transaction coordinators and for group coordinators, each."""
    max_timeout_ms: int = 900_000
    timeout_scan_s: float = 10.0
    id_expiration_s: float = 7 * _DAY_S
    id_expiration_scan_s: float = 3_600.0
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_scan_s: float = 600.0
    last_used_epoch: Callable[[str], int] = _unused
    """The epoch that a transactional id had before the cluster's history begins; -1 = it is new."""
    marker_delay: Callable[[str, Partition], float] = _at_once
    """Seconds from the decision to the marker in one partition, by transactional id. The last marker completes the
    transaction."""
    skips_marker: Callable[[str, Partition], bool] = _never
    """Whether a coordinator takes a partition for deleted and completes the transaction without a marker there, as real
    ones do while they know no leader of it (TransactionMarkerChannelManager). Asked for each end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A record to produce. `stamp`: ms since 1970, 0 for now."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    stamp: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AddPartitions:
    """Enlist partitions in a transaction, as clients before transaction version 2 do. Answer: Coded."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[Partition]


@dataclass(frozen=True, kw_only=True, slots=True)
class AddOffsets:
    """Enlist a group's partition of the offsets topic. Answer: Coded."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Offset:
    """An offset to commit, with its metadata."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitOffsets:
    """TxnOffsetCommit: offsets that become visible when the transaction commits. Answer: Coded.

    `implicit`: also enlist the offsets partition (version 5, transaction version 2).
    """

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    offsets: Mapping[Partition, Offset] = field(default_factory=dict)
    implicit: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Produce:
    """One batch for one partition. Answer: Produced.

    `implicit`: also enlist the partition (version 12, transaction version 2). Without a transactional id the batch is
    not part of a transaction; with producer id -1 it is not idempotent either.
    """

    partition: Partition
    records: Sequence[Record]
    transactional_id: str | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    implicit: bool = False
