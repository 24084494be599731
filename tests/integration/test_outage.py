"""A broker is stopped for longer than any call is retried: jobs continue soon after it is back."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from onceward.common.killpoints import KillPoint
from onceward.dev.jars import fetch_progress
from onceward.dev.kafka import LocalKafka
from tests.integration.test_zombies import asleep
from tests.support.processes import JobProcesses, Process, halt
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

OUTAGE_S = 31.0
"""Longer than aborts, fences, sweeps and claims are retried."""
SOON_S = 25.0
"""The promise is 15 s, plus time for a busy machine. A wait on a timer that began during the outage takes longer."""
MET_AT = (KillPoint.DRIVER_AFTER_DECISION, KillPoint.DRIVER_AFTER_VOTES, KillPoint.TASK_MID_WRITE)


@pytest.fixture
def broker() -> Iterator[LocalKafka]:
    with LocalKafka(progress=fetch_progress("the broker's")) as kafka:
        yield kafka


def job(kafka: LocalKafka, directory: Path, name: str) -> JobProcesses:
    """A job with few records in each checkpoint, so that it has work for the whole test."""
    directory.mkdir()
    topics = Topics(kafka.bootstrap_servers, name)
    source, sink = topics.create("in"), topics.create("out")
    topics.fill(source, [b"%d" % number for number in range(5_000)])
    return JobProcesses(
        directory,
        name,
        kafka.bootstrap_servers,
        source,
        sink,
        source_options={"max_offsets_per_checkpoint": 20},
        settings={"interval": "300ms"},
    )


def test_jobs_continue_soon_after_a_paused_broker_returns(broker: LocalKafka, tmp_path: Path) -> None:
    with ExitStack() as stack:
        jobs: list[tuple[JobProcesses, Process]] = []
        for point in MET_AT:
            here = stack.enter_context(job(broker, tmp_path / point.name, point.name.lower()))
            jobs.append((here, here.driver(kill_at=[f"{point}:5:stop"])))
        for _, driver in jobs:
            asleep(driver)
        pids = list(broker.pids.values())
        for pid in pids:
            halt(pid)
        for _, driver in jobs:
            driver.send(signal.SIGCONT)
        time.sleep(OUTAGE_S)  # the duration of the fault, not a wait
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        back = time.time()
        for here, driver in jobs:
            try:
                wait_until(partial(pre_committed, here, back), f"{here.spec['job']} continues", 120)
            except AssertionError as error:  # only now does the log say what it waits for
                raise AssertionError(f"{error}\n{driver.tail()}") from None
        went_on = {here.spec["job"]: pre_committed(here, back)[0] - back for here, _ in jobs}
        assert max(went_on.values()) < SOON_S, went_on


def pre_committed(here: JobProcesses, since: float) -> list[float]:
    """Times after `since` when the job pre-committed checkpoints."""
    return [event["at"] for event in here.events("pre-committed") if event["at"] > since]
