"""A program that is forked from a process with its imports behaves as one that Python starts."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.processes import Process, descendants, exists
from tests.support.waiting import wait_until
from tests.support.warm_start import WarmSupervisor, can_start

pytestmark = pytest.mark.slow

REPORT = """
import atexit, json, os, sys, threading
atexit.register(print, "left")
print(json.dumps({"arguments": sys.argv, "directory": os.getcwd(), "given": os.environ.get("GIVEN"), "name": __name__,
    "threads": len(os.listdir("/proc/self/task")), "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1]}))
"""


class Start(Protocol):
    def __call__(self, code: str, *arguments: str, **environment: str) -> Process: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(code: str, *arguments: str, **environment: str) -> Process:
            process = Process([sys.executable, "-c", code, *arguments], tmp_path / "log", environment, tmp_path)
            assert isinstance(process._supervisor, WarmSupervisor)
            stack.callback(process.end)
            return process

        yield started


def test_a_program_has_its_own_arguments_variables_directory_and_nothing_of_the_process_that_forks(
    start: Start, tmp_path: Path
) -> None:
    process = start(REPORT, "a", "b c", GIVEN="here")
    assert process.wait() == 0
    said, left = process.tail().splitlines()
    assert json.loads(said) == {
        "arguments": ["-c", "a", "b c"],
        "directory": str(tmp_path),
        "given": "here",
        "name": "__main__",
        "threads": 1,
        "descriptors": [0, 1, 2],
    }
    assert left == "left", "what is registered for the end has run"
    again = start(REPORT)
    assert again.wait() == 0
    assert json.loads(again.tail().splitlines()[2])["given"] is None


def test_a_module_runs_as_the_main_one(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nprint(__name__, sys.argv)\nsys.exit(3)\n")
    process = Process([sys.executable, "-m", "program", "x"], tmp_path / "log", {}, tmp_path)
    try:
        assert process.wait() == 3
        assert process.tail() == f"__main__ ['{tmp_path / 'program.py'}', 'x']"
    finally:
        process.end()


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit(4)", 4), ("raise ValueError('wrong')", 1), ("import os; os.kill(os.getpid(), 9)", 137)],
    ids=["exit", "exception", "killed"],
)
def test_its_exit_code_is_what_python_ends_with(start: Start, code: str, expected: int) -> None:
    process = start(code)
    assert process.wait() == expected
    assert ("ValueError: wrong" in process.tail()) == (expected == 1)


def test_many_threads_may_wait_for_its_end(start: Start) -> None:
    for _ in range(5):
        process = start("pass")
        with ThreadPoolExecutor(8) as pool:
            codes = [pool.submit(process.wait) for _ in range(8)]
            assert [code.result() for code in codes] == [0] * 8


def test_signals_reach_it_and_it_is_stopped_and_woken(start: Start) -> None:
    process = start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\n"
        "print('ready')\n"
        "time.sleep(600)"
    )
    wait_until(lambda: process.tail() == "ready", "it has begun")
    process.send(signal.SIGSTOP)
    process.send(signal.SIGUSR1)
    assert process.running
    process.send(signal.SIGCONT)
    assert process.wait() == 7


def test_its_end_ends_its_children(start: Start) -> None:
    process = start("import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid)\nimport time; time.sleep(600)")
    wait_until(lambda: process.tail().isdigit(), "its child runs")
    child = int(process.tail())
    assert exists(child)
    process.end()
    assert not process.running
    wait_until(lambda: not exists(child), "the child is gone")


def test_it_ends_with_the_test_even_if_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import pathlib, sys, time\n"
        "from tests.support.processes import Process\n"
        "program = 'import time; print(1, flush=True); time.sleep(600)'\n"
        "process = Process([sys.executable, '-c', program], pathlib.Path(sys.argv[1]), {})\n"
        "print('started', flush=True)\n"
        "time.sleep(600)"
    )
    test = subprocess.Popen([sys.executable, "-c", code, str(log)], stdout=subprocess.PIPE, start_new_session=True)
    assert test.stdout is not None
    try:
        assert test.stdout.readline() == b"started\n"
        wait_until(lambda: log.exists() and log.read_text().strip() == "1", "the program runs")
        started: set[int] = set()

        def all_seen() -> bool:
            """The kernel's list of children may miss one while others are made, and has some that end at once."""
            started.update(pid for pid, _ in descendants(test.pid))
            return sum(map(exists, started)) >= 3

        wait_until(all_seen, "what forks, the supervisor and the program run")
        test.send_signal(signal.SIGKILL)
        test.wait()
        wait_until(lambda: not any(map(exists, started)), "all are gone")
    finally:
        test.kill()
        test.wait()
        test.stdout.close()


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (["java", "-version"], {}),
        ([sys.executable, "program.py"], {}),
        ([sys.executable, "-c", "pass"], {"PYTHONHASHSEED": "1"}),
        ([sys.executable, "-c", "pass"], {"PYTHONPATH": "/elsewhere"}),
        ([sys.executable, "-m", "program"], {"OTEL_SERVICE_NAME": "one"}),
    ],
)
def test_what_python_or_a_library_must_read_at_its_start_is_not_forked(
    command: list[str], environment: dict[str, str]
) -> None:
    assert not can_start(command, environment)
