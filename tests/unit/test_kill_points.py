"""A process that is stopped at a kill point does nothing after it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.common.killpoints import KILL_POINT_VARIABLE, KillPoint
from tests.support.processes import stands_still
from tests.support.waiting import wait_until

PROGRAM = """
import os
import threading
from onceward.common.killpoints import KillPoint, kill_point

def passes():
    os.sched_setscheduler(os.getpid(), os.SCHED_IDLE, os.sched_param(0))
    kill_point(KillPoint.DRIVER_AFTER_ACKNOWLEDGE)
    os.write(1, b"passed")
    os.sched_setscheduler(os.getpid(), os.SCHED_OTHER, os.sched_param(0))

thread = threading.Thread(target=passes)
thread.start()
thread.join()
"""
"""At the point its main thread gets the processor only when nothing else wants it."""


@pytest.fixture
def busy_processor() -> Iterator[int]:
    processor = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        os.sched_setaffinity(busy.pid, {processor})
        yield processor
        busy.kill()


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has idle threads")
def test_the_thread_that_passes_the_point_stops_there_also_when_all_others_wait_for_a_processor(
    busy_processor: int, tmp_path: Path
) -> None:
    environment = {**os.environ, KILL_POINT_VARIABLE: f"{KillPoint.DRIVER_AFTER_ACKNOWLEDGE}:1:stop"}
    output = tmp_path / "output"
    with (
        output.open("wb") as written,
        subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=written) as stopped,
    ):
        try:
            os.sched_setaffinity(stopped.pid, {busy_processor})
            wait_until(lambda: stands_still(stopped.pid), "every thread has stopped")
            assert output.read_text() == ""
            os.kill(stopped.pid, signal.SIGCONT)
            assert stopped.wait(60) == 0
        finally:
            stopped.kill()
    assert output.read_text() == "passed"
