"""Flink SQL with the exactly-once Kafka sink, in a mini cluster that PyFlink starts."""

import json
from pathlib import Path

from benchmarks.environments import jars, python_environment
from benchmarks.systems import Command, Kind, Task

__all__ = ["Flink"]

_VERSION = "2.3.0"
_CONNECTOR = "5.0.0-2.2"
_JARS = {
    f"org.apache.flink:flink-sql-connector-kafka:{_CONNECTOR}": (
        "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616"
    )
}


class Flink:
    """Parallelism as many as cores."""

    name = "flink"
    kind = Kind.PEER
    steady_interval_ms = 100

    def __init__(self) -> None:
        self.versions = {"apache-flink": _VERSION, "flink-sql-connector-kafka": _CONNECTOR}
        self.settings = {
            "sink.delivery-guarantee": "exactly-once",
            "pipeline.object-reuse": "true",
            "execution.buffer-timeout.interval": "100 ms (steady: 5 ms)",
            "producer": "linger.ms 50 (steady: 2), batch.size 1000000",
            "consumer": "fetch.max.wait.ms 100 (steady: 5)",
        }
        self._python, self._jar = Path(), Path()

    def set_up(self) -> None:
        self._python = python_environment(self.name, [f"apache-flink=={_VERSION}"])
        (self._jar,) = jars(f"{self.name}-jars", _JARS)

    def command(self, task: Task) -> Command:
        job = Path(__file__).with_name("job.py")
        return Command(arguments=[str(self._python), str(job), json.dumps(task.as_json()), str(self._jar)])
