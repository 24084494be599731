"""A real Kafka on this machine's loopback, for the demo, the tests and experiments."""

import base64
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from onceward.dev.errors import LocalKafkaError
from onceward.dev.jars import Progress
from onceward.dev.kafka import readiness
from onceward.dev.kafka.jars import broker_jars
from onceward.dev.kafka.node import Node
from onceward.dev.kafka.places import DataDirectory, free_ports
from onceward.dev.kafka.settings import NodePorts, NodeSettings
from onceward.dev.kafka.versions import broker_version, highest_transaction_version

__all__ = ["LocalKafka"]

_START_LIMIT_S = 180.0
_STOP_LIMIT_S = 10.0
_SHUT_DOWN_LIMIT_S = 60.0
_STOP_LIMIT_OF_TEMPORARY_S = 2.0
_TRIES_FOR_PORTS = 3


class LocalKafka:
    """One or three brokers, each in its own process, which end with this process, however it ends.

    Used as a context manager or with `start` and `stop`. Nodes are numbered from 1. Not thread-safe.

    ``properties`` are extra broker properties and override ours. Clients use the listener named ``CLIENT``; brokers
    and our own checks use ``INTERNAL``, which stays plain text (`internal_servers`), so SASL for clients is::

        {"listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
         "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
         "listener.name.client.plain.sasl.jaas.config": "..."}

    and ACLs are ``authorizer.class.name`` plus ``super.users=User:ANONYMOUS``, the user of ``INTERNAL``.
    """

    def __init__(
        self,
        brokers: int = 1,
        transaction_version: int | None = None,
        directory: Path | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        transaction_timeout_scan_ms: int = 10_000,
        heap: str = "512m",
        port: int | None = None,
        progress: Progress | None = None,
        advertised: Mapping[str, Sequence[str]] | None = None,
        record: Path | None = None,
    ) -> None:
        """Describe the cluster; nothing is started yet.

        `brokers`: 1, or 3 (replication 3, two in sync). `transaction_version`: the cluster's feature
        ``transaction.version``, 0 to 2; None for the highest that the brokers' version has. `directory`: kept after
        `stop` and reused with its data; None for a temporary one. `transaction_timeout_scan_ms`: how often the broker
        looks for timed out transactions. `heap`: of each broker, in Java's notation. `port`: the first broker's client
        port, the others follow; None for free ones. `progress`: called during the fetch of the broker's jars, if they
        are not in the cache yet. `advertised`: further plain text listeners by name, each with the address,
        ``host:port``, that each broker returns to the listener's clients, as for clients behind a proxy or a load
        balancer. `record`: a single broker archives its classes here when it stops (`write_class_archive`).
        """
        if brokers not in (1, 3):
            raise LocalKafkaError(f"A local Kafka has 1 or 3 brokers, not {brokers}.")
        highest = highest_transaction_version()
        if transaction_version is None:
            transaction_version = highest
        if not 0 <= transaction_version <= highest:
            raise LocalKafkaError(
                f"transaction.version of Kafka {broker_version()} is 0 to {highest}, not {transaction_version}."
            )
        self.brokers = brokers
        self.transaction_version = transaction_version
        self._wanted_directory = directory
        self._properties = dict(properties or {})
        self._scan_ms = transaction_timeout_scan_ms
        self._heap = heap
        self._port = port
        self._progress = progress
        self._advertised = dict(advertised or {})
        self._record = record
        if wrong := [name for name, reported in self._advertised.items() if len(reported) != brokers]:
            raise LocalKafkaError(f"{wrong[0]} needs an address for each of {brokers} brokers.")
        self._place: DataDirectory | None = None
        self._ports: Sequence[NodePorts] = ()
        self._nodes: list[Node] = []
        self._cluster_id = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start all brokers and wait until the cluster is operational (4 s; the very first time, jars are fetched).

        Raises `LocalKafkaError` with the broker's own output if it does not come up, and `LocalServerError` if its
        directory or port is in use; then nothing keeps running.
        """
        if self._place is not None:
            raise LocalKafkaError("This local Kafka was started already; stop it first.")
        jars = broker_jars(self._progress)
        self._place = place = DataDirectory(self._wanted_directory)
        try:
            self._nodes = [
                Node(
                    jars=jars,
                    heap=self._heap,
                    removable=place.temporary,
                    lock_descriptor=place.lock_descriptor,
                    record=self._record,
                )
                for _ in range(self.brokers)
            ]
            for tries_left in reversed(range(_TRIES_FOR_PORTS)):
                self._ports = free_ports(self.brokers, self._port, len(self._advertised))
                self._format_once()
                try:
                    self._start_nodes(range(1, self.brokers + 1))
                    break
                except LocalKafkaError as error:
                    # Another process took a port that was free a moment ago.
                    if tries_left == 0 or "BindException" not in str(error):
                        raise
                    self.kill()
        except BaseException:
            self.kill()
            self.stop()
            raise

    def stop(self) -> None:
        """Shut down all brokers and remove a temporary directory. May be called twice.

        Sends SIGTERM first, and SIGKILL to brokers that still run after 10 s (2 s for a temporary directory).
        """
        for node in self._nodes:
            node.terminate()
        # Three nodes that leave together lose their quorum and wait for it: not worth waiting for temporary data.
        temporary = self._place is not None and self._place.temporary
        limit = time.monotonic() + (_STOP_LIMIT_OF_TEMPORARY_S if temporary else _STOP_LIMIT_S)
        for node in self._nodes:
            node.wait(max(0.0, limit - time.monotonic()))
        self._nodes = []
        if self._place is not None:
            self._place.release()
            self._place = None

    def kill(self, node: int | None = None) -> None:
        """SIGKILL one broker, or all of them; return when they are gone. Data and ports remain for `restart`."""
        for number in [node] if node is not None else range(1, len(self._nodes) + 1):
            self._node(number).kill()

    def shut_down(self, node: int) -> None:
        """SIGTERM one broker, which hands over its leaderships; return when it is gone, like `kill`.

        Raises `LocalKafkaError` if it did not end by itself and had to be killed.
        """
        self._node(node).terminate()
        if not self._node(node).wait(_SHUT_DOWN_LIMIT_S):
            raise LocalKafkaError(f"Broker {node} did not leave within {_SHUT_DOWN_LIMIT_S:.0f} s and was killed.")

    def restart(self, node: int | None = None) -> None:
        """Restart one broker, or all of them, on the same data and ports; kills those that still run first."""
        numbers = [node] if node is not None else range(1, len(self._nodes) + 1)
        for number in numbers:
            self._node(number).kill()
        self._start_nodes(numbers)

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the listener for clients, ``host:port,...``."""
        return ",".join(f"127.0.0.1:{ports.client}" for ports in self._ports)

    @property
    def internal_servers(self) -> str:
        """Addresses of the plain text listener, whatever `properties` set for the clients' listener."""
        return ",".join(f"127.0.0.1:{ports.internal}" for ports in self._ports)

    def listening(self, listener: str) -> list[str]:
        """Return the addresses, ``host:port``, on which the brokers listen for one of the `advertised` listeners."""
        number = list(self._advertised).index(listener)
        return [f"127.0.0.1:{ports.extra[number]}" for ports in self._ports]

    @property
    def ports(self) -> frozenset[int]:
        """Every port on which a broker listens."""
        return frozenset(
            port for node in self._ports for port in (node.client, node.internal, node.controller, *node.extra)
        )

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def directory(self) -> Path:
        if self._place is None:
            raise LocalKafkaError("This local Kafka is not running, so it has no directory.")
        return self._place.directory

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the running brokers, by node."""
        return {number: node.pid for number, node in enumerate(self._nodes, start=1) if node.pid is not None}

    def logs(self, node: int = 1, lines: int = 30) -> str:
        """Return the last lines that a broker logged and printed."""
        said: list[str] = []
        for path in (self._settings(node).log_file, self._settings(node).directory / "output.log"):
            if path.exists():
                said += path.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(said[-lines:])

    def _node(self, number: int) -> Node:
        if not 1 <= number <= len(self._nodes):
            raise LocalKafkaError(
                f"There is no broker {number}; this local Kafka runs brokers 1 to {len(self._nodes)}."
            )
        return self._nodes[number - 1]

    def _settings(self, number: int) -> NodeSettings:
        return NodeSettings(
            node=number,
            ports=self._ports,
            directory=self.directory / f"node-{number}",
            transaction_timeout_scan_ms=self._scan_ms,
            extra=self._properties,
            advertised=self._advertised,
        )

    def _format_once(self) -> None:
        """Format the storage of all nodes, unless an earlier start with this directory did."""
        marker = self.directory / "cluster.json"
        shape = {"brokers": self.brokers, "transaction_version": self.transaction_version}
        if marker.exists():
            known = json.loads(marker.read_text())
            self._cluster_id = known.pop("cluster_id")
            if known != shape:
                raise LocalKafkaError(f"{self.directory} holds a local Kafka with {known}, not {shape}; name another.")
            return
        # the format command would take a leading "-" for an option
        self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")
        running = []
        for number, node in enumerate(self._nodes, start=1):
            settings = self._settings(number)
            settings.discard_data()  # from a start that was killed while formatting
            running.append(node.formatting(settings, self._cluster_id, self.transaction_version))
        for process in running:
            said, _ = process.communicate()
            if process.returncode != 0:
                raise LocalKafkaError(f"The storage of the local Kafka could not be formatted: {said.strip()[-2000:]}")
        marker.write_text(json.dumps({"cluster_id": self._cluster_id, **shape}))

    def _start_nodes(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._nodes[number - 1].start(self._settings(number))
        limit = time.monotonic() + _START_LIMIT_S
        while lack := readiness.missing(self._ports, self.pids.keys(), self._cluster_id):
            for number in numbers:
                if not self._nodes[number - 1].runs:
                    raise LocalKafkaError(f"Broker {number} ended while it started. Its log:\n{self.logs(number)}")
            if time.monotonic() > limit:
                raise LocalKafkaError(
                    f"The local Kafka is not ready after {_START_LIMIT_S:.0f} s: {lack}. "
                    f"Log of broker {numbers[0]}:\n{self.logs(numbers[0])}"
                )
            time.sleep(0.05)
