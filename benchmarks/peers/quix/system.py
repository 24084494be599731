"""Quix Streams with exactly-once, one process for each core."""

import json
from pathlib import Path

from benchmarks.environments import python_environment
from benchmarks.systems import Command, Kind, Task

__all__ = ["Quix"]

_VERSION = "3.28.0"


class Quix:
    """Processes of one consumer group: one process uses one core."""

    name = "quix"
    kind = Kind.PEER
    steady_interval_ms = 100

    def __init__(self) -> None:
        self.versions = {"quixstreams": _VERSION}
        self.settings = {
            "processing_guarantee": "exactly-once",
            "processes": "one for each core",
            "producer": "linger.ms 50 (steady: 1), batch.num.messages 10000",
            "consumer": "fetch.wait.max.ms 100 (steady: 5), fetch.queue.backoff.ms 2, queued.min.messages 100000",
        }
        self._python = Path()

    def set_up(self) -> None:
        self._python = python_environment(self.name, [f"quixstreams=={_VERSION}"])

    def command(self, task: Task) -> Command:
        return Command(
            arguments=[str(self._python), str(Path(__file__).with_name("job.py")), json.dumps(task.as_json())]
        )
