"""Sizes of the measurements."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.systems import Task
from benchmarks.workloads import RECORD_BYTES

__all__ = ["Placed", "Sizes"]


class Placed(StrEnum):
    """The distribution of an input's records. Both topics of a run have the same number of partitions."""

    EVENLY = "evenly"
    """All partitions hold equally many, whatever the keys: records read from one partition go to all partitions of the
    output."""
    BY_KEY = "by key"
    """As a producer with Java's partitioner distributes them: records read from one partition go to the same partition
    of the output."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of one benchmark."""

    records: int = 12_000_000
    """Ten seconds at a million per second: the rate counts one-second checkpoints, without the first of them."""
    record_bytes: int = RECORD_BYTES
    """Of key and value together."""
    placed: Placed = Placed.EVENLY
    partitions: int = 4
    threads: int = 2
    interval_ms: int = 1_000
    per_checkpoint: int = 0
    """0: each system's default; ours sizes its checkpoints by their duration."""
    rate: int = 20_000
    """Records/s of the steady load, and of the additions to a backlog."""
    steady_s: float = 20.0
    warm_s: float = 10.0
    small_checkpoints: int = 300
    small_records: int = 1_000

    def task(
        self,
        workload: StrEnum,
        *,
        servers: str,
        source: str,
        name: str,
        scratch: Path,
        interval_ms: int | None = None,
        per_checkpoint: int | None = None,
        steady: bool = False,
    ) -> Task:
        """Return the task of one run. ``name``: also its output topic."""
        return Task(
            workload=workload,
            servers=servers,
            source=source,
            sink=name,
            name=name,
            partitions=self.partitions,
            threads=self.threads,
            interval_ms=self.interval_ms if interval_ms is None else interval_ms,
            per_checkpoint=self.per_checkpoint if per_checkpoint is None else per_checkpoint,
            scratch=scratch,
            steady=steady,
        )
