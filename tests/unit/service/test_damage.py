"""A store with a damaged record: the job that needs it is halted, all other jobs continue."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onceward.client.calls import open_channel
from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.common.errors import ExitCode, HaltedError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.protocol.answers import Verdict
from onceward.protocol.status import JobStatus
from onceward.protocol.values import JobName
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub
from tests.support.scripted import SETTINGS, SINK, SOURCE, ScriptedDriver
from tests.support.stored_jobs import change
from tests.support.waiting import wait_until

ORDERS, PAYMENTS = JobName("orders"), JobName("payments")
On = Callable[..., EmbeddedCoordinator]


def left_behind(directory: Path, *, closed: bool = True) -> None:
    """Leave two jobs with settled checkpoints in the directory."""
    with EmbeddedCoordinator(directory) as coordinator, connect(coordinator.address) as client:
        for job in (ORDERS, PAYMENTS):
            driver = ScriptedDriver(client, job)
            driver.wait_committed(2)
            if closed:
                driver.close()
            else:
                driver.session.abandon("killed")


def test_a_job_with_a_damaged_record_halts_and_the_others_continue(tmp_path: Path, on: On) -> None:
    left_behind(tmp_path)
    change(tmp_path / "store.db", "UPDATE jobs SET generation = 9 WHERE job = 'orders'")
    coordinator = on(tmp_path)
    with connect(coordinator.address) as client, OperatorClient(coordinator.address) as people:
        ScriptedDriver(client, PAYMENTS).wait_committed(2)
        for takeover in (False, True):
            with pytest.raises(HaltedError, match="store's record of job orders is not what was written") as halted:
                client.open_job(ORDERS, (SOURCE, SINK), SETTINGS, None, driver="d", takeover=takeover)
            assert halted.value.exit_code is ExitCode.HALTED
        orders, payments = people.jobs()
        assert (orders.job, orders.status, payments.status) == (ORDERS, JobStatus.HALTED, JobStatus.RUNNING)
        assert "positions of that one" in orders.unreadable
        newest = next(one for one in people.checkpoints(ORDERS) if one.state.value == "settled")
        assert people.checkpoint(ORDERS, newest.checkpoint).snapshots[SOURCE.name].positions is not None
        assert people.cancel(ORDERS).verdict is Verdict.REFUSED
        wait_until(lambda: any(one.verdict for one in people.history(ORDERS)), "the refused calls are in its history")


def test_a_driver_that_returns_to_a_damaged_record_gets_that_reason(tmp_path: Path, on: On) -> None:
    left_behind(tmp_path, closed=False)
    change(tmp_path / "store.db", "DELETE FROM jobs WHERE job = 'orders'")
    coordinator = on(tmp_path)
    with open_channel(coordinator.address) as channel, OperatorClient(coordinator.address) as people:
        answer = ParticipantServiceStub(channel).Renew(pb.RenewRequest(job=ORDERS, generation=1, driver="d")).answer
        assert answer.verdict == pb.VERDICT_FENCED
        assert "the store's record of job orders is missing" in answer.detail
        assert not answer.may_return
        (orders, _) = people.jobs()
        assert (orders.status, orders.generation) == (JobStatus.HALTED, 0)
        assert "the store's record of job orders is missing" in orders.unreadable


def test_damage_to_history_is_shown_and_stops_no_job(tmp_path: Path, on: On) -> None:
    left_behind(tmp_path)
    change(tmp_path / "store.db", "UPDATE history SET detail = 'x' WHERE seq = 2")
    change(tmp_path / "store.db", "UPDATE generations SET driver = 'x' WHERE job = 'payments'")
    coordinator = on(tmp_path)
    with connect(coordinator.address) as client, OperatorClient(coordinator.address) as people:
        for job in (ORDERS, PAYMENTS):
            ScriptedDriver(client, job).wait_committed(2)
        assert [one.event for one in people.history(ORDERS, 1_000)].count("Unreadable") == 1
        assert "not what was written" in people.generations(PAYMENTS)[-1].detail
