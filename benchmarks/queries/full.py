"""A query over a full topic: its rate, from the ends of the output's partitions, as for the other full topics."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import TopicPartition

from benchmarks.errors import BenchmarkError
from benchmarks.queries.workloads import TRAILER, QueryWorkload, expected, found, outputs, record, trailer
from benchmarks.running import Figures, Running
from benchmarks.sizes import Sizes
from benchmarks.systems import System, Task
from benchmarks.topics import Ends, Topics
from onceward.coordinator.dev.kafka import LocalKafka

__all__ = ["Counted", "FullTopic", "without_short_rate"]

_BATCH = 10_000
_LEAST_S = 3.0
"""Output comes in bursts, a batch or an interval each: a rate over less time than this is chance."""


class Counted:
    """The last counts of an output, as it grows."""

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}
        self.records = 0
        """The sum of the last counts: input records whose count has been written."""

    def take(self, key: bytes, value: bytes) -> None:
        """Note the next record of the key's partition."""
        if key != TRAILER:
            count = int(value)
            self.records += count - self._last.get(key, 0)
            self._last[key] = count


def without_short_rate(figures: Figures) -> Figures:
    """Return the figures without their rate if it was measured over too short a time."""
    if figures["records"] / figures["records_per_s"] >= _LEAST_S:
        return figures
    return {name: value for name, value in figures.items() if name != "records_per_s"}


class FullTopic:
    """Runs systems in sequence on one broker, over one input for all queries."""

    def __init__(self, kafka: LocalKafka, sizes: Sizes, directory: Path) -> None:
        self._kafka, self._sizes, self._directory = kafka, sizes, directory
        self._topics = Topics(kafka.bootstrap_servers, sizes.partitions)
        self._topics.warm_up()
        self._input = f"all-{secrets.token_hex(3)}"
        self._topics.create(self._input)
        self._topics.fill(self._input, record, sizes.records, by_key=True)
        producer = self._topics.producer(linger_ms=0)
        key, value = trailer(sizes.records)
        for partition in self._topics.all:
            producer.produce(self._input, value, key, partition=partition)
        producer.flush()

    def run(self, system: System, workload: QueryWorkload) -> Figures:
        """Return the figures of one run. Raises BenchmarkError and NotOfferedError."""
        sizes = self._sizes
        name = f"{system.name}-{workload}-{secrets.token_hex(3)}"
        scratch = self._directory / name
        scratch.mkdir()
        task = Task(
            workload=workload,
            servers=self._kafka.bootstrap_servers,
            source=self._input,
            sink=name,
            name=name,
            partitions=sizes.partitions,
            threads=sizes.threads,
            interval_ms=sizes.interval_ms,
            per_checkpoint=sizes.per_checkpoint,
            scratch=scratch,
        )
        command = system.command(task)
        self._topics.create(name)
        try:
            with (
                self._enough(workload, name) as enough,
                Running(name, command, scratch, self._kafka.pids.values()) as running,
            ):
                running.watch(self._topics, enough, interval_ms=sizes.interval_ms, quiet=True)
                running.finish()
            content = found(workload, self._topics.read(name))
        finally:
            self._topics.delete(name)
        wanted = expected(workload, sizes.records)
        if content != wanted:
            raise BenchmarkError(
                f"{name}: the output is wrong: {content.records:,} results, checksum {content.checksum}, instead of "
                f"{wanted.records:,}, checksum {wanted.checksum}."
            )
        figures = {**running.rates(sizes.records), **running.resources(), "output_records": content.records}
        return without_short_rate(figures)

    @contextmanager
    def _enough(self, workload: QueryWorkload, name: str) -> Iterator[Callable[[Ends], bool]]:
        """Yield what says whether the output is complete: all windows are there, or all records are counted. The
        number of updates of a running count says nothing, so its output is read while it grows."""
        if workload is not QueryWorkload.RUNNING_COUNT:
            least = len(outputs(workload, self._sizes.records))
            yield lambda ends: ends.appended >= least
            return
        counted = Counted()
        consumer = self._topics.consumer()
        consumer.assign([TopicPartition(name, partition, 0) for partition in self._topics.all])

        def all_counted(ends: Ends) -> bool:
            while messages := consumer.consume(_BATCH, 0.01):
                for message in messages:
                    if message.error() is None:
                        counted.take(message.key() or b"", message.value() or b"")
            return counted.records >= self._sizes.records

        try:
            yield all_counted
        finally:
            consumer.close()
