"""The measured systems: our job in its variants, the peers, and the client library as a reference mark."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Command", "Kind", "System", "Task"]


class Kind(StrEnum):
    """The role of a system in the comparison."""

    OURS = "ours"
    PEER = "peer"
    """Another system with exactly-once from Kafka to Kafka."""
    MARK = "mark"
    """Not a system: the limit of the client library."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run of one system: a pipeline that runs until SIGTERM. The system's program receives it as JSON."""

    workload: StrEnum
    """A `Workload`, or a query of `benchmarks.queries`."""
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
    """Between commits or checkpoints; 0 = back to back, if the system supports it."""
    per_checkpoint: int
    """Most records of one checkpoint, for systems with such a limit; 0 = the system decides."""
    scratch: Path
    """An existing directory for this run only."""
    steady: bool = False
    """The input arrives at a constant rate: the settings are those for short latencies."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "workload": self.workload.value, "scratch": str(self.scratch)}


@dataclass(frozen=True, kw_only=True)
class Command:
    """How to start a system. The process tree is the system: every process in it is measured, and ended."""

    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    """Added to this process's environment."""


class System(Protocol):
    """A system to measure."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def versions(self) -> dict[str, str]:
        """Versions of its components, beyond the machine's."""

    @property
    def settings(self) -> dict[str, str]:
        """The best settings found; benchmarks/README.md gives the reasons."""

    @property
    def steady_interval_ms(self) -> int:
        """Interval between commits or checkpoints for the lowest latency."""

    def set_up(self) -> None:
        """Set up all dependencies; idempotent. Raises SetUpError with the reason if that is impossible."""

    def command(self, task: Task) -> Command:
        """Return the command for ``task``. Raises NotOfferedError if the system does not support the workload."""
