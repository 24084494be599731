"""Operator decisions over the wire: kept over restarts, shown in listings, refused where they make no sense."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from onceward.client.calls import open_channel
from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.protocol.answers import Verdict
from onceward.protocol.events import CloseReason
from onceward.protocol.requests import Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    Document,
    Outcome,
    Settlement,
    Snapshot,
)
from onceward.wire.v1 import operators_pb2 as pb
from onceward.wire.v1.operators_pb2_grpc import OperatorServiceStub
from tests.support.scripted import SINK, SOURCE, slots
from tests.support.waiting import wait_until
from tests.unit.operate.halted import ORDERS, halted

START = {"orders": {0: 20, 1: 40}}


def kafka_positions(offsets: dict[str, dict[int, int]]) -> Document:
    topics = {
        topic: {
            "id": f"id of {topic}",
            "partitions": {str(n): {"next": at, "end": None, "epoch": None} for n, at in found.items()},
        }
        for topic, found in offsets.items()
    }
    body = {"cluster": "main", "cluster_id": "c", "bound": None, "topics": topics}
    return Document(kind="kafka-positions", version=2, body=body)


def suspended(coordinator: EmbeddedCoordinator, document: Document) -> None:
    """Leave ``orders`` suspended, with these positions in its only checkpoint."""
    with connect(coordinator.address) as client:
        settings = CheckpointSettings(interval=None)
        session = client.open_job(ORDERS, (SOURCE, SINK), settings, None, driver="d")
        reported: list[object] = []
        session.start_watch(reported.append)
        wait_until(lambda: reported, "the first checkpoint is triggered")
        snapshots = {SOURCE.name: Snapshot(positions=document), SINK.name: slots(1, count=0)}
        session.acknowledge(CheckpointId(1), CheckpointId(0), snapshots)
        session.close(CloseReason.STOPPED)


def test_a_decision_and_its_evidence_survive_a_restart(on: Callable[..., EmbeddedCoordinator], tmp_path: Path) -> None:
    halted(tmp_path)
    coordinator = on(tmp_path)
    evidence = (Settlement(slot=1, outcome=Outcome.LOST, evidence="seen at noon"),)
    with OperatorClient(coordinator.address) as people:
        description = people.describe(ORDERS)
        assert (description.summary.status, description.driven) == (JobStatus.HALTED, False)
        assert description.unresolved == {SINK.name: {1: Outcome.LOST, 2: Outcome.IN_DOUBT}}
        call = (ORDERS, 2, SINK.name, {1}, Ruling.GIVEN_UP, "Ada")
        assert people.resolve(*call, evidence=evidence).verdict is Verdict.ACCEPTED
        assert people.resolve(*call, evidence=evidence).verdict is Verdict.DUPLICATE
    coordinator.close()
    coordinator = on(tmp_path)
    with OperatorClient(coordinator.address) as people:
        assert people.resolve(*call).verdict is Verdict.DUPLICATE
        assert people.describe(ORDERS).unresolved == {SINK.name: {2: Outcome.IN_DOUBT}}
        checkpoint = people.checkpoint(ORDERS, 2)
        assert [one.slot for one in checkpoint.snapshots[SINK.name].committables] == [0, 2]
        assert (checkpoint.summary.committables, checkpoint.summary.state) == (2, CheckpointState.COMPLETED)
        assert [one.settlement.evidence for one in checkpoint.settlements][1] == "seen at noon"
        (reported,) = (entry for entry in people.history(ORDERS) if entry.event == "SlotsResolved")
        assert "count as given_up: Ada. Seen: slot 1 lost: seen at noon" in reported.detail
        assert people.resolve(ORDERS, 2, SINK.name, {2}, Ruling.COMMITTED, "Ada").verdict is Verdict.ACCEPTED
        assert (people.job(ORDERS).status, people.job(ORDERS).settled) == (JobStatus.SUSPENDED, True)
        assert people.checkpoints(ORDERS)[1].state is CheckpointState.SETTLED


def test_skipped_input_is_a_checkpoint_and_a_loss(coordinator: EmbeddedCoordinator, people: OperatorClient) -> None:
    suspended(coordinator, kafka_positions(START))
    looked = people.skip_input(ORDERS, "orders", 1, 50, "Ada", only_look=True)
    assert (looked.answer.verdict, looked.base, looked.skipped) == (Verdict.ACCEPTED, 1, "orders-1 [40, 50)")
    assert people.job(ORDERS).last_completed == 1, "looking changes nothing"
    assert people.skip_input(ORDERS, "orders", 1, 50, "Ada", base=1).answer.verdict is Verdict.ACCEPTED
    assert people.skip_input(ORDERS, "orders", 1, 50, "Ada", base=1).answer.verdict is Verdict.DUPLICATE
    assert people.skip_input(ORDERS, "orders", 0, 30, "Ada", base=1).answer.verdict is Verdict.REFUSED, (
        "it is not 1 now"
    )
    summary, newest = people.job(ORDERS), people.checkpoints(ORDERS)[0]
    assert (newest.kind, newest.base, newest.state) == (CheckpointKind.SKIP, 1, CheckpointState.SETTLED)
    assert (summary.last_completed, summary.unacknowledged_losses) == (newest.checkpoint, 1)
    positions = people.checkpoint(ORDERS, newest.checkpoint).snapshots[SOURCE.name].positions
    assert positions == kafka_positions({"orders": {0: 20, 1: 50}}), "one partition has moved, nothing else"
    (loss,) = people.losses(ORDERS)
    assert "orders-1 [40, 50)" in loss.settlement.evidence


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "says"),
    [
        ("orders", 0, 20, "20 is not after it"),
        ("orders", 0, 19, "19 is not after it"),
        ("orders", 2, 50, "orders-2 has no position"),
        ("others", 0, 50, "others-0 has no position"),
    ],
)
def test_positions_are_not_moved_backwards_or_where_there_are_none(
    coordinator: EmbeddedCoordinator, people: OperatorClient, topic: str, partition: int, offset: int, says: str
) -> None:
    suspended(coordinator, kafka_positions(START))
    answer = people.skip_input(ORDERS, topic, partition, offset, "Ada").answer
    assert (answer.verdict, says in answer.detail) == (Verdict.REFUSED, True), answer.detail
    assert people.job(ORDERS).last_completed == 1


def test_positions_of_an_unknown_kind_are_not_touched(coordinator: EmbeddedCoordinator, people: OperatorClient) -> None:
    suspended(coordinator, Document(kind="test", version=1, body={}))
    answer = people.skip_input(ORDERS, "orders", 0, 50, "Ada").answer
    assert (answer.verdict, "no plug-in" in answer.detail) == (Verdict.REFUSED, True)


BAD: list[tuple[str, Any]] = [
    ("ResolveSlots", pb.ResolveSlotsRequest(job="orders", checkpoint=0, participant="sink", slots=[1], reason="a")),
    ("ResolveSlots", pb.ResolveSlotsRequest(job="orders", checkpoint=2, participant="sink", slots=[1], reason="a")),
    (
        "ResolveSlots",
        pb.ResolveSlotsRequest(
            job="orders", checkpoint=2, participant="sink", slots=[1], ruling=pb.RULING_GIVEN_UP, reason=" "
        ),
    ),
    (
        "ResolveSlots",
        pb.ResolveSlotsRequest(
            job="orders", checkpoint=2, participant="sink", slots=[-1], ruling=pb.RULING_GIVEN_UP, reason="a"
        ),
    ),
    ("SkipInput", pb.SkipInputRequest(job="orders", topic="orders", offset=5, reason="")),
    ("SkipInput", pb.SkipInputRequest(job="orders", topic="orders", offset=-5, reason="a")),
    ("SkipInput", pb.SkipInputRequest(job="orders", topic="orders", partition=-1, reason="a")),
    ("SkipInput", pb.SkipInputRequest(job="Orders!", topic="orders", reason="a")),
]


@pytest.mark.parametrize(("method", "request_"), BAD)
def test_a_meaningless_request_is_refused_and_changes_nothing(tmp_path: Path, method: str, request_: Any) -> None:
    halted(tmp_path)
    with (
        EmbeddedCoordinator(tmp_path) as coordinator,
        OperatorClient(coordinator.address) as people,
        open_channel(coordinator.address) as channel,
    ):
        before = people.describe(ORDERS)
        with pytest.raises(grpc.RpcError) as error:
            getattr(OperatorServiceStub(channel), method)(request_, timeout=30)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert people.describe(ORDERS) == before
