"""The coordinator that leads, the one that stands by, and their database die, stand still and are cut off under a
running job.

The one that leads stops at a kill point, and there the fault happens. So each fault meets each step of the protocol.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP

from onceward.common.killpoints import KillPoint
from onceward.coordinator.store.postgres import PAUSE_S
from onceward.dev.kafka import LocalKafka
from onceward.dev.postgres.server import LocalPostgres
from onceward.dev.toxiproxy import Link, LocalToxiproxy, Stream, Toxic
from tests.crash.points import SCENES, Scene, visit
from tests.support.harness import Armed
from tests.support.jobs import Job, Setup, judged
from tests.support.killed_job import ANY_TIME, at_point
from tests.support.leading import LeadingHarness, LinkedSeat, Seat, linked_seat
from tests.support.processes import Process, descendants, halt, stands_still
from tests.support.schedules import Kill, Outcome, Schedule
from tests.support.waiting import wait_until

__all__ = [
    "DRIVER_POINTS",
    "FAULTS",
    "LEADER_SCENES",
    "OF_THE_LEADER",
    "Fault",
    "FaultyHarness",
    "faulty_harness",
    "leader_points",
    "strike_any_time",
    "strike_at_driver_points",
    "visit_leader",
]

_PART = "leaders"
_STILL_S = PAUSE_S + 1
"""How long a process stands still: the database has ended the session of a leader that did."""
_LONG_LEASE = "30s"
"""Of the scene whose job only its coordinators disturb: no fault lasts so long, so its driver must not be fenced."""

DRIVER_POINTS = (
    KillPoint.DRIVER_BEFORE_OPEN,
    KillPoint.DRIVER_AFTER_OPEN,
    KillPoint.DRIVER_AFTER_CLAIM,
    KillPoint.DRIVER_AFTER_TRIGGER,
    KillPoint.DRIVER_AFTER_PRE_COMMIT,
    KillPoint.DRIVER_AFTER_ACKNOWLEDGE,
    KillPoint.DRIVER_AFTER_DECISION,
    KillPoint.DRIVER_BETWEEN_END_TXN,
    KillPoint.DRIVER_AFTER_END_TXN,
    KillPoint.DRIVER_AFTER_SETTLE,
)
"""Where the driver stands while its coordinator changes: before and after each of its calls."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens while a coordinator leads. Afterwards the harness starts what is dead."""

    name: str
    process: str
    """Who dies or stands still, for the report."""
    strike: Callable[["FaultyHarness", Seat], None]
    """Gets the seat of the coordinator that leads. Calls `FaultyHarness.go_on` when the fault has begun."""


def _kill_leader(harness: "FaultyHarness", leader: Seat) -> None:
    leader.coordinator.end()
    harness.go_on()


def _pause_leader(harness: "FaultyHarness", leader: Seat) -> None:
    """It wakes when the other one leads."""
    leader.coordinator.send(SIGSTOP)
    harness.go_on(but=leader.coordinator)
    wait_until(harness.other(leader).leads, "the coordinator that stood by leads")
    leader.coordinator.send(SIGCONT)
    wait_until(lambda: leader.could_lead() and not leader.leads(), "the one that stood still stands by")


def _kill_standby(harness: "FaultyHarness", leader: Seat) -> None:
    standby = harness.other(leader).coordinator
    standby.end()
    harness.go_on()


def _pause_standby(harness: "FaultyHarness", leader: Seat) -> None:
    standby = harness.other(leader).coordinator
    standby.send(SIGSTOP)
    harness.go_on()
    time.sleep(_STILL_S)
    standby.send(SIGCONT)


def _kill_leader_beside_paused_standby(harness: "FaultyHarness", leader: Seat) -> None:
    """The one that stands still waits for the lock and gets it, but cannot lead: the one that died must, once it is
    back."""
    standby = harness.other(leader).coordinator
    standby.send(SIGSTOP)
    leader.coordinator.end()
    harness.go_on()
    harness.sit(leader)
    try:
        wait_until(leader.leads, "the coordinator that died leads again while the other one stands still", 20)
    finally:
        standby.send(SIGCONT)


def _kill_database(harness: "FaultyHarness", leader: Seat) -> None:
    harness.database.kill()
    harness.go_on()
    harness.database.restart()


def _pause_database(harness: "FaultyHarness", leader: Seat) -> None:
    with _standing_still(harness.database):
        harness.go_on()
        time.sleep(_STILL_S)


def _kill_all(harness: "FaultyHarness", _leader: Seat) -> None:
    harness.database.kill()
    harness.stop_serving()
    harness.go_on()
    harness.database.restart()


def _cut_leader_off_database(harness: "FaultyHarness", leader: Seat) -> None:
    _cut_leader_off(harness, leader, _linked(leader).to_database)


def _cut_leader_off_all(harness: "FaultyHarness", leader: Seat) -> None:
    _cut_leader_off(harness, leader, _linked(leader).to_database, _linked(leader).by_drivers)


def _cut_leader_off(harness: "FaultyHarness", leader: Seat, *links: Link) -> None:
    """The links carry again when the other one leads."""
    with _cut(*links):
        harness.go_on()
        wait_until(harness.other(leader).leads, "the coordinator that stood by leads")
    wait_until(lambda: leader.could_lead() and not leader.leads(), "the one that was cut off stands by")


def _cut_standby_off_database(harness: "FaultyHarness", leader: Seat) -> None:
    standby = harness.other(leader)
    with _cut(_linked(standby).to_database):
        harness.go_on()
        time.sleep(_STILL_S)
    wait_until(standby.could_lead, "the one that was cut off stands by")


def _cut_database_off(harness: "FaultyHarness", _leader: Seat) -> None:
    with _cut(*(_linked(seat).to_database for seat in harness.seats)):
        harness.go_on()
        time.sleep(_STILL_S)


def _linked(seat: Seat) -> LinkedSeat:
    """All seats of `faulty_harness` have links."""
    assert isinstance(seat, LinkedSeat)
    return seat


@contextmanager
def _cut(*links: Link) -> Iterator[None]:
    """Let the links carry nothing, without a reset: as when a cable is pulled."""
    try:
        for link in links:
            for stream in Stream:
                link.add(Toxic(type="timeout", stream=stream, attributes={"timeout": 0}))
        yield
    finally:
        for link in links:
            link.heal()


@contextmanager
def _standing_still(database: LocalPostgres) -> Iterator[None]:
    """Stop all processes of the database."""
    assert database.pid is not None
    stopped = [database.pid]
    try:
        halt(database.pid)  # first, so that it starts no others
        for child, _ in descendants(database.pid):
            with suppress(ProcessLookupError):
                os.kill(child, SIGSTOP)
                stopped.append(child)
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, SIGCONT)


FAULTS = (
    Fault(name="leader-killed", process="coordinator that leads", strike=_kill_leader),
    Fault(name="leader-paused", process="coordinator that leads, paused", strike=_pause_leader),
    Fault(name="standby-killed", process="coordinator that stands by", strike=_kill_standby),
    Fault(name="standby-paused", process="coordinator that stands by, paused", strike=_pause_standby),
    Fault(
        name="leader-killed-standby-paused",
        process="coordinator that leads, beside a paused one",
        strike=_kill_leader_beside_paused_standby,
    ),
    Fault(name="database-killed", process="database", strike=_kill_database),
    Fault(name="database-paused", process="database, paused", strike=_pause_database),
    Fault(
        name="leader-cut-off-database",
        process="coordinator that leads, cut off from the database",
        strike=_cut_leader_off_database,
    ),
    Fault(
        name="leader-cut-off-all",
        process="coordinator that leads, cut off from database and drivers",
        strike=_cut_leader_off_all,
    ),
    Fault(
        name="standby-cut-off-database",
        process="coordinator that stands by, cut off from the database",
        strike=_cut_standby_off_database,
    ),
    Fault(name="database-cut-off", process="database, cut off", strike=_cut_database_off),
    Fault(name="all-killed", process="coordinators and database", strike=_kill_all),
)
"""Of the coordinators and their database."""
OF_THE_LEADER = tuple(fault for fault in FAULTS if not fault.name.startswith("standby"))
"""What a driver may notice."""
_RANDOM_FAULTS = 8


class FaultyHarness(LeadingHarness):
    """Where a coordinator is armed to die, it stops, and `fault` happens there."""

    fault: Fault = FAULTS[0]
    _still: Process | None = None

    def strike(self, leader: Seat, still: Process | None = None) -> None:
        """Let the fault happen. ``still``: stands still at a kill point, and continues when the fault has begun."""
        self._still = still
        try:
            self.fault.strike(self, leader)
        finally:
            self._still = None

    def go_on(self, *, but: Process | None = None) -> None:
        """Let the process continue that stands still at a kill point, unless it is ``but``."""
        if self._still is not None and self._still is not but:
            self._still.send(SIGCONT)

    def arm(self, *kills: Kill, stops: bool = False) -> Armed:
        for kill in kills:
            if kill.process.startswith("coordinator"):
                kill.process, stops = kill.process.replace("coordinator", self.fault.process, 1), True
        return super().arm(*kills, stops=stops)

    def dies(self, process: Process, armed: Armed, limit_s: float) -> bool:
        seat = next((seat for seat in self.seats if seat.process is process), None)
        if seat is None:
            return super().dies(process, armed, limit_s)
        limit = time.monotonic() + limit_s
        while process.running and not stands_still(process.pid) and time.monotonic() < limit:
            time.sleep(0.02)
        reached = armed.look()
        if reached:
            self.strike(seat, process)
        return reached


@contextmanager
def faulty_harness(directory: Path, kafka: LocalKafka) -> Iterator[FaultyHarness]:
    """Two coordinators on a PostgreSQL of their own. Their links can be cut. Raises ToxiproxyError."""
    with (
        LocalPostgres() as database,
        LocalToxiproxy() as proxies,
        FaultyHarness(directory, kafka) as harness,
        harness.sharing(database, [linked_seat(proxies, number, database.port) for number in (1, 2)]),
    ):
        yield harness


def leader_points(scene: Scene) -> list[KillPoint]:
    """The points of a scene that a coordinator passes."""
    return [point for point in scene.points() if point.startswith(("coordinator.", "orphan."))]


LEADER_SCENES = tuple(scene for scene in SCENES if leader_points(scene))
"""In which a coordinator passes all of its kill points."""


def visit_leader(
    harness: FaultyHarness,
    fault: Fault,
    scene: Scene,
    name: str,
    *,
    points: Sequence[KillPoint] = (),
    passes: Sequence[int] = (1,),
) -> Schedule:
    """Let the fault happen while the coordinator that leads is at each of its points. ``points``: empty = all."""
    harness.fault = fault
    schedule = visit(harness, scene, points or leader_points(scene), passes, name, part=_PART)
    return _undisturbed(schedule) if scene.setup.settings["lease"] == _LONG_LEASE else schedule


def strike_at_driver_points(
    harness: FaultyHarness, fault: Fault, name: str, points: Sequence[KillPoint] = DRIVER_POINTS
) -> Schedule:
    """Let the fault happen while the driver is at each of these points."""
    harness.fault = fault

    def body(job: Job) -> None:
        job.settles()
        for point in points:
            armed = harness.arm(at_point("driver", point), stops=True)
            driver = job.drive(armed)
            job.wait(lambda: armed.look() and stands_still(driver.pid), f"the driver is at {point}")  # noqa: B023
            kill = Kill(process=fault.process, place=f"driver at {point}")
            leader = harness.leader()
            job.kill(kill, lambda: harness.strike(leader, driver))  # noqa: B023
            job.back()
            job.settles()

    return judged(harness, Schedule(part=_PART, name=name), Setup(settings={"lease": "5s"}), body)


def strike_any_time(harness: FaultyHarness, seed: int, *, faults: int = _RANDOM_FAULTS) -> Schedule:
    """Let faults from a seed happen at any time, some together with the end of the driver."""
    chance = random.Random(seed)

    def body(job: Job) -> None:
        job.settles()
        for _ in range(faults):
            job.lives(chance.uniform(0, 2))
            fault = harness.fault = chance.choice(FAULTS)
            with_driver = chance.random() < 1 / 3
            if with_driver:
                assert job.driver is not None
                job.kill(Kill(process="driver", place=ANY_TIME), job.driver.end)
            kill = Kill(process=f"{fault.process}, and its job is disturbed too", place=ANY_TIME)
            leader = harness.leader()
            job.kill(kill, lambda: harness.strike(leader))  # noqa: B023
            if with_driver:
                job.drive()
            job.back()
        job.settles()

    return judged(harness, Schedule(part=_PART, name=f"any-time-{seed}", seed=seed), Setup(), body)


def _undisturbed(schedule: Schedule) -> Schedule:
    """Fail a schedule in which the driver lost its generation, though its lease was long enough."""
    if schedule.generations > 1:
        schedule.reasons.append(f"the driver was fenced: the job came to generation {schedule.generations}")
        schedule.outcome = Outcome.FAIL
    return schedule
