"""A store of an earlier version continues under this one, with its jobs. `make_store` has made each."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.common.errors import HaltedError
from onceward.protocol.facts import AbortReason
from onceward.protocol.status import JobStatus
from onceward.protocol.values import CheckpointKind, CheckpointState, JobName, OnLost, Outcome
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sources.kafka.positions import KafkaPositions, Partition
from tests.support.scripted import CoordinatorProcess
from tests.support.waiting import wait_until
from tests.unit.former.make_store import SINK, SOURCE, Driver

STORES = sorted(Path(__file__).parent.glob("*.db"))
ORDERS, BILLS = JobName("orders"), JobName("bills")


@pytest.fixture(params=STORES, ids=lambda file: file.stem)
def coordinator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CoordinatorProcess]:
    shutil.copyfile(request.param, tmp_path / "store.db")
    process = CoordinatorProcess(tmp_path)
    try:
        yield process.wait_ready()
    finally:
        process.end()


@pytest.fixture
def operators(coordinator: CoordinatorProcess) -> Iterator[OperatorClient]:
    with OperatorClient(coordinator.address, patience="30s") as client:
        yield client


def test_a_former_store_is_listed_with_everything_in_it(operators: OperatorClient) -> None:
    wait_until(lambda: operators.job(ORDERS).status is JobStatus.SUSPENDED, "the lease of its driver is over")
    orders, bills = operators.job(ORDERS), operators.job(BILLS)
    assert (orders.generation, orders.settled) == (2, False)
    assert (orders.unacknowledged_losses, orders.unreadable) == (1, "")
    assert (bills.status, bills.settled) == (JobStatus.HALTED, False)
    assert "slot 1 is lost" in bills.status_detail
    found = {int(one.checkpoint): one for one in operators.checkpoints(ORDERS, limit=100)}
    newest = orders.last_completed
    settled, aborted = CheckpointState.SETTLED, CheckpointState.ABORTED
    assert [found[number].state for number in (1, 2, 3, 4)] == [settled, settled, aborted, settled]
    assert found[newest].state is CheckpointState.COMPLETED
    assert found[3].abort_reason is AbortReason.DECLINED
    assert [one.name for one in found.values() if one.kind is CheckpointKind.SAVEPOINT] == ["before"]
    assert found[newest].committables == 2
    (loss,) = operators.losses(ORDERS)
    assert (loss.checkpoint, loss.settlement.slot, loss.settlement.outcome) == (4, 1, Outcome.LOST)
    assert loss.document.body["inputs"] == [{"topic": "in", "partition": 1, "start": 30, "end": 40}]
    second, first = operators.generations(ORDERS)
    assert (first.generation, second.generation) == (1, 2)
    assert "ran out of memory" in first.detail
    events = [one.event for one in operators.history(ORDERS, limit=100)]
    assert {"GenerationGranted", "CheckpointCompleted", "LossSkipped", "GenerationEnded"} <= {*events}


def test_a_job_of_a_former_store_settles_what_is_completed_and_continues(
    coordinator: CoordinatorProcess, operators: OperatorClient
) -> None:
    newest = operators.job(ORDERS).last_completed
    with connect(coordinator.address, patience="30s") as client:
        driver = Driver(client, ORDERS, OnLost.SKIP)
        completed = driver.session.grant.completed
        assert completed is not None
        assert (driver.session.generation, completed.id, completed.settled) == (3, newest, False)
        read = completed.snapshots[SOURCE.name].positions
        assert read is not None
        positions = KafkaPositions.from_document(read)
        cursors = {partition: (cursor.next, cursor.end, cursor.epoch) for partition, cursor in positions}
        assert cursors == {Partition("in", number): (10 * newest + number, None, 4) for number in (0, 1)}
        handles = [KafkaCommittable.of(one) for one in completed.snapshots[SINK.name].committables]
        assert [(one.slot, one.checkpoint, one.transaction.epoch) for one in handles] == [
            (slot, newest, newest) for slot in (0, 1)
        ]
        assert all(one.replayable and one.transaction.id.startswith("orders.sink.2.") for one in handles)
        assert driver.settle().checkpoint == newest
        following = driver.acknowledge()
        assert driver.settle().checkpoint == following
        driver.session.let_go()
    wait_until(lambda: operators.checkpoint(ORDERS, following).summary.settled_at is not None, "it is settled")
    settled = {one.checkpoint for one in operators.checkpoints(ORDERS, limit=100) if one.settled_at is not None}
    assert {2, 4, newest, following} <= settled


def test_a_halted_job_of_a_former_store_stays_halted_until_a_person_decides(coordinator: CoordinatorProcess) -> None:
    with connect(coordinator.address, patience="30s") as client, pytest.raises(HaltedError, match="slot 1 is lost"):
        Driver(client, BILLS, OnLost.HALT)
