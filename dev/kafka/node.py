"""One node of the local Kafka: formats its storage, starts it under its supervisor, stops or kills it."""

import signal
import subprocess
from pathlib import Path

from onceward.common.jvm.archives import archive_option, record_options
from onceward.dev.errors import LocalKafkaError
from onceward.dev.java import find_java
from onceward.dev.kafka.jars import class_archive
from onceward.dev.kafka.settings import NodeSettings
from onceward.dev.managed_process import ManagedProcess, NotStartedError

__all__ = ["Node"]


class Node:
    """A broker that is also a controller. Not thread-safe."""

    def __init__(
        self, *, jars: Path, heap: str, removable: bool, lock_descriptor: int, record: Path | None = None
    ) -> None:
        """`removable`: the supervisor removes the directory if it outlives us. It inherits `lock_descriptor`.
        `record`: the broker archives its classes here when it ends; otherwise it starts from the archive, if there is
        one."""
        self._removable = removable
        self._lock_descriptor = lock_descriptor
        self._process: ManagedProcess | None = None
        # Serial collector and first compiler only: the broker shares two cores with Spark and the tests.
        flags = ["-Xms96m", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        self._java = [find_java(), *flags, "-XX:-UsePerfData", "-cp", f"{jars}/*"]
        self._record = [] if record is None else record_options(record)
        if record is None:
            self._java.append(archive_option(class_archive(jars)))

    @property
    def pid(self) -> int | None:
        """Process id of the broker while it runs."""
        return self._process.pid if self._process is not None and self.runs else None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.exit_code is None

    def formatting(self, settings: NodeSettings, cluster_id: str, transaction_version: int) -> "subprocess.Popen[str]":
        """Start formatting the node's empty storage; the caller waits for the process and reads its output."""
        settings.write()
        tool = [*self._java, *_logging(settings), "kafka.tools.StorageTool"]
        tool += ["format", "--cluster-id", cluster_id, "--config", str(settings.properties_file)]
        tool += ["--feature", f"transaction.version={transaction_version}"]
        return subprocess.Popen(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def start(self, settings: NodeSettings) -> None:
        """Start the broker; return as soon as the process exists."""
        settings.write()
        broker = [*self._java, *self._record, *_logging(settings), "kafka.Kafka", str(settings.properties_file)]
        try:
            self._process = ManagedProcess(
                f"broker {settings.node}",
                broker,
                settings.directory / "output.log",
                remove=settings.directory if self._removable else None,
                inherits=[self._lock_descriptor],
            )
        except NotStartedError as error:
            raise LocalKafkaError(str(error)) from error

    def terminate(self) -> None:
        """Ask the broker to shut down (SIGTERM); does not wait."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL the broker and wait until it has ended, so that its ports and files are free."""
        if self._process is not None:
            self._process.send(signal.SIGKILL)
            self.wait(5)

    def wait(self, seconds: float) -> bool:
        """Wait for the broker's end; after ``seconds`` kill its whole process group and return False."""
        if self._process is None:
            return True
        by_itself = self._process.wait(seconds) is not None
        self._process.end()
        self._process = None
        return by_itself


def _logging(settings: NodeSettings) -> list[str]:
    """The options for the log; each broker reads one of them."""
    older, newer = settings.logging_files
    return [f"-Dlog4j.configuration={older.as_uri()}", f"-Dlog4j2.configurationFile={newer}"]
