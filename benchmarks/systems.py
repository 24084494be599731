"""What is measured: our job in its variants, the peers, and the client library's own mark."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from benchmarks.workloads import Workload

__all__ = ["Command", "Kind", "System", "Task"]


class Kind(StrEnum):
    """How a system enters the comparison."""

    OURS = "ours"
    PEER = "peer"
    """Another system with exactly-once from Kafka to Kafka."""
    MARK = "mark"
    """No system: what the client library can do."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run of one system: a pipeline that runs until SIGTERM. It is handed to the system's program as JSON."""

    workload: Workload
    servers: str
    source: str
    """Topic to read, from its beginning."""
    sink: str
    """Topic to write."""
    name: str
    """Unique on the broker: for groups and transactional ids."""
    partitions: int
    threads: int
    interval_ms: int
    """Between commits or checkpoints; 0 = back to back, where that can be said."""
    per_checkpoint: int
    """Most records of one checkpoint, for systems with such a limit; 0 = as many as the system finds right."""
    scratch: Path
    """A directory of the run's own, which exists."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "workload": self.workload.value, "scratch": str(self.scratch)}


@dataclass(frozen=True, kw_only=True)
class Command:
    """How to start a system. The process's tree is the system: all of it is measured, and ended."""

    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    """In addition to this process's own."""


class System(Protocol):
    """One thing to measure."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def versions(self) -> dict[str, str]:
        """Of what it is made of, beyond the machine's."""

    @property
    def settings(self) -> dict[str, str]:
        """The best found; docs/benchmarks.md says why."""

    @property
    def steady_interval_ms(self) -> int:
        """Between commits or checkpoints, for the lowest latency."""

    def set_up(self) -> None:
        """Make everything ready; idempotent. Raises SetUpError with the reason why it cannot be."""

    def command(self, task: Task) -> Command:
        """Raises NotOfferedError when the system does not do the workload."""
