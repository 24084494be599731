"""Our job's variants as systems."""

import json
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from benchmarks.errors import NotOfferedError
from benchmarks.ours.job import takes_delivery
from benchmarks.systems import Command, Kind, Task
from benchmarks.workloads import Workload
from onceward.driver.journal import EVENTS_VARIABLE

__all__ = ["EVENTS", "OURS", "TRANSFORMING_JVM", "Ours", "environment"]

EVENTS = "events.jsonl"
"""The journal's file in the run's directory."""
_EXECUTOR_MB = 1024
_OF_COPY = ("ours-spark", "ours-batches", "ours-at-least-once")
_LOOK_AT_RECORDS = (Workload.JSON, Workload.FILTER)
"""The others write what they read, so their DataFrames only choose columns."""
_SCHEDULING_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that only starts tasks: what the second compiler would make quicker is not worth its own time
(benchmarks/RESULTS.md)."""
TRANSFORMING_JVM = "-XX:+UseParallelGC"
"""For one whose threads run the transform: rows are garbage at once, and Java's usual collector costs them a tenth."""


def environment(scratch: Path, submitted: str) -> dict[str, str]:
    """Return the environment of a program of ours. ``submitted``: arguments as for spark-submit."""
    return {
        EVENTS_VARIABLE: str(scratch / EVENTS),
        "PYSPARK_SUBMIT_ARGS": f"{submitted} pyspark-shell",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }


@dataclass(frozen=True, kw_only=True)
class Ours:
    """One variant. `path`: a transform on DataFrames (`dataframe`), on the copy one that needs Spark (`spark`);
    or all in one Python worker, with a function on Arrow batches where the workload needs it (`fused`) or in any case
    (`batches`)."""

    name: str
    path: Literal["dataframe", "spark", "fused", "batches"]
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    tasks: Literal["per_checkpoint", "staying"] = "per_checkpoint"
    executors: bool = False
    """Each thread is the only one of an executor, a process of its own, and not one of the driver's JVM."""
    kind: Kind = Kind.OURS
    versions: dict[str, str] = field(default_factory=dict)
    steady_interval_ms: int = 0

    @property
    def settings(self) -> dict[str, str]:
        settings = {"spark": f"a session made by the job, {self._submitted('threads', Workload.JSON)}"}
        if self.path == "dataframe":
            settings["spark, where columns are only chosen"] = self._submitted("threads", Workload.COPY)
        return settings

    def set_up(self) -> None:
        """Nothing: the repository's own environment has it all."""

    def command(self, task: Task) -> Command:
        if not takes_delivery(self.delivery):
            raise NotOfferedError(f'KafkaSink takes no delivery="{self.delivery}" in this version.')
        if self.tasks == "staying" and task.workload is Workload.CYCLE:
            raise NotOfferedError("Tasks that stay have one slot for each thread, and no limit of records.")
        if self.name in _OF_COPY and task.workload is not Workload.COPY:
            raise NotOfferedError("This variant is measured on the copy only.")
        path = "batches" if self.path == "fused" and task.workload in _LOOK_AT_RECORDS else self.path
        job = {**task.as_json(), "path": path, "delivery": self.delivery, "tasks": self.tasks}
        return Command(
            arguments=[sys.executable, "-m", "benchmarks.ours.job", json.dumps(job)],
            environment=environment(task.scratch, self._submitted(task.threads, task.workload)),
        )

    def _submitted(self, threads: int | str, workload: StrEnum) -> str:
        """As for spark-submit."""
        transforms = self.path == "spark" or (self.path == "dataframe" and workload in _LOOK_AT_RECORDS)
        java = TRANSFORMING_JVM if transforms else _SCHEDULING_JVM
        return f"--master {self._master(threads)} --driver-java-options '{java}'"

    def _master(self, threads: int | str) -> str:
        """With a task's four tries, as clusters have them, in local mode too."""
        return f"local-cluster[{threads},1,{_EXECUTOR_MB}]" if self.executors else f"local[{threads},4]"


OURS = (
    Ours(name="ours", path="fused"),
    Ours(name="ours-staying", path="fused", tasks="staying", steady_interval_ms=25),
    Ours(name="ours-dataframe", path="dataframe"),
    Ours(name="ours-spark", path="spark"),
    Ours(name="ours-batches", path="batches"),
    Ours(name="ours-at-least-once", path="fused", delivery="at_least_once"),
)
