"""A terminal that follows a coordinator."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.client.session import connect
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.store.errors import StoreUnusableError
from onceward.coordinator.store.lock import StoreLock
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from tests.support.scripted import SINK, SOURCE, CoordinatorProcess
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
ONCEWARD = f"{sys.executable} -m onceward.operate"


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal(ROOT, {"PYTHONPATH": str(ROOT)}, columns=120)
    yield opened
    opened.close()


def shows(terminal: Terminal, pattern: str, since: int = 0) -> None:
    wait_until(
        lambda: re.search(pattern, terminal.output(since)) or terminal.exit_code is not None, f"it shows {pattern}"
    )
    assert re.search(pattern, terminal.output(since)), terminal.output(since)


def is_free(lock: Path) -> bool:
    try:
        StoreLock(lock).release()
    except StoreUnusableError:
        return False
    return True


def leave(terminal: Terminal) -> None:
    terminal.press_control_c()
    assert terminal.wait_for_exit(60) == 0


@pytest.mark.parametrize("command", ["jobs --watch", "top"])
def test_a_watched_listing_follows_a_coordinator_and_survives_its_restart(
    terminal: Terminal, tmp_path: Path, command: str
) -> None:
    process = CoordinatorProcess(tmp_path / "c").wait_ready()
    try:
        terminal.type(f"{ONCEWARD} {command} --coordinator {process.address}")
        shows(terminal, "There are no jobs")
        with connect(process.address) as client:
            client.open_job(JobName("orders"), (SOURCE, SINK), CheckpointSettings(), None, driver="d")
            shows(terminal, r"orders\s+running")
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            shows(terminal, "The coordinator has not answered for .*trying again")
            again = terminal.position
            process = CoordinatorProcess(tmp_path / "c", port=process.port).wait_ready()
            shows(terminal, r"Ctrl-C leaves(?s:.*)orders", again)
        leave(terminal)
        assert "orders" in terminal.output(again).rpartition("Ctrl-C leaves")[2]
    finally:
        process.end()


def test_a_watched_directory_is_free_for_the_job_that_starts_there(terminal: Terminal, tmp_path: Path) -> None:
    with EmbeddedCoordinator(tmp_path):
        pass
    terminal.type(f"{ONCEWARD} jobs --watch --state-dir {tmp_path}")
    shows(terminal, "There are no jobs")
    wait_until(lambda: is_free(tmp_path / "store.db.lock"), "the watcher leaves the directory")
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        client.open_job(JobName("orders"), (SOURCE, SINK), CheckpointSettings(), None, driver="d")
        shows(terminal, r"orders\s+running")
        leave(terminal)


def test_a_first_question_without_an_answer_ends_the_command(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type(f"{ONCEWARD} jobs --watch --state-dir {tmp_path}")
    assert terminal.wait_for_exit(60) == 2
    assert "No coordinator is running on" in terminal.output()


def test_the_overview_shows_as_many_jobs_as_fit_and_counts_all(terminal: Terminal, tmp_path: Path) -> None:
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        for number in range(100):
            client.open_job(JobName(f"job-{number:03}"), (SOURCE, SINK), CheckpointSettings(), None, driver="d")
        terminal.type(f"{ONCEWARD} top --state-dir {tmp_path}")
        shows(terminal, "100 jobs, 100 running")
        shows(terminal, "job-045")
        leave(terminal)
    screens = terminal.styled_output().split("100 jobs, 100 running")[1:]
    assert screens
    assert not [screen for screen in screens if "job-047" in screen]
