"""Three brokers, a coordinator and drivers, with a link between each two of them that can be disturbed.

Brokers connect to each other directly. Feeder, recorder and judge connect to brokers directly too, so that their
results do not depend on the fault.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.places import free_ports
from onceward.dev.postgres.server import DATABASE, LocalPostgres
from onceward.dev.toxiproxy import Link, LocalToxiproxy
from tests.network.sockets import Bypasses, connections, family
from tests.support.harness import Paths
from tests.support.job_tables import IcebergTables, PostgresTables
from tests.support.leading import LeadingHarness, LinkedSeat, Seat, linked_seat
from tests.support.processes import Process
from tests.support.rest_catalogue import RestCatalogue

__all__ = ["BROKERS", "SECOND_HOST", "LinkedHarness", "linked_harness", "two_coordinators", "with_tables"]

BROKERS = (1, 2, 3)
_DRIVERS, _COORDINATOR, _EXECUTORS = "DRIVERS", "COORDINATOR", "EXECUTORS"
SECOND_HOST = "127.0.0.9"
"""The address of ``localhost`` for the second executor; its links to the brokers listen here."""
_TASKS_HOST = "127.0.0.8"
"""The driver's address for tasks that stay; their link to it listens here."""


class LinkedHarness(LeadingHarness):
    """A harness with `links`: ``driver-broker-N``, ``coordinator-broker-N``, ``driver-coordinator``, ``driver-tasks``.

    Within `two_coordinators`, they use ``driver-coordinator-N`` and ``coordinator-database-N``. Within `with_tables`,
    drivers and coordinators use ``table-database`` and ``table-catalogue``.

    Jobs with one executor that is cut off use two more sets of links to the brokers. The brokers advertise a host name
    for them, which leads most clients to ``first-executor-broker-N`` and one executor to ``second-executor-broker-N``.
    """

    def __init__(
        self, directory: Path, kafka: LocalKafka, proxies: LocalToxiproxy, reported: dict[str, list[str]]
    ) -> None:
        """Called by `linked_harness`. ``reported``: the addresses that the brokers advertise, by listener."""
        paths = Paths(
            tests=kafka.bootstrap_servers,
            drivers=",".join(reported[_DRIVERS]),
            coordinator=",".join(reported[_COORDINATOR]),
        )
        super().__init__(directory, kafka, paths=paths)
        self.proxies = proxies
        self.links: dict[str, Link] = {}
        for listener, who in ((_DRIVERS, "driver"), (_COORDINATOR, "coordinator")):
            for broker, own, advertised in zip(BROKERS, kafka.listening(listener), reported[listener], strict=True):
                name = f"{who}-broker-{broker}"
                self.links[name] = proxies.link(name, own, advertised)
        for who, host in (("first-executor", "127.0.0.1"), ("second-executor", SECOND_HOST)):
            for broker, own, advertised in zip(BROKERS, kafka.listening(_EXECUTORS), reported[_EXECUTORS], strict=True):
                name = f"{who}-broker-{broker}"
                self.links[name] = proxies.link(name, own, advertised.replace("localhost", host))
        self.by_name = ",".join(reported[_EXECUTORS])
        """Bootstrap servers by host name, which lead an executor elsewhere if it resolves ``localhost`` differently."""
        self.workers: Sequence[Process] = ()
        """Spark's workers, unless the driver starts them."""
        to_coordinator = proxies.link("driver-coordinator", self.address)
        self.links[to_coordinator.name] = to_coordinator
        self.address_for_drivers = to_coordinator.address
        self._own_ports = {_port(self.address)}
        """Of coordinators and databases."""
        self.database_port, tasks_port, self.tables_port, self.catalogue_port = (
            ports.client for ports in free_ports(4, None)
        )
        self._own_ports |= {self.database_port, self.tables_port, self.catalogue_port}
        self.links["table-database"] = proxies.link("table-database", f"127.0.0.1:{self.tables_port}")
        self.links["table-catalogue"] = proxies.link("table-catalogue", f"127.0.0.1:{self.catalogue_port}")
        self.links["driver-tasks"] = proxies.link(
            "driver-tasks", f"127.0.0.1:{tasks_port}", f"{_TASKS_HOST}:{tasks_port}"
        )
        self.for_staying = (
            f"--conf spark.driver.bindAddress=127.0.0.1 --conf spark.driver.host={_TASKS_HOST} "
            f"--conf spark.onceward.tasks.port={tasks_port}"
        )
        """Arguments of spark-submit with which tasks that stay reach their driver through their link."""
        self.linked_seats: Sequence[Seat] = [self._linked_seat(number) for number in (1, 2)]
        self.upstreams = {name: link.upstream for name, link in self.links.items()}
        self.driver: Callable[[], Process | None] = lambda: None
        """The driver of the running job, if any."""

    def _linked_seat(self, number: int) -> LinkedSeat:
        seat = linked_seat(self.proxies, number, self.database_port)
        self._own_ports.add(_port(seat.address))
        self.links |= {link.name: link for link in (seat.by_drivers, seat.to_database)}
        return seat

    def number(self, seat: Seat) -> int:
        """The number of a seat in the names of its links."""
        return self.linked_seats.index(seat) + 1

    def those(self, who: str, brokers: Sequence[int] = BROKERS) -> list[Link]:
        """The links of ``driver`` or ``coordinator`` to some brokers."""
        return [self.links[f"{who}-broker-{broker}"] for broker in brokers]

    def heal(self) -> None:
        """Restore every link."""
        for name, link in self.links.items():
            link.heal()
            if link.upstream != self.upstreams[name]:
                link.lead(self.upstreams[name])

    def clients(self) -> list[int]:
        """Process ids of the clients that may reach servers only through links."""
        kept = (self.coordinator, *(seat.process for seat in self.seats), self.driver(), *self.workers)
        return [process.pid for process in kept if process is not None and process.exit_code is None]

    def watched(self) -> Bypasses:
        """A context manager that detects clients which bypass their links."""
        return Bypasses(self.clients, lambda: {*self.kafka.ports, *self._own_ports})

    def open_connections(self) -> int:
        """Number of connections that driver and coordinator, as clients, have open through links."""
        ports = {_port(link.address) for link in self.links.values()}
        return sum(one.remote_port in ports for one in connections(family(self.clients())))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


@contextmanager
def two_coordinators(world: LinkedHarness) -> Iterator[None]:
    """A leader and a standby on an empty PostgreSQL, instead of the one coordinator."""
    with LocalPostgres(port=world.database_port) as database, world.sharing(database, world.linked_seats):
        yield


@contextmanager
def with_tables(world: LinkedHarness, kinds: Sequence[str]) -> Iterator[None]:
    """The systems of the job's tables, which driver and coordinator reach through ``table-database`` (``postgres``) and
    ``table-catalogue`` (``iceberg``)."""
    with ExitStack() as stack:
        if "postgres" in kinds:
            stack.enter_context(LocalPostgres(port=world.tables_port))
            address = world.links["table-database"].address
            world.tables["postgres"] = PostgresTables(f"postgresql://{DATABASE}@{address}/{DATABASE}")
        if "iceberg" in kinds:
            through = {"type": "rest", "uri": f"http://{world.links['table-catalogue'].address}"}
            tables = IcebergTables(world.directory / "iceberg", through)
            stack.enter_context(RestCatalogue(world.directory, tables.settings, port=world.catalogue_port))
            world.tables["iceberg"] = tables
        stack.callback(world.stop_serving)
        stack.callback(world.tables.clear)
        world.stop_serving()  # the next coordinator knows the systems
        yield


@contextmanager
def linked_harness(directory: Path) -> Iterator[LinkedHarness]:
    """A world with three replicas, two in sync; the brokers look for timed-out transactions every 200 ms."""
    directory.mkdir(parents=True, exist_ok=True)
    ports = free_ports(len(BROKERS), None)
    reported = {
        _DRIVERS: [f"127.0.0.1:{one.client}" for one in ports],
        _COORDINATOR: [f"127.0.0.1:{one.internal}" for one in ports],
        _EXECUTORS: [f"localhost:{one.controller}" for one in ports],
    }
    with (
        LocalToxiproxy(directory / "toxiproxy.log") as proxies,
        LocalKafka(3, transaction_timeout_scan_ms=200, heap="256m", advertised=reported) as kafka,
        LinkedHarness(directory, kafka, proxies, reported) as world,
    ):
        yield world
