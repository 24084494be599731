"""What the runs of all queries share: one broker, its topics, and how a system is started on them."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.queries.workloads import QueryWorkload
from benchmarks.running import Running
from benchmarks.sizes import Sizes
from benchmarks.systems import System
from benchmarks.topics import Topics
from onceward.dev.kafka import LocalKafka

__all__ = ["Ground"]


class Ground:
    """Starts systems in sequence on one broker."""

    def __init__(self, kafka: LocalKafka, sizes: Sizes, directory: Path) -> None:
        self._kafka, self.sizes, self._directory = kafka, sizes, directory
        self.topics = Topics(kafka.bootstrap_servers, sizes.partitions)
        self.topics.warm_up()

    @contextmanager
    def started(
        self, system: System, workload: QueryWorkload, source: str, *, steady: bool = False
    ) -> Iterator[Running]:
        """Run a system from ``source`` into a topic of its own, which has the run's name. ``steady``: the input arrives
        at a constant rate, and the system's settings are those for short latencies."""
        name = f"{system.name}-{workload}-{secrets.token_hex(3)}"
        scratch = self._directory / name
        scratch.mkdir()
        task = self.sizes.task(
            workload,
            servers=self._kafka.bootstrap_servers,
            source=source,
            name=name,
            scratch=scratch,
            interval_ms=system.steady_interval_ms if steady else None,
            per_checkpoint=0 if steady else None,
            steady=steady,
        )
        command = system.command(task)
        self.topics.create(name)
        try:
            with Running(name, command, scratch, self._kafka.pids.values()) as running:
                yield running
        finally:
            self.topics.delete(name)
