"""The model's brokers fail, return, and move their coordinators."""

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import InitProducerIdRequest

from onceward.sinks.kafka.control.control_plane import CoordinatorKind, NoAnswer
from onceward.sinks.kafka.control.receipts import ReceiptState
from onceward.sinks.kafka.control.transactions import State
from tests.support.kafka_model import AddPartitions, Produce, Record, Settings
from tests.support.kafka_model.bench import OUT, Bench, init_request

_THREE = Settings(brokers=(1, 2, 3))


def test_a_moved_transaction_coordinator_keeps_all_state() -> None:
    bench = Bench(_THREE)
    ids = bench.open()
    former = bench.coordinator()
    other = former % 3 + 1
    bench.cluster.move_coordinator(CoordinatorKind.TRANSACTION, "t", other, 0.0, loading_s=2.0)
    assert bench.coordinator() == other
    assert bench.end_at(former, ids) == 16
    assert bench.end_at(other, ids) == 14
    bench.wait(2)
    assert bench.end_at(other, ids) == 0
    bench.wait(1)
    assert bench.visible() == [b"a"]


def test_a_running_end_is_finished_by_the_next_coordinator() -> None:
    bench = Bench(Settings(brokers=(1, 2, 3), marker_delay=lambda _id, _partition: 5.0))
    ids = bench.open()
    bench.end(ids)
    bench.cluster.move_coordinator(CoordinatorKind.TRANSACTION, "t", bench.coordinator() % 3 + 1, 0.0, loading_s=10)
    bench.wait(9)
    assert bench.visible() == []
    bench.wait(2)
    assert bench.visible() == [b"a"]
    assert bench.view().state is State.COMPLETE_COMMIT


def test_a_deposed_coordinator_gives_wrong_negative_answers_for_a_while() -> None:
    """KAFKA-21181: it knows nothing that began after it was deposed."""
    bench = Bench(_THREE)
    bench.init()
    former = bench.coordinator()
    other = former % 3 + 1
    bench.cluster.move_coordinator(CoordinatorKind.TRANSACTION, "t", other, 0.0, stale_s=5.0)
    ids = ("t", 0, 1)
    bench.cluster.handle(other, _init("t"), 0.0)
    bench.cluster.handle(other, _enlist(ids), 0.0)
    assert bench.view_at(other).transaction_state == "Ongoing"
    assert bench.view_at(former).transaction_state == "Empty"
    assert bench.end_at(former, ids) == 90
    assert bench.end_at(former, ("t", 0, 0), commit=False) == 16  # this end would have to be written
    assert bench.end_at(other, ids) == 0
    bench.wait(1)
    assert bench.end_at(former, ids) == 90  # although it is committed
    bench.wait(4)
    assert bench.end_at(former, ids) == 16
    assert bench.end_at(other, ids) == 0


def test_only_the_deposed_and_its_believers_name_it() -> None:
    bench = Bench(_THREE)
    former = bench.coordinator()
    other, third = former % 3 + 1, (former + 1) % 3 + 1
    bench.cluster.move_coordinator(CoordinatorKind.TRANSACTION, "t", other, 0.0, stale_s=5.0, believers=[third])
    assert [_located(bench, node) for node in (former, other, third)] == [former, other, former]
    bench.wait(5)
    assert [_located(bench, node) for node in (former, other, third)] == [other] * 3


def test_a_deposed_group_coordinator_returns_old_receipts() -> None:
    bench = Bench(_THREE)
    ids = bench.open()
    group = CoordinatorKind.GROUP
    former = bench.coordinator(group)
    bench.cluster.move_coordinator(group, "t", former % 3 + 1, 0.0, stale_s=5.0, believers=[1, 2, 3])
    bench.end(ids)
    bench.wait(1)
    assert bench.coordinator(group) == former
    assert bench.receipt_of().state is ReceiptState.UNSTABLE
    bench.wait(5)
    assert bench.receipt_of().state is ReceiptState.PRESENT


def test_a_broker_that_failed_answers_nothing_and_others_take_over() -> None:
    bench = Bench(_THREE)
    ids = bench.open()
    former = bench.coordinator()
    bench.cluster.fail(former, 0.0, election_s=1.0, loading_s=0.5)
    assert isinstance(bench.cluster.handle(former, _init("t"), 0.0), NoAnswer)
    assert former not in bench.control.nodes()
    assert bench.control.locate(CoordinatorKind.TRANSACTION, ["t"])["t"].code == 15
    bench.wait(1)
    assert bench.end(ids) == 14
    bench.wait(0.5)
    assert bench.end(ids) == 0
    bench.wait(1)
    assert bench.visible() == [b"a"]
    bench.cluster.restart(former, 2.5)
    assert former in bench.control.nodes()


def test_without_any_broker_nothing_is_answered_and_nothing_is_lost() -> None:
    bench = Bench()
    ids = bench.open()
    bench.cluster.fail(1, 0.0)
    bench.wait(100)
    assert isinstance(bench.control.send_all([(None, _init("t"))])[0], NoAnswer)
    bench.cluster.restart(1, 100.0, loading_s=1.0)
    assert bench.end(ids) == 14
    bench.wait(1)
    assert bench.end(ids) == 0
    bench.wait(1)
    assert bench.visible() == [b"a"]


def test_a_timeout_waits_for_a_coordinator() -> None:
    bench = Bench(Settings(timeout_scan_s=1))
    bench.open(timeout_ms=10_000)
    bench.cluster.fail(1, 0.0)
    bench.wait(30)
    bench.cluster.restart(1, 30.0, loading_s=0.0)
    bench.wait(2)
    assert bench.view().state is State.COMPLETE_ABORT


def test_a_marker_waits_for_the_partitions_leader() -> None:
    bench = Bench(Settings(brokers=(1, 2, 3), marker_delay=lambda _id, _partition: 1.0))
    ids = bench.open()
    bench.end(ids)
    leader = bench.cluster.log(OUT).leader
    for kind in CoordinatorKind:
        bench.cluster.move_coordinator(kind, "t", leader % 3 + 1, 0.0)
    bench.cluster.fail(leader, 0.0, election_s=20.0, loading_s=0.0)
    bench.wait(19)
    assert bench.visible() == []
    bench.wait(2)
    assert bench.visible() == [b"a"]


@pytest.mark.parametrize("brokers", [(1,), (1, 2, 3)])
def test_records_go_to_the_leader_only(brokers: tuple[int, ...]) -> None:
    bench = Bench(Settings(brokers=brokers))
    ids = bench.open()
    leader = bench.cluster.log(OUT).leader
    codes = {node: _produce(bench, node, ids) for node in brokers}
    assert codes == {node: 0 if node == leader else 6 for node in brokers}


def _located(bench: Bench, node: int) -> int:
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=["t"], min_version=4)
    return int(bench.cluster.handle(node, request, bench.transport.now()).coordinators[0].node_id)


def _init(name: str) -> InitProducerIdRequest:
    return init_request(name, None, 60_000)


def _enlist(ids: tuple[str, int, int]) -> object:
    return AddPartitions(transactional_id=ids[0], producer_id=ids[1], producer_epoch=ids[2], partitions=[OUT])


def _produce(bench: Bench, node: int, ids: tuple[str, int, int]) -> int:
    request = Produce(
        partition=OUT,
        records=(Record(value=b"b"),),
        transactional_id=ids[0],
        producer_id=ids[1],
        producer_epoch=ids[2],
        sequence=1,
    )
    return int(bench.cluster.handle(node, request, 0.0).error_code)
