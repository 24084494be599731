"""A coordinator is killed, stopped, restarted: each checkpoint is decided once, and the running job continues."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from onceward.client.calls import Caller
from onceward.client.session import connect
from onceward.common.errors import CoordinatorLostError, ExitCode, FencedError
from onceward.common.killpoints import KillPoint
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Fail, Instruction, Trigger, Verdict
from onceward.protocol.events import CloseReason
from onceward.protocol.values import (
    CheckpointId,
    CheckpointState,
    JobName,
)
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub
from onceward.wire.values import PARTICIPANT, settings_to_wire
from tests.support.places import Place
from tests.support.processes import armed_with
from tests.support.scripted import SETTINGS, SINK, SOURCE, CoordinatorProcess, ScriptedDriver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.long]

# On PostgreSQL, points around the writes; the part `leaders` of `make crash` kills coordinators there at every point.
POINTS = [
    *(pytest.param("sqlite", point) for point in KillPoint if point.name.startswith("COORDINATOR_")),
    pytest.param("postgresql", KillPoint.COORDINATOR_BEFORE_DECISION),
    pytest.param("postgresql", KillPoint.COORDINATOR_AFTER_DECISION),
    pytest.param("postgresql", KillPoint.COORDINATOR_BEFORE_SETTLED),
]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def started(
    stack: ExitStack,
    directory: Path,
    *,
    port: int | None = None,
    store_url: str = "",
    preamble: str = "",
    environment: dict[str, str] | None = None,
) -> CoordinatorProcess:
    process = CoordinatorProcess(directory, port=port, store_url=store_url, environment=environment, preamble=preamble)
    stack.callback(process.end)
    return process.wait_ready()


class Revival:
    """A coordinator that dies at an armed kill point, and its successor on the same port and store."""

    def __init__(
        self, stack: ExitStack, pool: ThreadPoolExecutor, directory: Path, armed: dict[str, str], store_url: str
    ) -> None:
        self._start: Callable[..., CoordinatorProcess] = lambda **options: started(
            stack, directory, environment=armed, store_url=store_url, **options
        )
        self.process = self._start()
        self.done: Future[None] = pool.submit(self._revive)

    def _revive(self) -> None:
        assert self.process.wait(60) == 128 + signal.SIGKILL
        self.process = self._start(port=self.process.port)


@pytest.mark.kill
@pytest.mark.parametrize(("place", "point"), POINTS, ids=str, indirect=["place"])
def test_killed_anywhere_and_restarted_it_decides_each_checkpoint_once(
    stack: ExitStack, pool: ThreadPoolExecutor, tmp_path: Path, place: Place, job: str, point: KillPoint
) -> None:
    kills = tmp_path / "kills"
    rare = point.name.endswith(("GRANT", "CLOSE", "ABORT"))
    kill_at = f"{point.value}:{1 if rare else 4}"
    armed = armed_with([kill_at], kills)
    revival = Revival(stack, pool, tmp_path / "c", armed, place.url)
    client = stack.enter_context(connect(revival.process.address, patience="30s"))

    driver = ScriptedDriver(client, JobName(job))
    driver.wait_committed(2)
    if point.name.endswith("ABORT"):
        while not driver.aborted:  # until one was declined before it was decided
            driver.session.decline(driver.runs[-1], SINK.name, "a test wants it")
    if point.name.endswith("CLOSE"):
        driver.close()
    revival.done.result(60)
    assert os.listdir(kills) == [kill_at]
    if not point.name.endswith("CLOSE"):
        driver.wait_committed(len(driver.committed) + 3)
        driver.close()
    revival.process.terminate()
    assert revival.process.wait() == ExitCode.FINISHED

    assert driver.errors.empty(), driver.errors.get()
    assert len(driver.runs) == len(set(driver.runs)), "a trigger runs once"
    with closing(Store.open(revival.process.store_url)) as store:
        (durable,) = store.load_jobs()
        rows = {one.checkpoint: one.state for one in store.checkpoints(durable.job, 1000)}
    assert (durable.generation, durable.pending) == (1, None)
    for checkpoint in driver.committed:  # those no longer retained have no row
        assert rows.get(checkpoint, CheckpointState.SETTLED) is CheckpointState.SETTLED
    for checkpoint in driver.aborted:
        assert rows.get(checkpoint, CheckpointState.ABORTED) is CheckpointState.ABORTED


def test_sigterm_ends_it_quickly_with_open_streams_and_the_job_continues_after_the_restart(
    stack: ExitStack, tmp_path: Path, job: str
) -> None:
    process = started(stack, tmp_path / "c")
    client = stack.enter_context(connect(process.address, patience="30s"))
    driver = ScriptedDriver(client, JobName(job))
    driver.wait_committed(3)
    process.terminate()
    assert process.wait(20) == ExitCode.FINISHED
    process = started(stack, tmp_path / "c", port=process.port)
    driver.wait_committed(len(driver.committed) + 3)
    driver.close()
    assert driver.errors.empty()
    process.terminate()
    assert process.wait(20) == ExitCode.FINISHED
    with closing(Store.open(process.store_url)) as store:
        (durable,) = store.load_jobs()
    assert (durable.driver, durable.generation) == (None, 1)


def test_a_restart_keeps_the_undecided_checkpoint_and_the_job_completes_it(
    stack: ExitStack, tmp_path: Path, job: str
) -> None:
    # dies after the fourth trigger is durable and before it is sent
    armed = armed_with([f"{KillPoint.COORDINATOR_AFTER_TRIGGER.value}:4"], tmp_path / "kills")
    process = started(stack, tmp_path / "c", environment=armed)
    client = stack.enter_context(connect(process.address, patience="30s"))
    driver = ScriptedDriver(client, JobName(job))
    assert process.wait(60) == 128 + signal.SIGKILL
    with closing(Store.open(process.store_url)) as store:
        (durable,) = store.load_jobs()
    assert durable.pending is not None
    pending = durable.pending.id
    assert pending not in driver.runs
    started(stack, tmp_path / "c", port=process.port)
    wait_until(lambda: pending in driver.committed, "the pending checkpoint is completed")
    driver.close()
    assert driver.aborted in ([], [driver.runs[-1]]), "nothing but the last, by closing"
    assert driver.errors.empty()


@pytest.mark.parametrize("point", [KillPoint.COORDINATOR_BEFORE_ABORT, KillPoint.COORDINATOR_AFTER_ABORT])
@pytest.mark.parametrize("deadline", [False, True], ids=["declined", "expired"])
def test_a_generation_that_must_fail_learns_it_from_the_next_coordinator(
    stack: ExitStack, pool: ThreadPoolExecutor, tmp_path: Path, job: str, point: KillPoint, deadline: bool
) -> None:
    armed = armed_with([f"{point}:1"], tmp_path / "kills")
    process = started(stack, tmp_path / "c", environment=armed)
    client = stack.enter_context(connect(process.address, patience="60s"))
    settings = replace(
        SETTINGS,
        tolerable_failed_checkpoints=0,
        timeout="200ms" if deadline else "2min",
        lease="60s",
        orphan_grace="60s",
    )
    session = client.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="d")
    reported: list[Instruction] = []
    session.start_watch(reported.append)
    wait_until(lambda: any(isinstance(one, Trigger) for one in reported), "the first trigger arrives")
    declining = None if deadline else pool.submit(lambda: session.decline(CheckpointId(1), SINK.name, "no"))
    assert process.wait(60) == 128 + signal.SIGKILL
    started(stack, tmp_path / "c", port=process.port)
    wait_until(lambda: any(isinstance(one, Fail) for one in reported), "the driver gets its instruction to fail")
    if declining is not None:
        assert declining.result(60).verdict in (Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.TOO_LATE)
    session.close(CloseReason.RESTARTING)


def test_a_waiting_driver_gets_nothing_from_a_restart_of_the_coordinator(
    stack: ExitStack, pool: ThreadPoolExecutor, tmp_path: Path, job: str
) -> None:
    settings = replace(SETTINGS, stream_grace=0, lease="60s", orphan_grace="60s")
    process = started(stack, tmp_path / "c")
    client = stack.enter_context(connect(process.address, patience="60s"))
    driver = ScriptedDriver(client, JobName(job), settings=settings)
    driver.wait_committed(1)
    waits = threading.Event()
    other = stack.enter_context(connect(process.address, patience="60s"))
    waiting = pool.submit(
        lambda: other.open_job(
            JobName(job), (SOURCE, SINK), settings, None, driver="waits", wait="2min", on_wait=lambda _: waits.set()
        )
    )
    assert waits.wait(30)
    for _ in range(2):
        process.end()
        process = started(stack, tmp_path / "c", port=process.port)
        driver.wait_committed(len(driver.committed) + 3)
    assert not waiting.done()
    driver.close()
    assert driver.errors.empty()
    session = waiting.result(60)
    assert session.generation == 2, "it got nothing before the driver left"
    session.close(CloseReason.STOPPED)


def test_a_driver_that_leaves_is_not_replaced_before_it_reports(
    stack: ExitStack, pool: ThreadPoolExecutor, tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, stream_grace=0)
    process = started(stack, tmp_path / "c")
    client = stack.enter_context(connect(process.address))
    driver = ScriptedDriver(client, JobName(job), settings=settings)
    other = stack.enter_context(connect(process.address))
    polls: list[None] = []

    def polled() -> bool:
        polls.append(None)
        return False

    waiting = pool.submit(
        lambda: other.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="waits", stopping=polled)
    )
    driver.wait_committed(1)
    call = Caller.call

    def late(self: Caller, *arguments: Any, doing: str, **options: Any) -> Any:
        if doing.startswith("closing"):
            until = len(polls) + 3
            wait_until(lambda: len(polls) >= until or waiting.done(), "the other driver asks again")
        return call(self, *arguments, doing=doing, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Caller, "call", late)
        driver.close()
    assert driver.errors.empty()
    session = waiting.result(60)
    assert session.generation == 2
    session.close(CloseReason.STOPPED)


def test_a_waiting_driver_outlasts_the_lease_that_a_restart_gives_the_lost_one_again(
    stack: ExitStack, pool: ThreadPoolExecutor, tmp_path: Path, job: str
) -> None:
    settings = replace(SETTINGS, stream_grace=0, lease="2s", orphan_grace="60s")
    process = started(stack, tmp_path / "c")
    client = stack.enter_context(connect(process.address, patience="60s"))
    client.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="dies").let_go()
    waits = threading.Event()
    other = stack.enter_context(connect(process.address, patience="60s"))
    waiting = pool.submit(
        lambda: other.open_job(
            JobName(job), (SOURCE, SINK), settings, None, driver="waits", on_wait=lambda _: waits.set()
        )
    )
    assert waits.wait(30)
    for _ in range(4):
        process.end()
        process = started(stack, tmp_path / "c", port=process.port)
    session = waiting.result(60)
    assert session.generation == 2
    session.close(CloseReason.STOPPED)


def test_a_waiting_driver_notices_restarts_between_its_questions(stack: ExitStack, tmp_path: Path, job: str) -> None:
    settings = replace(SETTINGS, stream_grace=0, lease="2s", orphan_grace="60s")
    process = started(stack, tmp_path / "c")
    client = stack.enter_context(connect(process.address, patience="60s"))
    client.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="dies").let_go()
    restarts: list[CoordinatorProcess] = []

    def restarted() -> bool:
        if len(restarts) < 5:
            (restarts[-1] if restarts else process).end()
            restarts.append(started(stack, tmp_path / "c", port=process.port))
        return False

    with connect(process.address, patience="60s") as other:
        session = other.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="waits", stopping=restarted)
        assert session.generation == 2
        session.close(CloseReason.STOPPED)


def test_a_repeated_takeover_fences_no_driver(stack: ExitStack, tmp_path: Path, job: str) -> None:
    process = started(stack, tmp_path / "c")
    client = stack.enter_context(connect(process.address))
    name = JobName(job)
    first = client.open_job(name, (SOURCE, SINK), SETTINGS, None, driver="first")
    request = pb.OpenJobRequest(
        job=name,
        driver="second",
        participants=[PARTICIPANT.to_wire(one) for one in (SOURCE, SINK)],
        settings=settings_to_wire(SETTINGS),
        instead_of=first.generation,
    )
    channel = stack.enter_context(grpc.insecure_channel(process.address))
    open_job = ParticipantServiceStub(channel).OpenJob
    second = open_job(request, timeout=30)
    assert second.grant.generation == 2
    third = ScriptedDriver(client, name, takeover=True)
    late = open_job(request, timeout=30)
    assert (late.answer.verdict, late.answer.generation) == (pb.VERDICT_BUSY, 3)
    third.wait_committed(3)
    third.close()
    assert third.errors.empty()


def test_a_full_disk_ends_the_process_with_its_own_exit_code_and_loses_no_answered_write(
    stack: ExitStack, tmp_path: Path, job: str
) -> None:
    # The limit on file size: the store's log reaches it after some checkpoints.
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    process = started(stack, tmp_path / "c", preamble=full)
    ended = CoordinatorLostError("the process has ended")
    client = stack.enter_context(
        connect(process.address, patience="60s", broken=lambda: None if process.running else ended)
    )
    driver = ScriptedDriver(client, JobName(job))
    assert process.wait(60) == ExitCode.COORDINATOR_LOST
    assert "The store failed" in process.log.read_text(errors="replace")
    assert isinstance(driver.errors.get(timeout=30), CoordinatorLostError)
    with closing(Store.open(process.store_url)) as store:
        (durable,) = store.load_jobs()
    assert durable.completed is not None
    assert durable.completed.id >= max(driver.committed)


def test_a_second_coordinator_on_the_same_store_or_port_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    process = started(stack, tmp_path / "c")
    same_store = CoordinatorProcess(tmp_path / "c")
    assert same_store.wait() == ExitCode.USAGE
    assert f"in use by process {process.pid}" in same_store.log.read_text()
    same_port = CoordinatorProcess(tmp_path / "d", port=process.port)
    assert same_port.wait() == ExitCode.USAGE
    assert "Cannot listen" in same_port.log.read_text()


def test_a_new_generation_fences_the_old_driver_through_its_stream(stack: ExitStack, tmp_path: Path, job: str) -> None:
    process = started(stack, tmp_path / "c")
    client = stack.enter_context(connect(process.address))
    first = ScriptedDriver(client, JobName(job))
    first.wait_committed(1)
    session = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="second", takeover=True)
    assert session.generation == 2
    assert isinstance(first.errors.get(timeout=5), FencedError)
    session.close(CloseReason.STOPPED)
