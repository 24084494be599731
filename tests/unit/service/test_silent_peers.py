"""A peer that keeps its connection but falls silent: a stopped process, or a network that drops everything."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.common.links import Links
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from tests.support.processes import halt
from tests.support.scripted import SINK, SOURCE, CoordinatorProcess
from tests.support.waiting import wait_until

LIMIT_S = 15.0
SETTINGS = CheckpointSettings(interval="1h", lease="60s", orphan_grace="60s")  # only the connection can reveal it


def drive(address: str, job: str) -> None:
    """Run a driver that holds its stream until it is killed."""
    with connect(address) as client:
        session = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="d")
        session.start_watch(lambda _instruction: None)
        signal.pause()


def since(begun: float, condition: Callable[[], object], what: str) -> float:
    wait_until(condition, what, LIMIT_S * 2)
    return time.monotonic() - begun


@pytest.mark.slow
def test_a_silent_driver_is_noticed_within_15_seconds(tmp_path: Path, job: str) -> None:
    process = CoordinatorProcess(tmp_path / "c")
    code = f"from {__name__} import drive; drive(*{json.dumps([process.address, job])})"
    driver = subprocess.Popen([sys.executable, "-c", code])
    try:
        process.wait_ready()
        with OperatorClient(process.address) as people:
            wait_until(lambda: [one.job for one in people.jobs()] == [job], "the driver has opened the job")
            wait_until(lambda: people.describe(JobName(job)).connected, "its stream is there")
            halt(driver.pid)
            took = since(
                time.monotonic(), lambda: not people.describe(JobName(job)).connected, "the stream counts as lost"
            )
        assert took < LIMIT_S
    finally:
        driver.kill()
        driver.wait()
        process.end()


@pytest.mark.slow
def test_a_silent_coordinator_is_noticed_within_15_seconds(tmp_path: Path, job: str) -> None:
    process, links = CoordinatorProcess(tmp_path / "c").wait_ready(), Links()
    try:
        with connect(process.address, links=links) as client:
            session = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="d")
            instructions: list[object] = []
            session.start_watch(instructions.append)
            wait_until(lambda: instructions, "the first trigger arrives")
            halt(process.pid)
            took = since(time.monotonic(), links.troubles, "the stream counts as lost")
            assert took < LIMIT_S
            os.kill(process.pid, signal.SIGCONT)
            seen = len(instructions)
            wait_until(lambda: len(instructions) > seen, "everything that is wanted arrives again")
            session.close(CloseReason.STOPPED)
    finally:
        process.end()
