"""The driver's command in its Job: exit codes pass through, except that of a driver which a signal has stopped."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.common.errors import ExitCode
from tests.support.manifests import container, find
from tests.support.waiting import wait_until

DRIVER = """
import pathlib, signal, sys, threading
code, place = int(sys.argv[1]), pathlib.Path(sys.argv[2])
stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
place.touch()
while not stopped.wait(0.05): pass
sys.exit(code)
"""
"""Ends with the given code once it has got SIGTERM, as a driver does when everything is settled."""


def command(*words: str) -> list[str]:
    """The Job's own command around another program."""
    own: list[str] = container(find("Job", "job").spec["template"]["spec"])["command"]
    return [*own, *words]


@pytest.mark.parametrize("code", [*map(int, ExitCode), 137])
def test_an_exit_code_passes_through(code: int) -> None:
    ended = subprocess.run(command(sys.executable, "-c", f"import sys; sys.exit({code})"), check=False)
    assert ended.returncode == code


def test_a_killed_driver_is_known_by_its_signal() -> None:
    killing = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run(command(sys.executable, "-c", killing), check=False).returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(("code", "seen"), [(0, 128 + signal.SIGTERM), (4, 4)])
def test_a_driver_that_a_signal_stops_does_not_complete_the_job(code: int, seen: int, tmp_path: Path) -> None:
    """With 0 a drained node would end the job: Kubernetes takes it for success, whatever ended the pod."""
    started = tmp_path / "started"
    process = subprocess.Popen(command(sys.executable, "-c", DRIVER, str(code), str(started)))
    try:
        wait_until(started.exists, "the driver runs")
        process.terminate()
        assert process.wait(60) == seen
    finally:
        process.kill()
