"""Our queries as a system, and the settings of their sessions."""

import json
import sys
from dataclasses import dataclass, field

from benchmarks.ours.system import TRANSFORMING_JVM, environment
from benchmarks.systems import Command, Kind, Task

__all__ = ["ROCKSDB", "OurQuery", "submitted"]

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.join.stateFormatVersion": "4",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "64",
}


def submitted(threads: int | str, conf: dict[str, str]) -> str:
    """Return the arguments as for spark-submit."""
    settings = (f"--conf '{key}={value}'" for key, value in conf.items())
    return " ".join([f"--master local[{threads},4] --driver-java-options '{TRANSFORMING_JVM}'", *settings])


@dataclass(frozen=True, kw_only=True)
class OurQuery:
    """`StreamSink` and `format("onceward")`."""

    name: str = "ours"
    kind: Kind = Kind.OURS
    versions: dict[str, str] = field(default_factory=dict)
    steady_interval_ms: int = 0
    conf: dict[str, str] = field(default_factory=lambda: ROCKSDB)

    @property
    def settings(self) -> dict[str, str]:
        return {"spark": submitted("threads", self.conf), "spark.sql.shuffle.partitions": "threads"}

    def set_up(self) -> None:
        """Nothing: the repository's own environment has it all."""

    def command(self, task: Task) -> Command:
        conf = {"spark.sql.shuffle.partitions": str(task.threads), **self.conf}
        return Command(
            arguments=[sys.executable, "-m", "benchmarks.queries.job", json.dumps(task.as_json())],
            environment=environment(task.scratch, submitted(task.threads, conf)),
        )
