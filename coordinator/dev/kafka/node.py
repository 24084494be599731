"""One node of the local Kafka: formats its storage, starts it under its keeper, stops or kills it."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from coordinator.dev.kafka.errors import LocalKafkaError
from coordinator.dev.kafka.java import find_java
from coordinator.dev.kafka.settings import NodeSettings

__all__ = ["Node"]

_KEEPER = Path(__file__).with_name("keeper.py")


class Node:
    """A broker that is also a controller. Not thread-safe."""

    def __init__(self, *, jars: Path, heap: str, removable: bool, lock_descriptor: int) -> None:
        """`removable`: the keeper removes the directory when it outlives us. `lock_descriptor`: it inherits this."""
        self._removable = removable
        self._lock_descriptor = lock_descriptor
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        # A serial collector and the first compiler only: the broker shares two cores with Spark and the tests.
        flags = ["-Xms96m", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        self._java = [find_java(), *flags, "-XX:-UsePerfData", "-cp", f"{jars}/*"]

    @property
    def pid(self) -> int | None:
        """Process id of the broker while it runs."""
        return self._pid if self.runs else None

    @property
    def runs(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    def formatting(self, settings: NodeSettings, cluster_id: str, transaction_version: int) -> "subprocess.Popen[str]":
        """Start formatting the node's empty storage; the caller waits for the end and reads the output."""
        settings.write()
        tool = [*self._java, f"-Dlog4j2.configurationFile={settings.logging_file}", "kafka.tools.StorageTool"]
        tool += ["format", "--cluster-id", cluster_id, "--config", str(settings.properties_file)]
        tool += ["--feature", f"transaction.version={transaction_version}"]
        return subprocess.Popen(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def start(self, settings: NodeSettings) -> None:
        """Start the broker; returns as soon as the process exists."""
        settings.write()
        broker = [*self._java, f"-Dlog4j2.configurationFile={settings.logging_file}"]
        broker += ["kafka.Kafka", str(settings.properties_file)]
        remove = str(settings.directory) if self._removable else ""
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_KEEPER), str(settings.directory / "output.log"), remove, *broker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[self._lock_descriptor],
        )
        assert self._keeper.stdout is not None
        with self._keeper.stdout as answer:
            said = answer.readline()
        if not said:
            self._end_group()
            raise LocalKafkaError(
                f"The process of broker {settings.node} could not be started; see {settings.directory}."
            )
        self._pid = int(said)

    def terminate(self) -> None:
        """Ask the broker to shut down (SIGTERM); does not wait."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL the broker and wait until it is gone, so that its ports and files are free."""
        self._signal(signal.SIGKILL)
        self.wait(5)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the broker, and kill everything of it when it takes longer: False then."""
        if self._keeper is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(seconds)
        by_itself = not self.runs
        self._end_group()
        return by_itself

    def _signal(self, number: signal.Signals) -> None:
        if self.runs and self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _end_group(self) -> None:
        if self._keeper is None:
            return
        if self._keeper.poll() is None:  # not reaped yet, so the number is still the keeper's own
            os.killpg(self._keeper.pid, signal.SIGKILL)
            self._keeper.wait()
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper = None
        self._pid = None
