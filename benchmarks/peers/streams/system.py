"""Kafka Streams with exactly_once_v2: a small Java program against the published jars."""

import json
import shutil
from pathlib import Path

from benchmarks.environments import compiled, jars
from benchmarks.errors import SetUpError
from benchmarks.systems import Command, Kind, Task
from onceward.dev.errors import LocalServerError
from onceward.dev.java import find_java
from onceward.dev.kafka.jars import broker_jars

__all__ = ["Streams"]

_VERSION = "4.3.1"
_SOURCE = Path(__file__).with_name("Streams.java")
# What it needs besides, Kafka's clients and Jackson among it, the broker has: it is of the same version.
_JARS = {
    f"org.apache.kafka:kafka-streams:{_VERSION}": "bd73f3805e116f711e8456ee89a8a5b43ff5dcf5a5bb865afae29deae89e7c4b",
    "org.rocksdb:rocksdbjni:10.1.3": "e7f925287d9fe2574fb7c7a86f7facaa9b8ab602a2eed0e598bf633528121498",
}


class Streams:
    """As many stream threads as cores."""

    name = "streams"
    kind = Kind.PEER
    steady_interval_ms = 30

    def __init__(self) -> None:
        self.versions = {"kafka-streams": _VERSION}
        self.settings = {
            "processing.guarantee": "exactly_once_v2",
            "max.poll.records": "10000",
            "producer": "linger.ms 50 (steady: 1), batch.size 1000000",
            "consumer": "fetch.max.wait.ms 100 (steady: 5)",
        }
        self._class_path = ""

    def set_up(self) -> None:
        if self._class_path:
            return
        javac = shutil.which("javac", path=str(Path(find_java()).parent)) or shutil.which("javac")
        if javac is None:
            raise SetUpError("streams: there is no javac; install a Java development kit.")
        try:
            found = [*jars(self.name, _JARS), *sorted(broker_jars().glob("*.jar"))]
        except LocalServerError as error:
            raise SetUpError(f"streams: {error}") from error
        path = ":".join(map(str, found))
        program = compiled(
            "streams-program",
            _SOURCE,
            lambda out: [javac, "--release", "17", "-cp", path, "-d", str(out), str(_SOURCE)],
        )
        self._class_path = f"{program}:{path}"

    def command(self, task: Task) -> Command:
        return Command(
            arguments=[find_java(), "-Xmx1g", "-cp", self._class_path, "Streams", json.dumps(task.as_json())]
        )
