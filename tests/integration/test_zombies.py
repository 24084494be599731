"""Processes that are stopped while others take over their work: when they wake, they change nothing and report it. A
driver whose job was not taken over continues."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.common.errors import ExitCode
from onceward.common.killpoints import KillPoint
from onceward.protocol.status import JobStatus
from tests.integration.test_orphans import coordinator, job_in, log, quick_world, readers_wait
from tests.support.processes import JobProcesses, Process, armed_with, free_address, stands_still
from tests.support.topics import Topics, assert_exactly_once
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]

FALLS_ASLEEP = (
    KillPoint.TASK_BEFORE_BEGIN,
    KillPoint.TASK_MID_WRITE,
    KillPoint.DRIVER_AFTER_PRE_COMMIT,
    KillPoint.DRIVER_AFTER_DECISION,
    KillPoint.DRIVER_BETWEEN_END_TXN,
)


@pytest.fixture
def here(topics: Topics, job: str, tmp_path: Path) -> Iterator[JobProcesses]:
    with quick_world(topics, job, tmp_path) as here:
        yield here


def asleep(process: Process) -> Process:
    wait_until(lambda: not process.running or stands_still(process.pid), "the process reaches its point", 120)
    assert process.running, process.tail()
    return process


def test_drivers_and_tasks_that_wake_after_others_took_over_change_nothing(topics: Topics, here: JobProcesses) -> None:
    """The next driver replaces each one as soon as its lease has expired, without a request."""
    coordinator(here)
    source, sink = here.spec["source"], here.spec["sink"]
    zombies = [asleep(here.driver(kill_at=[f"{point}:4:stop"])) for point in FALLS_ASLEEP]
    here.finish()
    assert_exactly_once(topics, source, sink)
    seen = topics.read(sink)
    for zombie in zombies:
        zombie.send(signal.SIGCONT)
    for zombie, point in zip(zombies, FALLS_ASLEEP, strict=True):
        assert zombie.wait() == ExitCode.FENCED, f"{point}: {zombie.tail()}"
    assert "a newer generation owns the job" in zombies[0].tail()
    wait_until(lambda: not readers_wait(topics, sink), f"what late tasks began is aborted:\n{log(here)}")
    assert topics.read(sink) == seen
    assert_exactly_once(topics, source, sink)


def test_a_driver_that_slept_past_its_lease_continues_if_no_other_took_over(topics: Topics, here: JobProcesses) -> None:
    here.coordinator(here.spec["coordinator"])
    driver = asleep(here.driver(kill_at=[f"{KillPoint.DRIVER_AFTER_PRE_COMMIT}:3:stop"]))
    # only missing pings reveal a silent stream
    wait_until(lambda: job_in(here).status is JobStatus.SUSPENDED, f"the driver is given up:\n{log(here)}", 90)
    driver.send(signal.SIGCONT)
    assert driver.wait() == 0, driver.tail()
    assert [event["generation"] for event in here.events("recovered")] == [1, 2], driver.tail()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])


@pytest.mark.crash
def test_a_driver_that_wakes_after_the_coordinator_settled_for_it_restarts_by_itself(
    topics: Topics, here: JobProcesses
) -> None:
    coordinator(here)
    zombie = asleep(here.driver(kill_at=[f"{KillPoint.DRIVER_BETWEEN_END_TXN}:3:stop"]))
    assert readers_wait(topics, here.spec["sink"]), "nothing was left to settle"
    # only missing pings reveal a silent stream
    wait_until(lambda: job_in(here).generation == 2 and job_in(here).settled, f"it is settled:\n{log(here)}", 90)
    assert not readers_wait(topics, here.spec["sink"])
    zombie.send(signal.SIGCONT)
    assert zombie.wait() == 0, zombie.tail()
    assert [event["generation"] for event in here.events("recovered")] == [1, 3], zombie.tail()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])


def test_a_stalled_coordinator_keeps_its_store_and_continues_when_it_wakes(topics: Topics, here: JobProcesses) -> None:
    first = coordinator(here)
    driver = here.driver()
    here.wait_for_event("settled", driver, count=3)
    first.send(signal.SIGSTOP)
    address, here.spec["coordinator"] = here.spec["coordinator"], free_address()
    second = coordinator(here)
    assert second.wait() == ExitCode.USAGE, second.tail()
    assert f"in use by process {first.pid}" in second.tail()
    here.spec["coordinator"] = address
    first.send(signal.SIGCONT)
    assert driver.wait() == 0, driver.tail()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])


def test_a_task_that_wakes_after_its_job_has_ended_holds_no_reader_back(topics: Topics, here: JobProcesses) -> None:
    """The task begins its transaction only after the driver has left, so that it could not be aborted before."""
    coordinator(here)
    source, sink = here.spec["source"], here.spec["sink"]
    armed = armed_with([f"{KillPoint.TASK_BEFORE_BEGIN}:1:stop"], here.directory / "stopped")
    task = asleep(here.start_driver("task", "tests.integration.late_task", here.spec, armed))
    here.finish()
    assert_exactly_once(topics, source, sink)
    task.send(signal.SIGCONT)
    assert task.wait() == 0, task.tail()
    wait_until(lambda: not readers_wait(topics, sink), f"its transaction is aborted:\n{log(here)}")
    wait_until(lambda: "event=swept" in log(here), "the coordinator has aborted it")
    assert_exactly_once(topics, source, sink)
