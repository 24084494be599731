"""What a group coordinator's answer proves about a receipt; an error proves nothing."""

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetFetchRequest

from onceward.sinks.kafka.control.control_plane import CoordinatorKind, NoAnswer
from onceward.sinks.kafka.control.receipts import Offset, Receipt, ReceiptState, read_offsets, read_receipts


def answer(
    *, group: int = 0, partition: int = 0, offset: int = 7, metadata: str | None = "token", reported: bool = True
) -> Any:
    one = SimpleNamespace(error_code=partition, committed_offset=offset, metadata=metadata)
    topics = [SimpleNamespace(partitions=[one] if reported else [])]
    return SimpleNamespace(groups=[SimpleNamespace(error_code=group, topics=topics)])


class Control:
    """Give each group the answer that the test sets."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.asked: dict[str, Any] = {}

    def send_located(self, kind: CoordinatorKind, requests: dict[str, Any], *, located: None) -> dict[str, Any]:
        assert kind is CoordinatorKind.GROUP
        self.asked |= requests
        return {name: self._answers[name] for name in requests}


SILENT = NoAnswer(why="gone away")


@pytest.mark.parametrize(
    ("given", "offset", "state"),
    [
        (answer(), Offset(offset=7, metadata="token"), ReceiptState.PRESENT),
        (answer(offset=0), Offset(offset=0, metadata="token"), ReceiptState.PRESENT),
        (answer(metadata="token\0"), Offset(offset=7, metadata="token"), ReceiptState.PRESENT),
        (answer(metadata="another"), Offset(offset=7, metadata="another"), ReceiptState.ABSENT),
        (answer(metadata=None), Offset(offset=7), ReceiptState.ABSENT),
        (answer(offset=-1), Offset(metadata="token"), ReceiptState.ABSENT),
        (answer(partition=88), Offset(code=88), ReceiptState.UNSTABLE),
        (answer(group=88), Offset(code=88), ReceiptState.UNSTABLE),
        (answer(partition=3), Offset(code=3), ReceiptState.NO_ANSWER),
        (answer(group=30), Offset(code=30), ReceiptState.NO_ANSWER),
        (SILENT, Offset(code=SILENT), ReceiptState.NO_ANSWER),
        (NoAnswer(why="too old", code=35), Offset(code=35), ReceiptState.NO_ANSWER),
    ],
)
def test_a_receipt_counts_only_with_its_token_and_an_error_proves_nothing(
    given: Any, offset: Offset, state: ReceiptState
) -> None:
    control: Any = Control(g=given)
    assert read_offsets(control, ["g"]) == {"g": offset}
    assert read_receipts(control, {"g": "token"})["g"].state is state


def test_an_answer_without_the_partition_proves_nothing() -> None:
    control: Any = Control(g=answer(reported=False))
    receipt = read_receipts(control, {"g": "token"})["g"]
    assert receipt == Receipt(state=ReceiptState.NO_ANSWER, detail="the answer names no partition")


def test_the_report_says_whose_receipt_is_there() -> None:
    control: Any = Control(
        a=answer(), b=answer(), c=answer(offset=-1), d=answer(group=30), e=SILENT, f=answer(offset=0)
    )
    receipts = read_receipts(control, {"a": "token", **dict.fromkeys("bcdef", "mine")})
    said = ["checkpoint 7", "another transaction's, of checkpoint 7", "nothing there", "error 30", "gone away"]
    assert [receipt.detail for receipt in receipts.values()] == [*said, "another transaction's, of checkpoint 0"]


@pytest.mark.parametrize(("how", "stable"), [({}, True), ({"stable": True}, True), ({"stable": False}, False)])
def test_each_group_is_asked_only_for_the_receipt_partition(how: dict[str, Any], stable: bool) -> None:
    """By default a receipt that an open transaction is writing is not read."""
    control: Any = Control(a=answer(), b=answer())
    read_offsets(control, ["a", "b"], **how)
    for name, request in control.asked.items():
        assert isinstance(request, OffsetFetchRequest)
        (group,) = request.groups
        (topic,) = group.topics or []
        assert (group.group_id, topic.name, topic.partition_indexes) == (name, "onceward", [0])
        assert request.require_stable is stable
        assert (request._min_version, request._max_version) == (8, 8), "the last one that names topics by name is 9"
