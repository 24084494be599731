"""Every call of ``kafka.net`` and every request that the control plane uses, one by one.

``kafka.net`` is young. When a new kafka-python breaks something, this file shows what.
"""

from collections.abc import Iterator

import pytest
from kafka.errors import KafkaError
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from onceward import KafkaCluster
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.versions import broker_version, highest_transaction_version
from onceward.sinks.kafka.control import brokers
from onceward.sinks.kafka.control.control_plane import IN_FLIGHT, ControlPlane, CoordinatorKind, NoAnswer
from onceward.sinks.kafka.control.transactions import end_txn_version
from onceward.sinks.kafka.errors import ControlPlaneError
from tests.support.shared_kafka import SharedKafka
from tests.support.waiting import wait_until


@pytest.fixture
def control(kafka: SharedKafka) -> Iterator[ControlPlane]:
    opened = ControlPlane(KafkaCluster(kafka.bootstrap_servers))
    yield opened
    opened.close()


def test_the_loop_runs_coroutines_from_other_threads_and_stops(kafka: SharedKafka) -> None:
    net = NetworkSelector()
    net.start()
    manager = KafkaConnectionManager(net, bootstrap_servers=kafka.bootstrap_servers.split(","))
    manager.bootstrap(10_000)

    async def ask() -> object:
        return await manager.send(MetadataRequest(topics=[], min_version=4), node_id=None, request_timeout_ms=5_000)

    async def both() -> list[object]:
        started = [manager.call_soon(ask), manager.call_soon(ask)]
        return [await each for each in started]

    answers = manager.run(both)
    assert [answer.cluster_id for answer in answers] == [kafka.cluster_id] * 2
    assert manager.broker_version_data.api_version(EndTxnRequest()) == (5 if highest_transaction_version() == 2 else 4)

    async def close() -> None:
        manager.close()

    manager.run(close)
    net.close()
    with pytest.raises((KafkaError, RuntimeError)):
        manager.run(ask)


def test_a_refused_connection_is_an_error_in_time() -> None:
    net = NetworkSelector()
    net.start()
    manager = KafkaConnectionManager(net, bootstrap_servers=["127.0.0.1:1"])
    with pytest.raises(KafkaError):
        manager.bootstrap(300)
    manager.close()
    net.close()


@pytest.mark.parametrize("version", [4, 5])
def test_versions_of_end_txn_are_pinned(version: int) -> None:
    request = EndTxnRequest(
        transactional_id="x",
        producer_id=1,
        producer_epoch=2,
        committed=True,
        min_version=version,
        max_version=version,
    )
    assert (request._min_version, request._max_version) == (version, version)


def test_every_request_has_the_fields_that_are_used() -> None:
    InitProducerIdRequest(
        transactional_id="x", transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1, max_version=5
    ).encode(version=5)
    DescribeTransactionsRequest(transactional_ids=["x"]).encode(version=0)
    ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[], transactional_id_pattern="x").encode(
        version=2
    )
    FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]).encode(version=4)
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [group.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    OffsetFetchRequest(groups=[group(group_id="g", topics=topics)], require_stable=True).encode(version=8)
    AddOffsetsToTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0, group_id="g").encode(version=3)
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = topic.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata="m"
    )
    TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[topic(name="t", partitions=[partition])],
    ).encode(version=4)


def test_the_cluster_returns_its_id_version_and_nodes(control: ControlPlane, kafka: SharedKafka) -> None:
    assert control.cluster_id() == kafka.cluster_id
    assert control.transaction_version() == highest_transaction_version()
    assert end_txn_version(control) == (5 if highest_transaction_version() == 2 else 4)
    assert control.nodes() == (1,)
    assert control.highest_version(ListTransactionsRequest) == (1 if broker_version() in ("3.9", "4.0") else 2)


def test_coordinators_are_found_for_many_keys_at_once(control: ControlPlane) -> None:
    keys = [f"key-{number}" for number in range(50)]
    for kind in CoordinatorKind:
        wait_until(
            lambda kind=kind: {place.code for place in control.locate(kind, keys).values()} == {0},  # type: ignore[misc]
            "coordinators are there",
        )
        assert {place.node for place in control.locate(kind, keys).values()} == {1}
    assert control.locate(CoordinatorKind.GROUP, []) == {}


def test_more_requests_than_fit_on_a_connection_are_all_answered_in_order(control: ControlPlane) -> None:
    count = 3 * IN_FLIGHT + 1
    requests = [(1, DescribeTransactionsRequest(transactional_ids=[f"none-{number}"])) for number in range(count)]
    answers = control.send_all(list(requests))
    assert [answer.transaction_states[0].transactional_id for answer in answers] == [
        f"none-{number}" for number in range(count)
    ]


def test_an_unknown_broker_is_no_answer_and_does_not_spoil_the_next_one(control: ControlPlane) -> None:
    request = MetadataRequest(topics=[], min_version=4)
    unanswered, answered = control.send_all([(77, request), (1, MetadataRequest(topics=[], min_version=4))])
    assert isinstance(unanswered, NoAnswer)
    assert answered.cluster_id or isinstance(answered, NoAnswer)
    assert control.cluster_id()


def test_a_broker_that_is_gone_is_no_answer_and_is_found_again(job: str) -> None:
    with LocalKafka(heap="256m") as local:
        control = ControlPlane(KafkaCluster(local.bootstrap_servers))
        assert control.cluster_id() == local.cluster_id
        local.kill()
        with pytest.raises(ControlPlaneError, match="did not answer"):
            control.cluster_id()
        local.restart()

        def answers() -> bool:
            try:
                return control.cluster_id() == local.cluster_id
            except ControlPlaneError:
                return False

        wait_until(answers, "it answers again")
        control.close()


def test_a_closed_control_plane_refuses_requests(kafka: SharedKafka) -> None:
    control = ControlPlane(KafkaCluster(kafka.bootstrap_servers))
    control.cluster_id()
    control.close()
    with pytest.raises(ControlPlaneError, match="closed"):
        control.cluster_id()


def test_settings_topics_and_rights_are_returned(control: ControlPlane, topics: object, job: str) -> None:
    found = brokers.broker_settings(control, ["transaction.max.timeout.ms"])
    assert found == {"transaction.max.timeout.ms": "900000"}
    facts = brokers.topic_facts(control, ["no-such-topic"])["no-such-topic"]
    assert (facts.code, facts.partitions) == (3, 0)
