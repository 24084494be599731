"""Sizes of Spark for jobs under test, and a standalone cluster of real processes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from onceward.dev.java import find_java
from onceward.dev.kafka.places import free_ports
from tests.support.processes import Process, Processes
from tests.support.waiting import wait_until

__all__ = ["AWAY_S", "CLUSTER", "LOCAL", "SMALL", "standalone"]

SMALL = "--driver-memory 512m --conf spark.executor.memory=512m --conf spark.cores.max=2"
LOCAL = f"--master local[2,4] {SMALL}"
CLUSTER = f"--master local-cluster[2,1,1024] {SMALL}"
AWAY_S = 300.0
"""Limit for a Spark process to come back."""


@contextmanager
def standalone(
    harness: Processes, within: Mapping[int, Sequence[str]] | None = None
) -> Iterator[tuple[str, list[Process], Callable[[int], Process]]]:
    """Yield (the master's address, its workers on 127.0.0.2 and .3, a function that starts the worker of 127.0.0.n).

    ``within``: n -> the command that wraps the worker of 127.0.0.n, which isolates it.
    """
    port, page = (ports.client for ports in free_ports(2, None))
    jars = Path(pyspark.__file__).parent / "jars"
    java = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-cp", f"{jars}/*"]
    deploy = "org.apache.spark.deploy"
    master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
    address = f"spark://127.0.0.1:{port}"
    scala = next(jars.glob("spark-core_*.jar")).name.removeprefix("spark-core_").partition("-")[0]
    home = {"SPARK_HOME": str(jars.parent), "SPARK_SCALA_VERSION": scala}  # as bin/spark-class sets it

    def start(number: int) -> Process:
        options = ["--host", f"127.0.0.{number}", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        options += ["--work-dir", str(harness.directory / f"work-{number}"), address]
        local = {**home, "SPARK_LOCAL_IP": f"127.0.0.{number}"}
        outer = (within or {}).get(number, [])
        return harness.start(f"spark-worker-{number}", [*outer, *java, f"{deploy}.worker.Worker", *options], local)

    chief = harness.start("spark-master", [*java, f"{deploy}.master.Master", *master], home)
    wait_until(lambda: re.search("I have been elected leader", chief.tail()), "the Spark master leads", AWAY_S)
    workers = [start(2), start(3)]
    try:
        yield address, workers, start
    finally:
        for process in (*workers, chief):
            process.end()
