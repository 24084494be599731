"""How much is measured."""

from dataclasses import dataclass
from enum import StrEnum

from benchmarks.workloads import RECORD_BYTES

__all__ = ["Placed", "Sizes"]


class Placed(StrEnum):
    """Where the records of an input are. Both topics of a run have the same number of partitions."""

    EVENLY = "evenly"
    """Each partition holds as many as every other one, whatever their keys: what is read from one partition goes to
    all partitions of the output."""
    BY_KEY = "by key"
    """As a producer with Java's partitioner leaves them: what is read from one partition goes to the same one of the
    output."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of one benchmark."""

    records: int = 12_000_000
    """Ten seconds at a million per second: checkpoints of a second are counted, and not the first of them."""
    record_bytes: int = RECORD_BYTES
    """Of key and value together."""
    placed: Placed = Placed.EVENLY
    partitions: int = 4
    threads: int = 2
    interval_ms: int = 1_000
    per_checkpoint: int = 0
    """0: each system as it does by itself; ours sizes its checkpoints by the time that they take."""
    rate: int = 20_000
    """Records/s of the steady load, and of what is added to a backlog."""
    steady_s: float = 20.0
    warm_s: float = 10.0
    small_checkpoints: int = 300
    small_records: int = 1_000
