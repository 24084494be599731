"""Coordinators on one PostgreSQL die and stand still at every kill point, and another one leads the running job on."""

import signal
from typing import TYPE_CHECKING

import pytest

from onceward.common.killpoints import KillPoint
from onceward.operate.health import run_health
from onceward.wire.lead import READY
from tests.support.places import postgres_place
from tests.support.processes import QUICK, JobProcesses, Process, Starter, armed_with, bounded, free_address
from tests.support.topics import Topics, assert_exactly_once, fill
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

POINTS = [
    KillPoint.COORDINATOR_BEFORE_TRIGGER,
    KillPoint.COORDINATOR_AFTER_TRIGGER,
    KillPoint.COORDINATOR_BEFORE_DECISION,
    KillPoint.COORDINATOR_AFTER_DECISION,
    KillPoint.COORDINATOR_BEFORE_SETTLED,
    KillPoint.COORDINATOR_AFTER_SETTLED,
]


class Leaders:
    """Coordinators that take turns: each leads once the one before is asked to end."""

    def __init__(self, here: JobProcesses, store_url: str, addresses: tuple[str, str]) -> None:
        self._here = here
        self._store_url = store_url
        self._addresses = addresses
        self._starts = 0
        self.leader = self._start({})

    def _start(self, environment: dict[str, str]) -> Process:
        """Start a coordinator that could lead, on the address of the one before the last."""
        address = self._addresses[self._starts % 2]
        self._starts += 1
        name = f"coordinator-{self._starts}"
        process = self._here.start_coordinator(address, environment, store_url=self._store_url, name=name)
        wait_until(lambda: run_health(address, READY) == 0 or not process.running, "the coordinator could lead")
        assert process.running, process.tail()
        return process

    def next(self, environment: dict[str, str]) -> Process:
        """Hand the lead over to a new coordinator, and start one that stands by."""
        before, after = self.leader, self._start(environment)
        before.send(signal.SIGTERM)
        assert before.wait(60) == 0, before.tail()
        self.leader = self._start({})
        return after


@pytest.mark.parametrize(
    ("how", "points"),
    [
        pytest.param("killed", POINTS, id="killed", marks=pytest.mark.crash),
        pytest.param("stopped", POINTS, id="stopped", marks=pytest.mark.crash),
        pytest.param("stopped", POINTS[1:4:2], id="stopped-at-some"),
    ],
)
def test_a_running_job_survives_the_end_of_its_leader_at_every_kill_point(
    topics: Topics, job_processes: Starter, postgres: "LocalPostgres", how: str, points: list[KillPoint]
) -> None:
    source, sink = topics.create("in", 3), topics.create("out", 3)
    fill(topics, source, 5000)
    addresses = free_address(), free_address()
    with job_processes(
        source,
        sink,
        coordinator=",".join(addresses),
        source_options=bounded(50),
        settings={**QUICK, "lease": "60s", "orphan_grace": "60s"},
    ) as here:
        leaders = Leaders(here, postgres_place(postgres).url, addresses)
        driver = here.driver()
        here.wait_for_event("settled", driver)
        for point in points:
            entry = f"{point.value}:1"
            armed = armed_with([entry if how == "killed" else f"{entry}:stop"], here.directory / "kills")
            first = leaders.next(armed)
            wait_until(lambda entry=entry: entry in here.killed_at(), f"{point} is reached:\n{first.tail()}")  # type: ignore[misc]
            here.wait_for_event("settled", driver, count=len(here.events("settled")) + 3)
            if how == "killed":
                assert first.wait(60) != 0
            else:
                first.send(signal.SIGCONT)
                wait_until(lambda: "event=stands_by" in first.tail(), "it notices that it leads no more")  # noqa: B023
                first.end()
        assert driver.wait(300) == 0, driver.tail()
        assert {event["generation"] for event in here.events("recovered")} == {1}, "the running job was disturbed"
        assert_exactly_once(topics, source, sink)
