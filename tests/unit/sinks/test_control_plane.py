"""Operations that send their requests together."""

from collections.abc import Sequence
from typing import Any

import pytest

from onceward import KafkaCluster
from onceward.sinks.kafka.control.control_plane import ControlPlane, Waves
from onceward.sinks.kafka.errors import ControlPlaneError


class Echo(ControlPlane):
    """Answers each request with its text, and keeps what was sent at once."""

    def __init__(self) -> None:
        super().__init__(KafkaCluster("127.0.0.1:1"))
        self.sent: list[list[Any]] = []

    def send_all(self, requests: Sequence[tuple[int | None, Any]]) -> list[Any]:
        self.sent.append([request for _, request in requests])
        return [f"answer to {request}" for _, request in requests]


def asking(*waves: Sequence[Any]) -> Waves[list[Any]]:
    answers: list[Any] = []
    for wave in waves:
        answers += yield [(None, request) for request in wave]
    return answers


def test_operations_share_their_waves_and_each_gets_its_own_answers() -> None:
    control = Echo()
    found = control.run(asking("a", "bc"), asking("d"), asking("", "e", "f"))
    assert found == (
        ["answer to a", "answer to b", "answer to c"],
        ["answer to d"],
        ["answer to e", "answer to f"],
    )
    assert control.sent == [["a", "d"], ["b", "c", "e"], ["f"]]


def test_an_operation_without_requests_sends_nothing() -> None:
    control = Echo()
    assert control.run(asking()) == ([],)
    assert control.sent == []


def test_the_error_of_one_operation_ends_all() -> None:
    def failing() -> Waves[None]:
        request: Any = "x"
        yield [(None, request)]
        raise ControlPlaneError("no answer")

    control = Echo()
    with pytest.raises(ControlPlaneError, match="no answer"):
        control.run(asking("a", "b"), failing())
    assert control.sent == [["a", "x"]]
