"""A driver dies and is not restarted: the coordinator ends its transactions, so that no reader waits for them."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onceward.client.operators import OperatorClient
from onceward.common.killpoints import KillPoint
from onceward.protocol.status import JobStatus
from onceward.wire.rows import JobSummary
from tests.support.processes import JobProcesses, Process, bounded, free_address
from tests.support.topics import Topics, assert_exactly_once, fill, open_transactions_hold_back
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]

QUICK = {"interval": "100ms", "stream_grace": "200ms", "lease": "1s", "orphan_grace": "1s"}
"""Short, because the test is about the consequences of the kill. The transaction timeout stays at minutes."""
ALLOWED_S = 12.0
"""The promise is lease + grace + 2 s, on a machine that is not busy. This is far below any transaction timeout."""

BETWEEN = KillPoint.DRIVER_BETWEEN_END_TXN
DEATHS = (KillPoint.DRIVER_AFTER_PRE_COMMIT, BETWEEN, KillPoint.DRIVER_AFTER_END_TXN)
ORPHAN_POINTS = (BETWEEN, KillPoint.ORPHAN_AFTER_COMMIT, KillPoint.ORPHAN_AFTER_ABORT)
"""The abort comes last: every process does it, while commits beside it may be settled before the process dies."""


def readers_wait(topics: Topics, sink: str) -> bool:
    return any(open_transactions_hold_back(topics.servers, sink).values())


def job_in(here: JobProcesses) -> JobSummary:
    """The job as the coordinator lists it."""
    with OperatorClient(here.spec["coordinator"], patience="60s") as client:
        (found,) = [job for job in client.jobs() if job.job == here.spec["job"]]
    return found


@contextmanager
def quick_world(topics: Topics, job: str, directory: Path) -> Iterator[JobProcesses]:
    """A job with ten checkpoints of bounded input, and with leases and grace periods of at most a second."""
    source, sink = topics.create("in", 3), topics.create("out", 3)
    fill(topics, source, 1500)
    with JobProcesses(
        directory,
        job,
        topics.servers,
        source,
        sink,
        coordinator=free_address(),
        source_options=bounded(150),
        settings=QUICK,
    ) as here:
        yield here


@pytest.fixture
def here(topics: Topics, job: str, tmp_path: Path) -> Iterator[JobProcesses]:
    with quick_world(topics, job, tmp_path) as here:
        yield here


def coordinator(here: JobProcesses, *kill_at: str) -> Process:
    return here.coordinator(here.spec["coordinator"], kill_at=kill_at, settles=True)


def finish(here: JobProcesses, topics: Topics) -> None:
    """Run the next driver, which finds everything settled and copies the rest."""
    here.finish()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])


def test_no_reader_waits_for_a_driver_that_is_dead(topics: Topics, here: JobProcesses) -> None:
    serving = coordinator(here)
    sink = here.spec["sink"]
    for number, point in enumerate(DEATHS, start=1):
        here.wait_for_kill(point, 3, here.driver(kill_at=[f"{point}:3"]))
        died = time.monotonic()
        assert readers_wait(topics, sink) or point is KillPoint.DRIVER_AFTER_END_TXN, "the driver left nothing open"
        wait_until(lambda: not readers_wait(topics, sink), f"readers go on:\n{log(here)}", ALLOWED_S)
        print(f"{point}: LSO = HW after {time.monotonic() - died:.2f} s")
        wait_until(lambda n=number: settled_by_the_coordinator(here, 2 * n), f"all is settled:\n{log(here)}")  # type: ignore[misc]
    wait_until(lambda: "late tasks" in job_in(here).orphan, "the listing says that it looks for late tasks")
    finish(here, topics)
    recovered = here.events("recovered")
    assert [event["generation"] for event in recovered] == [1, 3, 5, 7], "the coordinator took one after each"
    assert {(event["resumed"], event["aborted"]) for event in recovered} == {(0, 0)}, "something was left to a driver"
    chatter = [line for line in serving.log.read_text().splitlines() if " INFO " in line and " kafka." in line]
    assert chatter == [], "the log shows what a library does"


@pytest.mark.crash
def test_the_coordinator_dies_anywhere_in_its_work_for_a_dead_driver(topics: Topics, here: JobProcesses) -> None:
    first = coordinator(here, f"{KillPoint.COORDINATOR_BEFORE_GRANT}:2")
    here.wait_for_kill(BETWEEN, 3, here.driver(kill_at=[f"{BETWEEN}:3"]))
    here.wait_for_kill(KillPoint.COORDINATOR_BEFORE_GRANT, 2, first)
    for point in ORPHAN_POINTS:
        here.wait_for_kill(point, 1, coordinator(here, f"{point}:1"))
    coordinator(here)
    wait_until(lambda: settled_by_the_coordinator(here, 2), f"all is settled:\n{log(here)}")
    assert not readers_wait(topics, here.spec["sink"])
    finish(here, topics)
    (recovered,) = [event for event in here.events("recovered") if event["generation"] > 1]
    assert (recovered["generation"], recovered["resumed"], recovered["aborted"]) == (3, 0, 0)


@pytest.mark.crash
def test_the_next_driver_replays_slots_that_the_coordinator_found_lost(topics: Topics, here: JobProcesses) -> None:
    """The transactions time out before the coordinator may take the job: it proves the loss, but cannot write."""
    here.spec |= {
        "careless": True,
        "sink_options": {"transaction_timeout": "3s", "on_lost": "replay"},
        "settings": {**QUICK, "orphan_grace": "5s"},
    }
    coordinator(here)
    here.wait_for_kill(BETWEEN, 3, here.driver(kill_at=[f"{BETWEEN}:3"]))
    wait_until(lambda: "event=lost" in log(here), "the coordinator proves the loss", 90)
    found = job_in(here)
    assert (found.generation, found.settled, found.status) == (2, False, JobStatus.SUSPENDED)
    here.spec["sink_options"] = {"on_lost": "replay"}
    finish(here, topics)
    (replayed,) = here.events("replayed")
    assert (replayed["slots"], replayed["generation"]) == (2, 3)


@pytest.mark.crash
def test_a_coordinator_on_an_old_copy_of_the_store_touches_nothing(topics: Topics, here: JobProcesses) -> None:
    """To this coordinator the job is an orphan with a checkpoint to commit; the claim says that it went on
    elsewhere."""
    address, store = here.spec["coordinator"], here.directory / "coordinator.db"
    first = here.coordinator(address)
    point = KillPoint.DRIVER_AFTER_DECISION
    here.wait_for_kill(point, 3, here.driver(kill_at=[f"{point}:3"]))
    first.send(signal.SIGTERM)
    assert first.wait() == 0
    copied = store.read_bytes()
    second = here.coordinator(address)
    finish(here, topics)
    second.send(signal.SIGTERM)
    assert second.wait() == 0
    store.write_bytes(copied)
    coordinator(here)
    wait_until(lambda: "leaves it as it is" in job_in(here).orphan, f"it says why:\n{log(here)}")
    found = job_in(here)
    assert "an old copy" in found.orphan
    assert (found.generation, found.settled) == (1, False)
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])


def settled_by_the_coordinator(here: JobProcesses, generation: int) -> bool:
    found = job_in(here)
    return (found.generation, found.settled, found.status) == (generation, True, JobStatus.SUSPENDED)


def log(here: JobProcesses) -> str:
    return (here.directory / "coordinator.log").read_text()[-6000:]
