"""Commands that request an action of a job: what they wait for, print, refuse, and say about the data."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.common.errors import ExitCode
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.protocol.answers import Cancel, Stop
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from tests.support.commands import command, onceward
from tests.support.scripted import SINK, SOURCE, CoordinatorProcess, ScriptedDriver
from tests.support.waiting import wait_until

ORDERS = JobName("orders")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ScriptedDriver]:
    """A driver of ``orders`` in the state directory, with checkpoints on demand; its first checkpoint is committed."""
    settings = CheckpointSettings(interval=None, tolerable_failed_checkpoints=5)
    with ExitStack() as stack:
        coordinator = stack.enter_context(EmbeddedCoordinator(tmp_path))
        driver = ScriptedDriver(stack.enter_context(connect(coordinator.address)), ORDERS, settings=settings)
        driver.wait_committed(1)
        yield driver
        driver.close()


def left_by(directory: Path, checkpoints: int, reason: CloseReason = CloseReason.STOPPED) -> None:
    """Leave an ended job with ``checkpoints`` settled checkpoints; no process uses the directory afterwards."""
    with EmbeddedCoordinator(directory) as coordinator, connect(coordinator.address) as client:
        driver = ScriptedDriver(client, ORDERS, settings=CheckpointSettings(interval=None))
        driver.wait_committed(1)
        for taken in range(2, checkpoints + 1):
            assert onceward("savepoint", "orders", "--state-dir", str(directory)).stdout == f"{taken}\n"
            driver.wait_committed(taken)
        driver.close(reason)


def test_savepoint_waits_visibly_and_prints_nothing_but_its_id(running: ScriptedDriver, tmp_path: Path) -> None:
    said = onceward("savepoint", "orders", "--name", "before the upgrade", "--state-dir", str(tmp_path))
    assert (said.returncode, said.stdout) == (0, "2\n")
    assert "completed after" in said.stderr
    running.wait_committed(2)
    listed = onceward("checkpoints", "orders", "--json", "--state-dir", str(tmp_path))
    row = json.loads(listed.stdout)[0]
    assert (row["checkpoint"], row["kind"], row["name"]) == (2, "savepoint", "before the upgrade")
    deleted = onceward("savepoint", "orders", "--delete", "2", "--state-dir", str(tmp_path))
    assert (deleted.returncode, "like any other" in deleted.stdout) == (0, True)
    again = onceward("savepoint", "orders", "--delete", "2", "--state-dir", str(tmp_path))
    assert (again.returncode, "is no savepoint" in again.stderr) == (ExitCode.USAGE, True)


def test_a_savepoint_is_named_by_its_id_or_by_its_name(tmp_path: Path) -> None:
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        driver = ScriptedDriver(client, ORDERS, settings=CheckpointSettings(interval=None))
        driver.wait_committed(1)
        for taken, name in enumerate(("first", "twice", "twice"), start=2):
            assert onceward("savepoint", "orders", "--name", name, "--state-dir", str(tmp_path)).returncode == 0
            driver.wait_committed(taken)
        driver.close()
    words = ("orders", "--reason", "ann: a test", "--yes", "--state-dir", str(tmp_path))
    for name, why in (
        ("never", "no savepoint has the name 'never'"),
        ("twice", "savepoints 3, 4 have the name"),
        ("0", "no savepoint"),
    ):
        said = onceward("restore", *words, "--from", name)
        assert (said.returncode, why in said.stderr.lower(), "Nothing was changed" in said.stderr) == (
            ExitCode.USAGE,
            True,
            True,
        )
    said = onceward("restore", *words, "--from", "first")
    assert (said.returncode, "positions of checkpoint 2" in said.stdout) == (0, True), said.stderr
    said = onceward("savepoint", "orders", "--delete", "never", "--state-dir", str(tmp_path))
    assert (said.returncode, "no savepoint has the name" in said.stderr.lower()) == (ExitCode.USAGE, True)


def test_checkpoint_triggers_one_now(running: ScriptedDriver, tmp_path: Path) -> None:
    said = onceward("checkpoint", "orders", "--state-dir", str(tmp_path))
    assert (said.returncode, said.stdout) == (0, "2\n")
    asked = onceward("checkpoint", "orders", "--no-wait", "--state-dir", str(tmp_path))
    assert (asked.returncode, "is asked for" in asked.stdout) == (0, True)
    running.wait_committed(3)


def test_a_failed_savepoint_reports_what_it_means_for_the_data(tmp_path: Path) -> None:
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        settings = CheckpointSettings(interval=None)
        session = client.open_job(ORDERS, (SOURCE, SINK), settings, None, driver="d")  # never watches
        with command("savepoint", "orders", "--state-dir", str(tmp_path)) as waiting:
            waiting.hear("is queued")
            session.close(CloseReason.FAILED, "Spark is gone")
            assert waiting.ends() == (ExitCode.BUG, "")
            said = waiting.said()
    assert "Spark is gone" in said
    assert "No record is lost or doubled" in said


def test_a_request_to_a_job_that_does_not_run_is_refused_at_once(tmp_path: Path) -> None:
    left_by(tmp_path, 1)
    for request in (("savepoint", "orders"), ("checkpoint", "orders"), ("stop", "orders", "--savepoint")):
        refused = onceward(*request, "--state-dir", str(tmp_path))
        assert (refused.returncode, refused.stdout) == (ExitCode.USAGE, "")
        assert "is not running: suspended" in refused.stderr


def test_stop_with_savepoint_prints_the_id_and_ends_the_job(running: ScriptedDriver, tmp_path: Path) -> None:
    with command("stop", "orders", "--savepoint", "--state-dir", str(tmp_path)) as stop:
        wait_until(lambda: Stop() in running.reported, "the driver receives Stop")
        stop.hear("waits for its driver to leave")
        running.close()
        assert stop.ends() == (0, "2\n")
        stop.hear("has stopped")


def test_stop_returns_when_the_driver_has_left(running: ScriptedDriver, tmp_path: Path) -> None:
    with command("stop", "orders", "--state-dir", str(tmp_path)) as stop:
        wait_until(lambda: Stop() in running.reported, "the driver receives Stop")
        stop.hear("job orders is finishing: waits for its driver to leave")
        assert stop.running
        running.close()
        assert stop.ends() == (0, "Job orders has stopped; everything decided is settled.\n")


@pytest.mark.parametrize(
    ("reason", "code", "said"),
    [
        (CloseReason.HALTED, ExitCode.HALTED, "has not stopped, it is halted: input is gone"),
        (CloseReason.FAILED, ExitCode.FINISHED, ""),
    ],
    ids=lambda one: str(one),
)
def test_stop_reports_how_the_job_ended(
    running: ScriptedDriver, tmp_path: Path, reason: CloseReason, code: ExitCode, said: str
) -> None:
    """A driver that fails after everything is settled has stopped, too."""
    with command("stop", "orders", "--state-dir", str(tmp_path)) as stop:
        wait_until(lambda: Stop() in running.reported, "the driver receives Stop")
        running.session.close(reason, "input is gone")
        assert stop.ends()[0] == code
        stop.hear(said)


def test_stop_reports_a_cancel_by_another_person(running: ScriptedDriver, tmp_path: Path) -> None:
    with command("stop", "orders", "--state-dir", str(tmp_path)) as stop:
        wait_until(lambda: Stop() in running.reported, "the driver receives Stop")
        assert onceward("cancel", "orders", "--state-dir", str(tmp_path)).returncode == 0
        running.close()
        code, printed = stop.ends()
        assert (code, "was cancelled meanwhile" in printed) == (0, True)


def test_stop_ends_when_the_jobs_embedded_coordinator_ends(tmp_path: Path) -> None:
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        driver = ScriptedDriver(client, ORDERS, settings=CheckpointSettings(interval=None))
        driver.wait_committed(1)
        with command("stop", "orders", "--state-dir", str(tmp_path)) as stop:
            wait_until(lambda: Stop() in driver.reported, "the driver receives Stop")
            driver.close()
            coordinator.close()
            assert stop.ends()[0] == 0


def test_stop_reports_a_program_that_died_before_it_stopped(tmp_path: Path) -> None:
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        driver = ScriptedDriver(client, ORDERS, settings=CheckpointSettings(interval=None))
        driver.wait_committed(1)
        with command("stop", "orders", "--state-dir", str(tmp_path)) as stop:
            wait_until(lambda: Stop() in driver.reported, "the driver receives Stop")
            driver.session.let_go()
            coordinator.close()
            assert stop.ends() == (ExitCode.BUG, "")
            stop.hear("ended before it carried out the request")


def test_stop_waits_through_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    first = CoordinatorProcess(tmp_path / "c").wait_ready()
    second = None
    try:
        with connect(first.address) as client:
            driver = ScriptedDriver(client, ORDERS, settings=CheckpointSettings(interval=None))
            driver.wait_committed(1)
            with command("stop", "orders", "--coordinator", first.address) as stop:
                stop.hear("waits for its driver to leave")
                first.end()
                second = CoordinatorProcess(tmp_path / "c", port=first.port).wait_ready()
                driver.close()
                assert stop.ends()[0] == 0
    finally:
        for process in filter(None, (first, second)):
            process.end()


def test_a_request_stays_in_force_when_its_client_stops_waiting(running: ScriptedDriver, tmp_path: Path) -> None:
    with command("stop", "orders", "--state-dir", str(tmp_path)) as stop:
        stop.hear("waits for its driver to leave")
        stop.interrupt()
        assert stop.ends() == (130, "")
        stop.hear("stays in force")
    (job,) = json.loads(onceward("jobs", "--json", "--state-dir", str(tmp_path)).stdout)
    assert (job["status"], job["ending"]) == ("finishing", "stop")


def test_cancel_reaches_the_driver_and_may_be_repeated(running: ScriptedDriver, tmp_path: Path) -> None:
    first = onceward("cancel", "orders", "--state-dir", str(tmp_path))
    assert (first.returncode, "was cancelled" in first.stdout) == (0, True)
    wait_until(lambda: Cancel() in running.reported, "the driver gets the request to cancel")
    again = onceward("cancel", "orders", "--state-dir", str(tmp_path))
    assert (again.returncode, "before" in again.stdout) == (0, True)


def test_a_job_that_is_not_running_is_cancelled_through_its_directory(tmp_path: Path) -> None:
    left_by(tmp_path, 1)
    assert onceward("cancel", "orders", "--state-dir", str(tmp_path)).returncode == 0
    listed = onceward("jobs", "--json", "--state-dir", str(tmp_path))
    assert [job["status"] for job in json.loads(listed.stdout)] == ["cancelled"]


def test_restore_names_the_output_that_will_repeat_and_needs_a_yes(tmp_path: Path) -> None:
    left_by(tmp_path, 3)
    command = ("restore", "orders", "--from", "1", "--reason", "wrong prices since noon", "--state-dir", str(tmp_path))
    refused = onceward(*command)
    assert (refused.returncode, refused.stdout) == (ExitCode.USAGE, "")
    for part in ("after checkpoint 1 up to checkpoint 3 repeats", "4 records", "Nothing was changed", "--yes"):
        assert part in refused.stderr
    ordered = onceward(*command, "--yes")
    assert (ordered.returncode, "checkpoint 1 when it is started next" in ordered.stdout) == (0, True)
    again = onceward(*command, "--yes")
    assert (again.returncode, "before" in again.stdout) == (0, True)
    shown = onceward("jobs", "--state-dir", str(tmp_path))
    assert "begins next with checkpoint 1: wrong prices since noon" in " ".join(shown.stdout.split())
    history = onceward("history", "orders", "--state-dir", str(tmp_path))
    assert "wrong prices since noon" in history.stdout

    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        grant = client.open_job(ORDERS, (SOURCE, SINK), CheckpointSettings(), None, driver="d2").grant
    assert grant.completed is not None
    assert (grant.completed.id, grant.completed.base) == (4, 1)


@pytest.mark.slow
def test_restore_of_a_job_whose_driver_was_killed_waits_for_its_lease(tmp_path: Path) -> None:
    settings = CheckpointSettings(interval=None, lease="1s", stream_grace="1s", orphan_grace="1s")
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        driver = ScriptedDriver(client, ORDERS, settings=settings)
        driver.wait_committed(1)
        assert onceward("checkpoint", "orders", "--state-dir", str(tmp_path)).stdout == "2\n"
        with OperatorClient(coordinator.address) as operators:
            wait_until(lambda: operators.job(ORDERS).settled, "checkpoint 2 is settled")
        driver.session.let_go()  # like a killed driver, it sends nothing any more
    begun = time.monotonic()
    command = ("restore", "orders", "--from", "1", "--reason", "a test", "--yes", "--state-dir", str(tmp_path))
    ordered = onceward(*command)
    assert ordered.returncode == 0, ordered.stderr
    assert "left without notice" in ordered.stderr
    assert time.monotonic() - begun > 1.0


@pytest.mark.parametrize("announced", [False, True], ids=["killed", "killed while it was to restart"])
def test_a_job_whose_process_is_gone_is_not_shown_as_running(tmp_path: Path, announced: bool) -> None:
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        driver = ScriptedDriver(client, ORDERS, settings=CheckpointSettings(interval="1h"))
        driver.wait_committed(1)
        if announced:
            driver.session.abandon("a record failed", back_within_s=3600)
        else:
            driver.session.let_go()
    (job,) = json.loads(onceward("jobs", "--json", "--state-dir", str(tmp_path)).stdout)
    assert (job["status"], job["waits"]) == ("suspended", [])
    assert ("a record failed" in job["status_detail"]) == announced
    for shown in (("jobs",), ("top", "--once")):
        said = " ".join(onceward(*shown, "--state-dir", str(tmp_path)).stdout.split())
        assert "no process has this store" in said, said
        assert "running" not in said


def test_history_shows_generations_and_refused_calls(running: ScriptedDriver, tmp_path: Path) -> None:
    for _ in range(3):
        running.session.settle(running.committed[-1], SINK.name, [])
    listed = onceward("history", "orders", "--json", "--state-dir", str(tmp_path))
    found = json.loads(listed.stdout)
    assert [(one["generation"], one["ended_at"]) for one in found["generations"]] == [(1, None)]
    refused = [one for one in found["events"] if one["verdict"] is not None]
    assert [(one["event"], one["verdict"], one["count"]) for one in refused] == [("Settle", "duplicate", 3)]
    shown = onceward("history", "orders", "--limit", "5", "--state-dir", str(tmp_path))
    assert "Generations" in shown.stdout
    assert "answered duplicate" in shown.stdout
