"""Two coordinators that share a PostgreSQL: one leads, the other one stands by."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import time

import grpc
import psycopg
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from onceward.dev.postgres.server import DATABASE, LocalPostgres
from onceward.dev.toxiproxy import Link, LocalToxiproxy
from onceward.wire.lead import READY
from tests.support.harness import Armed, Harness
from tests.support.processes import Process, free_address, stands_still
from tests.support.waiting import wait_until

__all__ = ["LeadingHarness", "LinkedSeat", "Seat", "linked_seat"]

_ANSWER_S = 1.0
_HAND_OVER_S = 5.0
_TRIES = 12
_END_LEAD = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid)
    WHERE locktype = 'advisory' AND granted AND application_name LIKE %s
"""


@dataclass(kw_only=True)
class Seat:
    """The place of a coordinator, which it has again when it is started again."""

    address: str
    address_for_drivers: str
    store_url: str
    process: Process | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.running

    @property
    def coordinator(self) -> Process:
        assert self.process is not None, "it was not started yet"
        return self.process

    def leads(self) -> bool:
        return self._serves("")

    def could_lead(self) -> bool:
        """Whether it leads, or stands by."""
        return self._serves(READY)

    def _serves(self, service: str) -> bool:
        with suppress(grpc.RpcError), grpc.insecure_channel(self.address) as channel:
            asked = health_pb2.HealthCheckRequest(service=service)
            answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=_ANSWER_S)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False


@dataclass(kw_only=True)
class LinkedSeat(Seat):
    """A seat whose links can be disturbed."""

    by_drivers: Link
    to_database: Link


def linked_seat(proxies: LocalToxiproxy, number: int, database_port: int) -> LinkedSeat:
    """A seat with the links ``driver-coordinator-N`` and ``coordinator-database-N``."""
    own = free_address()
    by_drivers = proxies.link(f"driver-coordinator-{number}", own)
    to_database = proxies.link(f"coordinator-database-{number}", f"127.0.0.1:{database_port}")
    return LinkedSeat(
        address=own,
        address_for_drivers=by_drivers.address,
        store_url=f"postgresql://{DATABASE}@{to_database.address}/{DATABASE}",
        by_drivers=by_drivers,
        to_database=to_database,
    )


class LeadingHarness(Harness):
    """A harness that has one coordinator, or, within `sharing`, two that share a database."""

    seats: Sequence[Seat] = ()
    _database: LocalPostgres | None = None
    _starts = 0

    @contextmanager
    def sharing(self, database: LocalPostgres, seats: Sequence[Seat]) -> Iterator[None]:
        """Two coordinators instead of one. ``database``: empty, and already running."""
        self.stop_serving()
        before = self.address, self.address_for_drivers
        self.address = ",".join(seat.address for seat in seats)
        self.address_for_drivers = ",".join(seat.address_for_drivers for seat in seats)
        self.seats, self._database = seats, database
        try:
            yield
        finally:
            self.stop_serving()
            self.address, self.address_for_drivers = before
            self.seats, self._database = (), None

    @property
    def database(self) -> LocalPostgres:
        assert self._database is not None, "only within sharing()"
        return self._database

    def leader(self) -> Seat:
        """The seat of the coordinator that leads. Waits until one does."""
        found: list[Seat] = []

        def one_leads() -> bool:
            found[:] = [seat for seat in self.seats if seat.running and seat.leads()]
            return len(found) == 1

        wait_until(one_leads, f"one coordinator leads; see {self._logs}")
        return found[0]

    def other(self, seat: Seat) -> Seat:
        return next(one for one in self.seats if one is not seat)

    def sit(self, seat: Seat, environment: Mapping[str, str] | None = None) -> Process:
        """Start the coordinator of a seat."""
        self._starts += 1
        seat.process = self.start_coordinator(
            seat.address,
            environment or {},
            program=self._program,
            cluster=self.paths.coordinator,
            store_url=seat.store_url,
            name=f"coordinator-{self._starts}",
        )
        return seat.process

    def serve(self, armed: Armed | None = None, environment: Mapping[str, str] | None = None) -> Process:
        """Within `sharing`: kill the coordinator that stands by, start the next one, and hand the lead over to it."""
        if not self.seats:
            return super().serve(armed, environment)
        self.serving()
        before = self.leader()
        seat = self.other(before)
        seat.coordinator.end()
        process = self.sit(seat, {**(armed.environment if armed else {}), **(environment or {})})

        def leads() -> bool:
            return not process.running or seat.leads() or (armed is not None and armed.look())

        wait_until(lambda: seat.could_lead() or leads(), f"the coordinator stands by:\n{process.tail()}")
        for _ in range(_TRIES):  # the one before may take the lead again
            self._end_lead(before)
            with suppress(AssertionError):
                # until it notices, both say that they lead
                wait_until(lambda: not before.leads(), "it has noticed", _HAND_OVER_S)
                wait_until(leads, "it leads", _HAND_OVER_S)
                break
        assert leads(), f"the lead was not handed over; see {self._logs}"
        wait_until(before.could_lead, f"the one that led stands by; see {self._logs}")
        return process

    def stop_serving(self) -> None:
        """Kill every coordinator with SIGKILL."""
        super().stop_serving()
        for seat in self.seats:
            if seat.process is not None:
                seat.process.end()
                seat.process = None

    def serving(self) -> Process:
        """Within `sharing`: start what does not run, wait until one leads and the other one could; return the first."""
        if not self.seats:
            return super().serving()
        for seat in self.seats:
            if seat.running and stands_still(seat.coordinator.pid):
                seat.coordinator.end()  # it came to its kill point after the schedule had given up on that
            if not seat.running:
                self.sit(seat)
        for seat in self.seats:
            wait_until(seat.could_lead, f"the coordinator at {seat.address} could lead; see {self._logs}")
        return self.leader().coordinator

    def back(self) -> float:
        if not self.seats:
            return super().back()
        self.serving()
        return time()

    def _end_lead(self, seat: Seat) -> None:
        """End the session with which a coordinator leads."""
        with psycopg.connect(self.database.url, autocommit=True) as connection:
            connection.execute(_END_LEAD, (f"%:{seat.coordinator.pid}",))

    @property
    def _logs(self) -> str:
        return ", ".join(str(seat.process.log) for seat in self.seats if seat.process is not None)
