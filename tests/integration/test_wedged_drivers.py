"""A driver whose main thread is stopped while its lease and its stream continue in their own threads: it is replaced,
and changes nothing more when it wakes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.common.errors import ExitCode
from onceward.common.killpoints import KillPoint
from onceward.protocol.status import JobStatus
from tests.integration.test_orphans import QUICK, coordinator, job_in, log, quick_world, readers_wait
from tests.support.processes import JobProcesses, Process
from tests.support.topics import Topics, assert_exactly_once
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]

POINT = KillPoint.DRIVER_AFTER_PRE_COMMIT


@pytest.fixture
def here(topics: Topics, job: str, tmp_path: Path) -> Iterator[JobProcesses]:
    with quick_world(topics, job, tmp_path) as here:
        here.spec["settings"] = {**QUICK, "timeout": "2s"}
        yield here


def wedged(here: JobProcesses) -> Process:
    """Start a driver that blocks when its transactions are written and not acknowledged."""
    driver = here.driver(kill_at=[f"{POINT}:3:block"])
    wait_until(lambda: f"{POINT}:3" in here.killed_at() or not driver.running, "the main thread stands still", 120)
    assert driver.running, driver.tail()
    return driver


def wake(here: JobProcesses) -> None:
    here.wake(f"{POINT}:3")


@pytest.mark.parametrize(
    "tolerated",
    [pytest.param(0, id="ordered to fail"), pytest.param(1000, id="ordered to abort", marks=pytest.mark.crash)],
)
def test_a_driver_with_a_stalled_main_thread_loses_the_job_and_rejoins_when_it_wakes(
    topics: Topics, here: JobProcesses, tolerated: int
) -> None:
    here.spec["settings"]["tolerable_failed_checkpoints"] = tolerated
    coordinator(here)
    driver = wedged(here)
    assert readers_wait(topics, here.spec["sink"]), "it has left nothing open"
    wait_until(lambda: job_in(here).status is JobStatus.SUSPENDED, f"the driver is given up:\n{log(here)}", 90)
    wait_until(lambda: not readers_wait(topics, here.spec["sink"]), f"readers go on:\n{log(here)}", 90)
    assert driver.running
    wake(here)
    assert driver.wait() == 0, driver.tail()
    assert [event["generation"] for event in here.events("recovered")] == [1, 3], driver.tail()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])


def test_another_driver_takes_over_from_a_stalled_one_which_leaves_when_it_wakes(
    topics: Topics, here: JobProcesses
) -> None:
    coordinator(here)
    driver = wedged(here)
    wait_until(lambda: job_in(here).status is JobStatus.SUSPENDED, f"the driver is given up:\n{log(here)}", 90)
    here.finish()
    wake(here)
    assert driver.wait() == ExitCode.FENCED, driver.tail()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])
