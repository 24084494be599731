"""Operator requests over the wire, with a driver that obeys: savepoints, ends, a return to older positions."""

import queue
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from onceward.client.operators import OperatorClient
from onceward.client.session import CoordinatorClient, connect
from onceward.common.errors import FencedError, RefusedError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.protocol.answers import Cancel, Stop, Trigger, Verdict
from onceward.protocol.events import CloseReason
from onceward.protocol.requests import MAX_QUEUED, Ending, Request, RequestState
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    Claim,
    Generation,
    JobName,
    ParticipantName,
    RequestId,
)
from onceward.wire.rows import CheckpointSummary
from tests.support.documents import document
from tests.support.scripted import SETTINGS, SINK, SOURCE, ScriptedDriver, positions, slots
from tests.support.waiting import wait_until

ON_DEMAND = CheckpointSettings(interval=None, tolerable_failed_checkpoints=1000)
SAVEPOINT, CHECKPOINT = CheckpointKind.SAVEPOINT, CheckpointKind.CHECKPOINT
_ZERO = timedelta()


def taken(people: OperatorClient, job: JobName, request: Request | None) -> Request:
    """Wait until the request has ended."""
    assert request is not None
    known = request.id
    wait_until(lambda: people.request(job, known).state.ended, f"{request} has ended")
    return people.request(job, known)


def rows(people: OperatorClient, job: JobName) -> dict[int, CheckpointSummary]:
    return {row.checkpoint: row for row in people.checkpoints(job, 1000)}


@pytest.fixture
def on_demand(client: CoordinatorClient, job: str) -> ScriptedDriver:
    """A driver whose job takes checkpoints on request; its first one is committed."""
    driver = ScriptedDriver(client, JobName(job), settings=ON_DEMAND)
    driver.wait_committed(1)
    return driver


def test_a_savepoint_is_taken_now_and_shown_with_its_name_and_durations(
    on_demand: ScriptedDriver, people: OperatorClient
) -> None:
    job = on_demand.job
    answer = people.request_checkpoint(job, SAVEPOINT, name="before the upgrade")
    assert answer.verdict is Verdict.ACCEPTED
    request = taken(people, job, answer.request)
    assert (request.state, request.checkpoint, request.name) == (RequestState.COMPLETED, 2, "before the upgrade")
    wait_until(lambda: rows(people, job)[2].state is CheckpointState.SETTLED, "it is settled")
    row = rows(people, job)[2]
    assert (row.kind, row.name, row.base, row.records_written) == (SAVEPOINT, "before the upgrade", 1, 2)
    assert row.ran is not None
    assert row.settled is not None
    assert all(duration >= _ZERO for duration in (row.waited, row.ran, row.decided or _ZERO, row.settled))
    on_demand.close()


def test_checkpoints_are_listed_with_what_one_participant_keeps_if_that_is_asked(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    name, kept = JobName(job), document(letters=3)
    session = client.open_job(name, (SOURCE, SINK), ON_DEMAND, None, driver="d")
    reported: queue.Queue[object] = queue.Queue()
    session.start_watch(reported.put)
    trigger = reported.get(timeout=60)
    assert isinstance(trigger, Trigger)
    answers = {SOURCE.name: positions(1), SINK.name: replace(slots(1), state=kept)}
    session.acknowledge(trigger.checkpoint, trigger.base, answers)
    (row,) = people.checkpoints(name, kept_by=SINK.name)
    assert (row.checkpoint, row.kept) == (trigger.checkpoint, kept)
    for asked in (None, SOURCE.name, ParticipantName("absent")):
        assert [one.kept for one in people.checkpoints(name, kept_by=asked)] == [None]
    with pytest.raises(RefusedError, match="not a valid ParticipantName"):
        people.checkpoints(name, kept_by="No name")  # type: ignore[arg-type]
    session.close(CloseReason.STOPPED)


def test_a_repeated_request_is_the_same_request(on_demand: ScriptedDriver, people: OperatorClient) -> None:
    first = people.request_checkpoint(on_demand.job, CHECKPOINT, request="r1")
    again = people.request_checkpoint(on_demand.job, CHECKPOINT, request="r1")
    other = people.request_checkpoint(on_demand.job, SAVEPOINT, request="r1")
    assert [answer.verdict for answer in (first, again, other)] == [
        Verdict.ACCEPTED,
        Verdict.DUPLICATE,
        Verdict.REFUSED,
    ]
    assert taken(people, on_demand.job, again.request).checkpoint == 2
    assert on_demand.runs == [1, 2]
    on_demand.close()


def test_an_impossible_request_is_refused(on_demand: ScriptedDriver, people: OperatorClient) -> None:
    job = on_demand.job
    assert people.request_checkpoint(job, CheckpointKind.RESTORE).verdict is Verdict.REFUSED
    assert people.request_checkpoint(job, CHECKPOINT, name="x").verdict is Verdict.REFUSED
    assert people.request_checkpoint(job, CHECKPOINT, stop=True).verdict is Verdict.REFUSED
    assert people.delete_savepoint(job, 1).verdict is Verdict.REFUSED
    assert people.delete_savepoint(job, 99).verdict is Verdict.REFUSED
    with pytest.raises(RefusedError, match="remembers no request"):
        people.request(job, RequestId("absent"))
    on_demand.close()
    assert people.request_checkpoint(job, SAVEPOINT).verdict is Verdict.TOO_LATE


def test_requests_beyond_the_queue_are_refused_and_those_in_it_fail_visibly_when_the_driver_leaves(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    name = JobName(job)
    session = client.open_job(name, (SOURCE, SINK), ON_DEMAND, None, driver="d")  # never watches: nothing is triggered
    answers = [people.request_checkpoint(name, SAVEPOINT) for _ in range(MAX_QUEUED + 1)]
    assert [answer.verdict for answer in answers[:-1]] == [Verdict.ACCEPTED] * MAX_QUEUED
    assert answers[-1].verdict is Verdict.QUEUE_FULL
    assert len(people.job(name).open_requests) == MAX_QUEUED
    session.close(CloseReason.FAILED, "a test ends it")
    assert people.job(name).open_requests == ()
    ended = taken(people, name, answers[0].request)
    assert (ended.state, "a test ends it" in ended.detail) == (RequestState.FAILED, True)


def test_stop_with_savepoint_ends_the_job_after_it(on_demand: ScriptedDriver, people: OperatorClient) -> None:
    job = on_demand.job
    answer = people.request_checkpoint(job, SAVEPOINT, stop=True)
    assert taken(people, job, answer.request).state is RequestState.COMPLETED
    wait_until(lambda: Stop() in on_demand.reported, "the driver receives Stop")
    assert (people.job(job).status, people.job(job).ending) == (JobStatus.FINISHING, Ending.STOP)
    wait_until(lambda: people.job(job).settled, "it is settled")
    on_demand.close()
    assert (people.job(job).status, people.job(job).ending) == (JobStatus.FINISHED, None)


def test_cancel_aborts_the_running_checkpoint_and_ends_the_job(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    name = JobName(job)
    session = client.open_job(name, (SOURCE, SINK), ON_DEMAND, None, driver="d")
    reported: list[object] = []
    session.start_watch(reported.append)
    wait_until(lambda: any(isinstance(one, Trigger) for one in reported), "the first checkpoint is triggered")
    assert people.cancel(name).verdict is Verdict.ACCEPTED
    assert people.cancel(name).verdict is Verdict.DUPLICATE
    wait_until(lambda: Cancel() in reported, "the driver gets the request to cancel")
    session.close(CloseReason.CANCELLED)
    (row,) = people.checkpoints(name)
    assert (row.state, row.ran is not None) == (CheckpointState.ABORTED, True)
    assert people.job(name).status is JobStatus.CANCELLED
    assert people.cancel(name).verdict is Verdict.TOO_LATE


def test_a_driver_that_comes_back_by_itself_leaves_the_job_restarting(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    name = JobName(job)
    session = client.open_job(name, (SOURCE, SINK), ON_DEMAND, None, driver="d1")
    session.abandon("Spark lost an executor", back_within_s=60)
    assert people.job(name).status is JobStatus.RESTARTING
    again = client.open_job(name, (SOURCE, SINK), ON_DEMAND, None, driver="d2")
    again.abandon("no restarts are left")
    assert people.job(name).status is JobStatus.SUSPENDED
    assert [(one.generation, one.detail) for one in people.generations(name)] == [
        (2, "no restarts are left"),
        (1, "Spark lost an executor"),
    ]


def test_a_restore_starts_the_next_generation_at_older_positions_and_is_in_the_history(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    name = JobName(job)
    driver = ScriptedDriver(client, name)
    driver.wait_committed(4)
    assert people.restore(name, 2, "too early").verdict is Verdict.REFUSED, "it has a driver"
    assert people.stop(name).verdict is Verdict.ACCEPTED
    # in this order: once it has the Stop, it gets no further trigger
    wait_until(lambda: Stop() in driver.reported and people.job(name).settled, "what is decided is settled")
    driver.close()
    newest = people.job(name).last_completed

    assert people.restore(name, newest, "no return").verdict is Verdict.REFUSED
    missing = people.restore(name, newest + 1000, "never was")
    assert (missing.verdict, str(newest + 1000) in missing.detail) == (Verdict.REFUSED, True)
    assert people.restore(name, 2, "wrong prices since noon").verdict is Verdict.ACCEPTED
    assert people.restore(name, 2, "wrong prices since noon").verdict is Verdict.DUPLICATE
    summary = people.job(name)
    assert (summary.restore_from, summary.restore_reason) == (2, "wrong prices since noon")

    session = client.open_job(name, (SOURCE, SINK), ON_DEMAND, None, driver="d2")
    completed = session.grant.completed
    assert completed is not None
    assert (completed.kind, completed.base, completed.settled) == (CheckpointKind.RESTORE, 2, True)
    assert completed.snapshots[SOURCE.name].positions == positions(2).positions
    assert completed.snapshots[SINK.name].committables == ()
    assert people.job(name).restore_from == 0
    assert rows(people, name)[completed.id].kind is CheckpointKind.RESTORE
    said = " ".join(entry.detail for entry in people.history(name, 1000))
    assert "wrong prices since noon" in said
    session.close(CloseReason.STOPPED)


@pytest.mark.slow
def test_a_savepoint_outlives_retention_until_it_is_deleted(
    on: Callable[..., EmbeddedCoordinator], tmp_path: Path, job: str
) -> None:
    name = JobName(job)
    coordinator = on(tmp_path / "s")
    settings = CheckpointSettings(interval="5ms", num_retained=2, tolerable_failed_checkpoints=1000)
    with connect(coordinator.address) as client, OperatorClient(coordinator.address) as people:
        driver = ScriptedDriver(client, name, settings=settings)
        driver.wait_committed(3)
        savepoint = taken(people, name, people.request_checkpoint(name, SAVEPOINT).request).checkpoint
        wait_until(
            lambda: sorted(rows(people, name))[:2] == [1, savepoint], "older ones are pruned, the savepoint stays"
        )
        assert people.delete_savepoint(name, savepoint).verdict is Verdict.ACCEPTED
        wait_until(lambda: savepoint not in rows(people, name), "it goes like any other")
        driver.close()
        assert driver.errors.empty()


def test_refused_calls_are_in_the_history_each_with_its_number(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    name = JobName(job)
    session = client.open_job(name, (SOURCE, SINK), ON_DEMAND, None, driver="d")
    for _ in range(7):
        session.acknowledge(CheckpointId(9), CheckpointId(0), {SINK.name: slots(9)})
    session.acknowledge(CheckpointId(8), CheckpointId(0), {SINK.name: slots(8)})
    fenced = client.open_job(name, (SOURCE, SINK), ON_DEMAND, None, driver="d2", takeover=True)
    with pytest.raises(FencedError):
        session.decline(CheckpointId(1), SINK.name, "late")
    refused = [entry for entry in people.history(name) if entry.verdict is not None]
    assert [
        (one.event, one.verdict, one.generation, one.checkpoint, one.participant, one.count) for one in refused
    ] == [
        ("Decline", Verdict.FENCED, 1, 1, "sink", 1),
        ("Acknowledge", Verdict.UNKNOWN_CHECKPOINT, 1, 8, "sink", 1),
        ("Acknowledge", Verdict.UNKNOWN_CHECKPOINT, 1, 9, "sink", 7),
    ]
    fenced.close(CloseReason.STOPPED)


def test_the_history_and_an_order_survive_a_restart(
    on: Callable[..., EmbeddedCoordinator], tmp_path: Path, job: str
) -> None:
    name = JobName(job)
    coordinator = on(tmp_path / "s")
    with connect(coordinator.address) as client, OperatorClient(coordinator.address) as people:
        driver = ScriptedDriver(client, name, settings=SETTINGS)
        driver.wait_committed(3)
        driver.session.settle(CheckpointId(10_000), SINK.name, [])
        people.stop(name)
        wait_until(lambda: Stop() in driver.reported and people.job(name).settled, "what is decided is settled")
        driver.close()
        people.restore(name, 1, "a test wants it")
    coordinator.close()
    coordinator = on(tmp_path / "s")
    with OperatorClient(coordinator.address) as people:
        summary, history = people.job(name), people.history(name, 1000)
    assert (summary.status, summary.restore_from) == (JobStatus.FINISHED, 1)
    assert any(entry.verdict is Verdict.UNKNOWN_CHECKPOINT for entry in history)
    assert any("a test wants it" in entry.detail for entry in history)


def test_a_job_is_forgotten_only_when_it_is_no_longer_needed(
    on_demand: ScriptedDriver, people: OperatorClient, client: CoordinatorClient
) -> None:
    job = on_demand.job
    refused = people.forget(job, "Ada")
    assert (refused.verdict, "has a driver" in refused.detail) == (Verdict.REFUSED, True)
    on_demand.close()
    assert people.forget(job, "Ada: moved").verdict is Verdict.ACCEPTED
    assert people.forget(job, "Bob: moved").verdict is Verdict.DUPLICATE
    summary = people.job(job)
    assert (summary.status, summary.status_detail) == (JobStatus.FORGOTTEN, "Ada: moved")
    assert (people.checkpoints(job), people.generations(job)) == ([], [])
    assert "Ada: moved" in {entry.detail for entry in people.history(job)}
    assert people.cancel(job).verdict is not Verdict.ACCEPTED
    again = ScriptedDriver(client, job, settings=ON_DEMAND)
    again.wait_committed(1)
    assert again.session.grant.completed is None, "nothing of the old one"
    assert again.session.generation == 2
    assert again.runs == [CheckpointId(2)], "ids go on"
    again.close()


def test_a_job_that_no_driver_has_opened_can_be_forgotten(people: OperatorClient, job: str) -> None:
    name, claim = JobName(job), Claim(store_id="s", generation=Generation(1), completed=CheckpointId(0), holder="h")
    assert people.permit_adoption(name, claim, "Ada").verdict is Verdict.ACCEPTED
    assert people.job(name).status is JobStatus.CREATED
    assert people.forget(name, "Ada: a mistake").verdict is Verdict.ACCEPTED
    assert people.job(name).status is JobStatus.FORGOTTEN
    assert people.job(name).adoption_permitted is None
