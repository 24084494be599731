"""A C program that copies with transactions, on the very library that our own workers use."""

import shutil
from pathlib import Path

import confluent_kafka

from benchmarks.environments import compiled
from benchmarks.errors import NotOfferedError, SetUpError
from benchmarks.systems import Command, Kind, Task
from benchmarks.workloads import Workload

__all__ = ["CMark"]

_SOURCE = Path(__file__).with_name("copy.c")


class CMark:
    """As many threads as cores."""

    name = "c"
    kind = Kind.MARK
    steady_interval_ms = 30

    def __init__(self) -> None:
        self.versions = {"librdkafka": confluent_kafka.libversion()[0]}
        self.settings = {
            "producer": "linger.ms 50 (steady: 1), batch.num.messages 10000",
            "consumer": "fetch.message.max.bytes 2097152, fetch.queue.backoff.ms 2, queued.min.messages 100000",
        }
        self._program: Path | None = None

    def set_up(self) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise SetUpError("c: there is no C compiler (cc); install one.")
        library = _library()
        build = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", str(_SOURCE), str(library)]
        build += [f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
        self._program = compiled(self.name, _SOURCE, lambda out: [*build, "-o", str(out / "copy")]) / "copy"

    def command(self, task: Task) -> Command:
        if task.workload is Workload.JSON:
            raise NotOfferedError("The C program copies and filters; it is the client library's mark, not a peer.")
        given = (task.servers, task.source, task.sink, task.name, task.workload.value)
        numbers = (task.threads, task.partitions, task.interval_ms)
        return Command(arguments=[str(self._program), *given, *map(str, numbers)])


def _library() -> Path:
    """The librdkafka that confluent-kafka's package ships."""
    packages = Path(confluent_kafka.__file__).resolve().parents[1]
    found = sorted((packages / "confluent_kafka.libs").glob("librdkafka*.so*"))
    if not found:
        raise SetUpError("c: confluent-kafka was installed without its own librdkafka; there is nothing to link with.")
    return found[0]
