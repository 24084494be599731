"""Operations that send their requests together."""

from collections.abc import Sequence
from typing import Any

import pytest

from onceward import KafkaCluster
from onceward.sinks.kafka.control.control_plane import ControlPlane, Operation, together
from onceward.sinks.kafka.errors import ControlPlaneError


class Echo(ControlPlane):
    """Answers each request with its text, and keeps what was sent at once."""

    def __init__(self) -> None:
        super().__init__(KafkaCluster("127.0.0.1:1"))
        self.sent: list[list[Any]] = []

    def send_all(self, requests: Sequence[tuple[int | None, Any]]) -> list[Any]:
        self.sent.append([request for _, request in requests])
        return [f"answer to {request}" for _, request in requests]


def asking(*waves: Sequence[Any]) -> Operation[list[Any]]:
    answers: list[Any] = []
    for wave in waves:
        answers += yield [(None, request) for request in wave]
    return answers


def test_operations_share_their_waves_and_each_gets_its_own_answers() -> None:
    control = Echo()
    found = control.run(together(asking("a", "bc"), asking("d"), asking("", "e", "f")))
    assert found == (
        ["answer to a", "answer to b", "answer to c"],
        ["answer to d"],
        ["answer to e", "answer to f"],
    )
    assert control.sent == [["a", "d"], ["b", "c", "e"], ["f"]]


def test_operations_within_operations_share_waves_too() -> None:
    def answered_before() -> Operation[str]:
        yield from ()
        return "known"

    def outer() -> Operation[tuple[list[Any], list[Any]]]:
        first, known = yield from together(asking("a"), answered_before())
        assert known == "known"
        second, _ = yield from together(asking("b"), asking("c", "d"))
        return first, second

    control = Echo()
    found = control.run(together(outer(), asking("e", "f", "g")))
    assert found == ((["answer to a"], ["answer to b"]), ["answer to e", "answer to f", "answer to g"])
    assert control.sent == [["a", "e"], ["b", "c", "f"], ["d", "g"]]


def test_an_operation_without_requests_sends_nothing() -> None:
    control = Echo()
    assert control.run(asking()) == []
    assert control.sent == []


def test_the_error_of_one_operation_ends_all() -> None:
    def failing() -> Operation[None]:
        request: Any = "x"
        yield [(None, request)]
        raise ControlPlaneError("no answer")

    control = Echo()
    with pytest.raises(ControlPlaneError, match="no answer"):
        control.run(together(asking("a", "b"), failing()))
    assert control.sent == [["a", "x"]]
