"""The demo's processes: killed ones restart with the next kill armed, and none outlives the demo."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceward.common.killpoints import KillPoint
from onceward.dev.demo.events import EventReader
from onceward.dev.demo.history import History, history_of
from onceward.dev.demo.plan import LEAST_CHECKPOINTS, PLAN, Kill
from onceward.dev.demo.supervisor import Supervised, start_module
from onceward.dev.errors import DemoError
from onceward.dev.managed_process import ManagedProcess, NotStartedError
from tests.support.processes import descendants
from tests.support.waiting import wait_until

FIRST = Kill(point=KillPoint.DRIVER_AFTER_DECISION, nth=1, meaning="first")
SECOND = Kill(point=KillPoint.DRIVER_AFTER_PRE_COMMIT, nth=2, meaning="second")

LIVING = "import time; time.sleep(600)"
PASSING = """
import time
from onceward.common.killpoints import KillPoint, kill_point
for _ in range(3):
    kill_point(KillPoint.DRIVER_AFTER_DECISION)
    kill_point(KillPoint.DRIVER_AFTER_PRE_COMMIT)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False
    return state != "Z"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Callable[[str, dict[str, str]], ManagedProcess]]]:
    """Make starters of a script, like the supervisor's starters of programs."""
    children: list[ManagedProcess] = []

    def starter(script: str) -> Callable[[str, dict[str, str]], ManagedProcess]:
        (tmp_path / "script.py").write_text(script)

        def begin(name: str, armed: dict[str, str]) -> ManagedProcess:
            child = start_module(name, ["script"], tmp_path, armed)
            children.append(child)
            return child

        return begin

    yield starter
    for child in children:
        child.end()


Starter = Callable[[str], Callable[[str, dict[str, str]], ManagedProcess]]


def revived(one: Supervised) -> str:
    wait_until(lambda: one.child.exit_code is not None, "the child ends")
    report = one.revive()
    assert report is not None
    return report


def test_each_process_gets_the_next_kill_and_the_last_one_none(start: Starter, tmp_path: Path) -> None:
    driver = Supervised("driver", start(PASSING), [FIRST, SECOND], tmp_path)
    assert "killed driver-1 at driver.after_decision:1" in revived(driver)
    assert "killed driver-2 at driver.after_pre_commit:2" in revived(driver)
    assert driver.child.name == "driver-3"
    assert driver.revive() is None
    assert FIRST.happened(tmp_path)
    assert SECOND.happened(tmp_path)
    assert driver.unplanned == []


def test_an_unplanned_end_is_reported_and_the_kill_stays_armed(start: Starter, tmp_path: Path) -> None:
    driver = Supervised("driver", start("raise SystemExit(7)"), [FIRST], tmp_path)
    assert "exit code 7, which was not planned" in revived(driver)
    assert driver.kills_done == 0
    assert not FIRST.happened(tmp_path)


def test_the_demo_fails_when_a_process_keeps_dying(start: Starter, tmp_path: Path) -> None:
    driver = Supervised("driver", start("raise SystemExit('broken')"), [], tmp_path)
    for _ in range(3):
        revived(driver)
    with pytest.raises(DemoError, match="broken"):
        revived(driver)


def test_a_child_ends_with_its_owner_even_if_the_owner_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)")
    log = tmp_path / "child.log"
    owner_script = (
        "import pathlib, sys, time\n"
        "from onceward.dev.managed_process import ManagedProcess\n"
        f"child = ManagedProcess('child', [sys.executable, {str(script)!r}], pathlib.Path({str(log)!r}))\n"
        "time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", owner_script], start_new_session=True)
    try:
        wait_until(lambda: log.exists() and log.read_text().endswith("\n"), "the child logs its line")
        child = int(log.read_text())
        assert alive(child)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        wait_until(lambda: not alive(child), "the child is gone")
    finally:
        owner.kill()
        owner.wait()


def test_killing_a_child_kills_its_descendants(start: Starter, tmp_path: Path) -> None:
    script = "import subprocess, sys, time\np = subprocess.Popen(['sleep', '600'])\nprint(p.pid)\ntime.sleep(600)"
    child = start(script)("parent", {})
    wait_until(lambda: child.log.read_text().endswith("\n"), "the child logs its line")
    grandchild = int(child.log.read_text())
    assert alive(grandchild)
    child.end()
    wait_until(lambda: not alive(grandchild), "the grandchild is gone")


def test_a_command_that_does_not_exist_is_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    before = set(descendants(os.getpid()))
    with pytest.raises(NotStartedError, match="absent could not be started"):
        ManagedProcess("absent", [str(tmp_path / "absent")], tmp_path / "absent.log")
    assert set(descendants(os.getpid())) == before


def test_a_stopped_child_may_report_its_end(start: Starter) -> None:
    # Short sleeps: a signal that arrives just before a sleep does not shorten it.
    script = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up")
while True:
    time.sleep(0.01)
"""
    child = start(script)("polite", {})
    wait_until(lambda: child.log.read_text() == "up\n", "the child is up")
    child.terminate()
    assert child.wait(30) == 0
    assert child.exit_code == 0


def test_the_plan_kills_the_driver_three_times_and_the_coordinator_once() -> None:
    assert len(PLAN.driver) >= 3
    assert len(PLAN.coordinator) == 1
    points = {kill.point for kill in PLAN.all}
    assert {KillPoint.DRIVER_AFTER_DECISION, KillPoint.DRIVER_AFTER_PRE_COMMIT} <= points
    assert len({kill.name for kill in PLAN.all}) == len(PLAN.all)


def test_every_planned_kill_comes_while_records_are_left() -> None:
    drivers = sum(kill.nth for kill in PLAN.driver)
    (coordinator,) = PLAN.coordinator
    assert drivers < coordinator.nth, "the coordinator dies under the last driver"
    assert coordinator.nth < LEAST_CHECKPOINTS * 2 / 3


def test_events_are_read_as_they_come_and_a_torn_line_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert list(reader.new()) == []
    path.write_text('{"event": "opened", "generation": 1}\n{"event": "recovered", "generation": 3, "resumed": 2')
    assert [event["generation"] for event in reader.new()] == [1]
    with path.open("a") as file:
        file.write(', "aborted": 0}\n')
    assert [event["generation"] for event in reader.new()] == [3]
    assert list(reader.new()) == []


def test_checkpoints_are_counted_by_outcome() -> None:
    listing = [
        {"generation": generation, "state": state}
        for generation, state in ((1, "settled"), (1, "aborted"), (2, "settled"), (2, "completed"), (2, "triggered"))
    ]
    assert history_of(json.dumps(listing)) == History(generations=2, completed=3, aborted=1, unsettled=2)
    assert history_of("[]") == History(generations=0, completed=0, aborted=0, unsettled=0)


def test_children_do_not_run_in_the_users_folder(start: Starter, tmp_path: Path) -> None:
    child = start("import os\nprint(os.getcwd())\n")("where", {})
    wait_until(lambda: child.exit_code is not None, "the child ends")
    assert child.log.read_text().strip() == str(tmp_path) != os.getcwd()
