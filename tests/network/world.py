"""Three brokers, a coordinator and drivers, with a link that can be disturbed between each two of them.

Brokers talk to each other directly, and feeder, recorder and judge reach them directly too: what they say of records
must not depend on the fault.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onceward.coordinator.dev.kafka import LocalKafka
from onceward.coordinator.dev.kafka.places import free_ports
from onceward.coordinator.dev.managed_process import ManagedProcess
from onceward.coordinator.dev.toxiproxy import Link, LocalToxiproxy
from tests.crash.harness import Harness, Paths
from tests.network.sockets import Bypasses, connections, family

__all__ = ["BROKERS", "SECOND_HOST", "World", "faulty_world"]

BROKERS = (1, 2, 3)
_DRIVERS, _COORDINATOR, _EXECUTORS = "DRIVERS", "COORDINATOR", "EXECUTORS"
SECOND_HOST = "127.0.0.9"
"""Where `EXECUTORS` leads for an executor that is told that this is ``localhost``."""


class World(Harness):
    """A harness whose links are `links`: ``driver-broker-N``, ``coordinator-broker-N``, ``driver-coordinator``.

    For jobs of which one executor is cut off there are two more sets to the brokers. They are told by name, so that the
    same address is ``first-executor-broker-N`` for most and ``second-executor-broker-N`` for one.
    """

    def __init__(self, directory: Path, kafka: LocalKafka, proxies: LocalToxiproxy, told: dict[str, list[str]]) -> None:
        """Made by `faulty_world`. ``told``: the addresses that the brokers tell, by listener."""
        paths = Paths(
            tests=kafka.bootstrap_servers,
            drivers=",".join(told[_DRIVERS]),
            coordinator=",".join(told[_COORDINATOR]),
        )
        super().__init__(directory, kafka, paths=paths)
        self.proxies = proxies
        self.links: dict[str, Link] = {}
        for listener, who in ((_DRIVERS, "driver"), (_COORDINATOR, "coordinator")):
            for broker, own, advertised in zip(BROKERS, kafka.listening(listener), told[listener], strict=True):
                name = f"{who}-broker-{broker}"
                self.links[name] = proxies.link(name, own, advertised)
        for who, host in (("first-executor", "127.0.0.1"), ("second-executor", SECOND_HOST)):
            for broker, own, advertised in zip(BROKERS, kafka.listening(_EXECUTORS), told[_EXECUTORS], strict=True):
                name = f"{who}-broker-{broker}"
                self.links[name] = proxies.link(name, own, advertised.replace("localhost", host))
        self.by_name = ",".join(told[_EXECUTORS])
        """Bootstrap servers that lead elsewhere for an executor that takes another address for ``localhost``."""
        self.workers: Sequence[ManagedProcess] = ()
        """Spark's workers, where they are not started by the driver."""
        to_coordinator = proxies.link("driver-coordinator", self.address)
        self.links[to_coordinator.name] = to_coordinator
        self.address_for_drivers = to_coordinator.address
        self.upstreams = {name: link.upstream for name, link in self.links.items()}
        self.driver: Callable[[], ManagedProcess | None] = lambda: None
        """The driver of the job that runs, if there is one."""

    def those(self, who: str, brokers: Sequence[int] = BROKERS) -> list[Link]:
        """The links of ``driver`` or ``coordinator`` to some brokers."""
        return [self.links[f"{who}-broker-{broker}"] for broker in brokers]

    def heal(self) -> None:
        """Every link is as it was made."""
        for name, link in self.links.items():
            link.heal()
            if link.upstream != self.upstreams[name]:
                link.lead(self.upstreams[name])

    def clients(self) -> list[int]:
        """Processes that may reach servers through links only."""
        kept = (self.coordinator, self.driver(), *self.workers)
        return [process.pid for process in kept if process is not None and process.exit_code is None]

    def watched(self) -> Bypasses:
        """Finds out whether a client bypasses its link; use it as a context manager."""
        own = int(self.address.rpartition(":")[2])
        return Bypasses(self.clients, lambda: {*self.kafka.ports, own})

    def open_connections(self) -> int:
        """Of driver and coordinator, those that they have open as clients."""
        ports = {int(link.address.rpartition(":")[2]) for link in self.links.values()}
        return sum(one.remote_port in ports for one in connections(family(self.clients())))


@contextmanager
def faulty_world(directory: Path) -> Iterator[World]:
    """Three replicas, two in sync; the brokers look for transactions that have run out every 200 ms."""
    directory.mkdir(parents=True, exist_ok=True)
    ports = free_ports(len(BROKERS), None)
    told = {
        _DRIVERS: [f"127.0.0.1:{one.client}" for one in ports],
        _COORDINATOR: [f"127.0.0.1:{one.internal}" for one in ports],
        _EXECUTORS: [f"localhost:{one.controller}" for one in ports],
    }
    with (
        LocalToxiproxy(directory / "toxiproxy.log") as proxies,
        LocalKafka(3, transaction_timeout_scan_ms=200, heap="256m", advertised=told) as kafka,
        World(directory, kafka, proxies, told) as world,
    ):
        yield world
