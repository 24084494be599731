"""The client's answers about offsets, distinguished from missing answers."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from onceward import KafkaCluster
from onceward.common.errors import CheckpointFailedError
from onceward.sources.kafka.control.metadata import BrokerView, LogEnd
from onceward.sources.kafka.positions import Partition

FIRST, SECOND = Partition("orders", 0), Partition("orders", 1)


@pytest.fixture
def view() -> BrokerView:
    return BrokerView(KafkaCluster("localhost:1", name="main"))


def answering(view: BrokerView, offsets: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the client of ``view`` answer with these offsets, keyed by partition number."""

    def list_offsets(wanted: dict[Any, Any], **_: Any) -> dict[Any, Any]:
        made = {}
        for partition in wanted:
            made[partition] = answer = Future[Any]()
            answer.set_result(SimpleNamespace(offset=offsets[partition.partition], leader_epoch=7))
        return made

    admin = SimpleNamespace(poll=lambda _: 0, list_offsets=list_offsets)
    monkeypatch.setattr(view, "_admin", admin)


def test_a_partition_whose_answer_holds_no_offset_has_not_answered(
    view: BrokerView, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(view, {0: 1834, 1: OFFSET_INVALID}, monkeypatch)
    assert view.high_watermarks([FIRST, SECOND]) == {FIRST: 1834}


def test_the_end_of_a_log_is_returned_with_its_leader(view: BrokerView, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(view, {0: 1834}, monkeypatch)
    assert view.led_ends([FIRST]) == {FIRST: LogEnd(1834, 7)}


def test_a_missing_offset_is_a_failed_request_and_not_an_empty_log(
    view: BrokerView, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(view, {0: OFFSET_INVALID, 1: OFFSET_INVALID}, monkeypatch)
    with pytest.raises(CheckpointFailedError):
        view.log_starts([FIRST, SECOND])


@pytest.mark.parametrize(("code", "kept"), [(KafkaError._WAIT_COORD, False), (KafkaError.UNKNOWN_MEMBER_ID, True)])
def test_a_client_without_a_group_coordinator_is_replaced_for_the_next_commit(
    view: BrokerView, code: int, kept: bool
) -> None:
    def commit(**_: Any) -> None:
        raise KafkaException(KafkaError(code))

    failing: Any = SimpleNamespace(commit=commit)
    view._groups["g"] = failing
    with pytest.raises(KafkaException):
        view.commit("g", {FIRST: 1})
    assert ("g" in view._groups) is kept
