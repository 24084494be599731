"""The configuration files of one node of the local Kafka."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["NodePorts", "NodeSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePorts:
    """The three loopback ports of a node: for clients, for the other brokers and our own checks, for the quorum."""

    client: int
    internal: int
    controller: int
    extra: Sequence[int] = ()
    """One per further listener."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSettings:
    """The contents of a node's files.

    Each node is broker and controller in one process. ``INTERNAL`` is always plain text: readiness is checked there
    even if a test puts SASL on ``CLIENT``. The quorum is static, so ports may change between starts.
    """

    node: int
    ports: Sequence[NodePorts]
    directory: Path
    transaction_timeout_scan_ms: int
    extra: Mapping[str, str]
    advertised: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further plain text listeners: name -> the address that each node returns to their clients, ``host:port``."""

    @property
    def properties_file(self) -> Path:
        return self.directory / "server.properties"

    @property
    def log_file(self) -> Path:
        return self.directory / "broker.log"

    @property
    def logging_files(self) -> tuple[Path, Path]:
        """For brokers of Kafka 3, and for newer ones."""
        return self.directory / "log4j.properties", self.directory / "log4j2.properties"

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    def properties(self) -> dict[str, str]:
        """Return the broker's properties; `extra` overrides all of them."""
        own = self.ports[self.node - 1]
        replicas = len(self.ports)
        in_sync = min(2, replicas)
        further = dict(zip(self.advertised, own.extra, strict=True))
        voters = ",".join(f"{number}@127.0.0.1:{ports.controller}" for number, ports in enumerate(self.ports, start=1))
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node),
            "controller.quorum.voters": voters,
            "listeners": f"CLIENT://127.0.0.1:{own.client},INTERNAL://127.0.0.1:{own.internal},"
            + "".join(f"{name}://127.0.0.1:{port}," for name, port in further.items())
            + f"CONTROLLER://127.0.0.1:{own.controller}",
            "advertised.listeners": f"CLIENT://127.0.0.1:{own.client},INTERNAL://127.0.0.1:{own.internal}"
            + "".join(f",{name}://{reported[self.node - 1]}" for name, reported in self.advertised.items()),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
            + "".join(f",{name}:PLAINTEXT" for name in further),
            "log.dirs": str(self.data_directory),
            "auto.create.topics.enable": "false",
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(in_sync),
            "offsets.topic.replication.factor": str(replicas),
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(in_sync),
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(in_sync),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(self.transaction_timeout_scan_ms),
            "group.initial.rebalance.delay.ms": "0",
            # The two cores are shared with Spark.
            "num.network.threads": "2",
            "num.io.threads": "4",
            "log.cleaner.dedupe.buffer.size": "2097152",
            # A killed broker cannot return before its old session has expired; by default that takes 9 s.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "250",
            **self.extra,
        }

    def discard_data(self) -> None:
        """Remove the node's data, if any."""
        shutil.rmtree(self.data_directory, ignore_errors=True)

    def write(self) -> None:
        """Rewrite ``server.properties`` and the `logging_files`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}={_escaped(value)}" for name, value in self.properties().items()]
        self.properties_file.write_text("\n".join(lines) + "\n")
        log_file = _escaped(str(self.log_file))
        older, newer = self.logging_files
        older.write_text(
            "log4j.rootLogger=WARN, file\n"
            "log4j.appender.file=org.apache.log4j.FileAppender\n"
            f"log4j.appender.file.File={log_file}\n"
            "log4j.appender.file.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.file.layout.ConversionPattern=%d %p %c{1} %m%n\n"
        )
        newer.write_text(
            "rootLogger.level=WARN\n"
            "rootLogger.appenderRef.file.ref=file\n"
            "appender.file.type=File\n"
            "appender.file.name=file\n"
            f"appender.file.fileName={log_file}\n"
            "appender.file.layout.type=PatternLayout\n"
            "appender.file.layout.pattern=%d %p %c{1} %m%n\n"
        )


def _escaped(value: str) -> str:
    """Escape a value for Java's properties files."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
