"""The coordinator inside a driver: found through its directory, alone in it, gone without a trace."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from onceward.client.calls import open_channel
from onceward.client.operators import OperatorClient
from onceward.client.session import CoordinatorClient, connect
from onceward.common.errors import CoordinatorLostError, JobBusyError, RefusedError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.server import ServerOptions
from onceward.coordinator.service.state_dir import STATE_DIR_VARIABLE
from onceward.coordinator.service.transition_log import log_transition
from onceward.coordinator.store.errors import StoreUnusableError
from onceward.protocol import facts
from onceward.protocol.answers import Trigger
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, Generation, JobName
from tests.support.scripted import SETTINGS, SINK, SOURCE, ScriptedDriver, positions, slots
from tests.support.waiting import wait_until

Start = Callable[..., EmbeddedCoordinator]


def test_a_job_runs_on_it_over_a_unix_socket(
    coordinator: EmbeddedCoordinator, client: CoordinatorClient, job: str
) -> None:
    assert coordinator.address.startswith("unix:")
    driver = ScriptedDriver(client, JobName(job))
    driver.wait_committed(20)
    driver.close()
    assert driver.errors.empty()


def test_the_directory_names_the_address_until_it_is_closed(on: Start, tmp_path: Path) -> None:
    coordinator = on(tmp_path)
    assert (tmp_path / "coordinator.address").read_text().strip() == coordinator.address
    coordinator.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store.db", "store.db.lock"]


def test_a_path_too_long_for_a_socket_is_no_obstacle(on: Start, tmp_path: Path, job: str) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    coordinator = on(deep)
    place = Path(coordinator.address.removeprefix("unix:"))
    assert len(str(place)) < 100
    with OperatorClient((deep / "coordinator.address").read_text().strip()) as people:
        assert people.jobs() == []
    coordinator.close()
    assert not place.parent.exists()


def test_the_environment_names_the_directory(on: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_DIR_VARIABLE, str(tmp_path / "there"))
    EmbeddedCoordinator().close()
    assert (tmp_path / "there" / "store.db").exists()


def test_a_second_driver_in_the_directory_is_refused_and_the_first_continues(
    coordinator: EmbeddedCoordinator, client: CoordinatorClient, tmp_path: Path, job: str
) -> None:
    with pytest.raises(StoreUnusableError, match=f"in use by process {os.getpid()}"):
        EmbeddedCoordinator(tmp_path / "state")
    driver = ScriptedDriver(client, JobName(job))
    driver.wait_committed(1)
    driver.close()


def test_the_directory_of_a_killed_driver_is_taken_over(on: Start, tmp_path: Path) -> None:
    code = (
        "import os, sys, signal\n"
        "from onceward.coordinator.service.embedded import EmbeddedCoordinator\n"
        "coordinator = EmbeddedCoordinator(sys.argv[1])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL
    assert (tmp_path / "coordinator.address").exists()
    stale = (tmp_path / "coordinator.address").read_text().strip()
    with OperatorClient(stale, patience=0) as people, pytest.raises(CoordinatorLostError):
        people.jobs()
    coordinator = on(tmp_path)
    with OperatorClient(coordinator.address) as people:
        assert people.jobs() == []


def test_a_failing_store_is_coordinator_lost_at_once_not_after_all_patience(
    coordinator: EmbeddedCoordinator, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(coordinator.address, patience="1h", broken=lambda: coordinator.failed) as client:
        driver = ScriptedDriver(client, JobName(job))
        driver.wait_committed(2)
        break_store(coordinator)
        error = driver.errors.get(timeout=30)
        assert isinstance(error, CoordinatorLostError)
        assert coordinator.failed is not None


def break_store(coordinator: EmbeddedCoordinator) -> None:
    """Take the file's descriptor away, as a vanished disk would."""
    store = Path(coordinator._store._database.name)
    log = os.stat(f"{store}-wal")
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # other threads open and close theirs
            if os.path.samestat(os.fstat(descriptor), log):
                null = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null, descriptor)
                os.close(null)


def test_a_healthy_coordinator_answers_standard_probes(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "onceward.coordinator.v1.ParticipantService", "onceward.coordinator.v1.OperatorService"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("reflection", [True, False])
def test_reflection_is_there_only_when_asked_for(on: Start, tmp_path: Path, reflection: bool) -> None:
    coordinator = on(tmp_path, options=ServerOptions(reflection=reflection))
    with open_channel(coordinator.address) as channel:
        method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        call: Any = channel.stream_stream(method)
        stream = call(iter([b"\x3a\x00"]), timeout=5)
        if reflection:
            assert b"onceward.coordinator.v1.ParticipantService" in next(stream)
        else:
            assert stream.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_driver_waits_for_the_other_one_and_logs_why(client: CoordinatorClient, job: str) -> None:
    first = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="d1")
    arrived: list[object] = []
    first.start_watch(arrived.append)
    wait_until(lambda: arrived, "the first driver is there")
    reported: list[str] = []
    with pytest.raises(RefusedError, match="living driver"):
        client.open_job(
            JobName(job), (SOURCE, SINK), SETTINGS, None, driver="d2", wait="200ms", on_wait=reported.append
        )
    assert reported == [f"generation 1 of {job} has a living driver"]
    first.close(CloseReason.STOPPED)
    assert client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="d3").generation == 2


def test_a_vanished_driver_is_replaced_after_its_grace_time(
    coordinator: EmbeddedCoordinator, client: CoordinatorClient, job: str
) -> None:
    settings = CheckpointSettings(lease="30s", stream_grace="300ms")
    instructed = threading.Event()
    with connect(coordinator.address) as vanishing:
        session = vanishing.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="d1")
        session.start_watch(lambda _: instructed.set())
        assert instructed.wait(30)
    # its connection is gone and never comes back
    assert client.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="d2").generation == 2


def test_waiting_for_another_driver_ends_when_the_program_stops(client: CoordinatorClient, job: str) -> None:
    settings = CheckpointSettings(lease="30s", stream_grace="30s")
    client.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="d1")
    with pytest.raises(JobBusyError):
        client.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="d2", stopping=lambda: True)


def test_a_refused_job_leaves_no_trace(client: CoordinatorClient, people: OperatorClient, job: str) -> None:
    with pytest.raises(RefusedError, match="at least one source and one sink"):
        client.open_job(JobName(job), (SINK, SINK_TOO), SETTINGS, None, driver="d1")
    assert people.jobs() == []


SINK_TOO = type(SINK)(name=type(SINK.name)("sink-too"), role=SINK.role, kind="test")


def test_a_jobs_log_shows_each_transition_without_any_documents_content(
    client: CoordinatorClient, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "onceward"):
        session = client.open_job(JobName(job), (SOURCE, SINK), CheckpointSettings(interval="1h"), None, driver="d1")
        arrived: list[object] = []
        session.start_watch(arrived.append)
        trigger = Trigger(checkpoint=CheckpointId(1), base=CheckpointId(0))
        wait_until(lambda: trigger in arrived, "the trigger arrives")
        session.acknowledge(CheckpointId(1), CheckpointId(0), {SOURCE.name: positions(123456789)})
        session.acknowledge(CheckpointId(1), CheckpointId(0), {SINK.name: slots(1)})
        session.close(CloseReason.FAILED, "a test ends it")
    logged = [record.getMessage() for record in caplog.records if record.name == "onceward.coordinator"]
    begin = f"job={job} generation=1"
    assert logged == [
        f"{begin} event=granted participants=source,sink",
        f'{begin} event=status status=running because="a driver was granted a generation"',
        f"{begin} checkpoint=1 event=triggered base=0",
        f"{begin} checkpoint=1 event=completed records=2 committables=2 settled=False",
        f'{begin} event=ended detail="a test ends it"',
        f'{begin} event=status status=suspended because="the driver left"',
    ]
    assert "123456789" not in caplog.text


def test_a_healthy_job_logs_nothing_per_checkpoint_at_the_usual_level(caplog: pytest.LogCaptureFixture) -> None:
    """A coordinator has hundreds of jobs, each with a checkpoint a second."""
    job, generation, checkpoint = JobName("orders"), Generation(1), CheckpointId(2)
    snapshots = {SOURCE.name: positions(1), SINK.name: slots(1)}
    with caplog.at_level(logging.INFO, "onceward"):
        for fact in (
            facts.CheckpointCompleted(
                checkpoint=checkpoint, snapshots=snapshots, settled=False, ran_s=0.1, decided_s=0.0
            ),
            facts.CheckpointSettled(checkpoint=checkpoint, took_s=0.1),
        ):
            log_transition(job, generation, fact)
        assert caplog.messages == []
        log_transition(job, generation, facts.GenerationFailed(generation=generation, reason="no"))
        assert "event=failed" in caplog.text
