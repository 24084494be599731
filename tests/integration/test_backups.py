"""A copy of the store, made as docs/how-to/deploy.md says, is restored later: this writes nothing twice."""

import signal
from collections.abc import Iterator

import pytest

from onceward.common.errors import ExitCode
from onceward.common.killpoints import KillPoint
from tests.integration.test_zombies import asleep
from tests.support.processes import JobProcesses, Process, Starter, bounded, free_address, listens
from tests.support.topics import Topics, assert_exactly_once
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

PARTITIONS = 2
RECORDS = 120
AT = 3
"""The checkpoint with records during which the copy is made."""

UNDECIDED = (KillPoint.DRIVER_AFTER_PLAN, KillPoint.DRIVER_AFTER_VOTES, KillPoint.DRIVER_AFTER_PRE_COMMIT)
BEFORE_A_COMMIT = (KillPoint.DRIVER_AFTER_DECISION,)
AFTER_A_COMMIT = (
    KillPoint.DRIVER_BETWEEN_END_TXN,
    KillPoint.DRIVER_AFTER_END_TXN,
    KillPoint.DRIVER_AFTER_SETTLE,
)
# Two pairs; `make crash` has all.
COPIED_AND_DEAD = [
    pytest.param(copied, dies, marks=[] if at == then and at != 1 else pytest.mark.crash)
    for at, copied in enumerate(UNDECIDED)
    for then, dies in enumerate(AFTER_A_COMMIT)
]


@pytest.fixture
def here(topics: Topics, job_processes: Starter) -> Iterator[JobProcesses]:
    source, sink = topics.create("in", PARTITIONS), topics.create("out", PARTITIONS)
    for partition in range(PARTITIONS):
        values: list[bytes | None] = [b"%d-%d" % (partition, number) for number in range(RECORDS)]
        topics.fill(source, values, partition=partition, key=b"key-%d" % partition)
    # so that a checkpoint is settled when the next one is triggered, and no stopped driver is given up
    settings = {"interval": "1s", "lease": "60s", "orphan_grace": "60s"}
    with job_processes(source, sink, coordinator=free_address(), source_options=bounded(40), settings=settings) as made:
        yield made


class Service:
    """The coordinator of a job, whose store can be copied and restored while it is down."""

    def __init__(self, here: JobProcesses) -> None:
        self._here = here
        self._start()

    def copy(self) -> dict[str, bytes]:
        self._stop()
        files = {file.name: file.read_bytes() for file in self._here.directory.glob("coordinator.db*")}
        self._start()
        return files

    def replace(self, files: dict[str, bytes]) -> dict[str, bytes]:
        """Restore a copy and return the files that it replaces."""
        self._stop()
        former = {file.name: file.read_bytes() for file in self._here.directory.glob("coordinator.db*")}
        for name in former:
            (self._here.directory / name).unlink()
        for name, content in files.items():
            (self._here.directory / name).write_bytes(content)
        self._start()
        return former

    def finish(self) -> None:
        """Run a driver to its end. It replaces the last one, which is dead, without a wait for its lease."""
        address = self._here.spec["coordinator"]
        wait_until(lambda: listens(address), "the coordinator listens")
        self._here.command("takeover", self._here.spec["job"], "--reason", "it is dead", "--coordinator", address)
        self._here.finish()

    def _stop(self) -> None:
        self._running.send(signal.SIGTERM)
        assert self._running.wait() == 0, self._running.tail()

    def _start(self) -> None:
        self._running: Process = self._here.coordinator(self._here.spec["coordinator"])


def copied_during(
    here: JobProcesses, service: Service, point: KillPoint, then: str
) -> tuple[Process, dict[str, bytes]]:
    """Copy the store while a driver is stopped at `point`, and let the driver continue until `then`."""
    driver = asleep(here.driver(kill_at=[f"{point}:{AT}:stop", then]))
    copy = service.copy()
    driver.send(signal.SIGCONT)
    return driver, copy


@pytest.mark.parametrize(("copied", "dies"), COPIED_AND_DEAD, ids=str)
def test_a_copy_from_before_a_decision_is_refused_once_a_commit_may_have_begun(
    here: JobProcesses, topics: Topics, copied: KillPoint, dies: KillPoint
) -> None:
    service = Service(here)
    driver, copy = copied_during(here, service, copied, f"{dies}:{AT}")
    here.wait_for_kill(dies, AT, driver)
    newest = service.replace(copy)
    before = topics.read(here.spec["sink"])
    refused = here.driver()
    assert refused.wait() == ExitCode.USAGE, refused.tail()
    assert "an old copy" in refused.tail()
    assert topics.read(here.spec["sink"]) == before, "the old copy wrote or committed something"
    service.replace(newest)
    service.finish()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])


@pytest.mark.parametrize("dies", BEFORE_A_COMMIT, ids=str)
def test_a_store_copy_from_before_an_unexecuted_decision_continues(
    here: JobProcesses, topics: Topics, dies: KillPoint
) -> None:
    service = Service(here)
    driver, copy = copied_during(here, service, KillPoint.DRIVER_AFTER_PRE_COMMIT, f"{dies}:{AT}")
    here.wait_for_kill(dies, AT, driver)
    newest = service.replace(copy)
    service.finish()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])
    service.replace(newest)
    refused = here.driver()
    assert refused.wait() == ExitCode.USAGE, refused.tail()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])


@pytest.mark.parametrize(
    "wakes",
    [
        *BEFORE_A_COMMIT,
        *(pytest.param(each, marks=pytest.mark.crash) for each in AFTER_A_COMMIT[:-1]),
        AFTER_A_COMMIT[-1],
    ],
    ids=str,
)
def test_a_live_driver_refuses_a_coordinator_with_an_older_state(
    here: JobProcesses, topics: Topics, wakes: KillPoint
) -> None:
    service = Service(here)
    driver, copy = copied_during(here, service, KillPoint.DRIVER_AFTER_PRE_COMMIT, f"{wakes}:{AT}:stop")
    wait_until(lambda: f"{wakes.value}:{AT}" in here.killed_at() or not driver.running, "the driver continues")
    newest = service.replace(copy)
    asleep(driver).send(signal.SIGCONT)
    ended = driver.wait()
    if wakes is not KillPoint.DRIVER_AFTER_SETTLE and ended == ExitCode.FINISHED:
        # The driver had no answer to its acknowledgement and repeated it: the copy decided about the same transactions.
        assert_exactly_once(topics, here.spec["source"], here.spec["sink"])
        return
    assert ended in (ExitCode.USAGE, ExitCode.HALTED), driver.tail()
    service.replace(newest)
    service.finish()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])
