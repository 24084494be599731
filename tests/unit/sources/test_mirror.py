"""Positions in the consumer group serve lag tools only: a failure there affects nothing else."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onceward.sources.kafka.control.mirror import GroupMirror

TOPIC: Any = ("in", 0)


class View:
    """Answer commits to the group as the test sets."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.sent: list[dict[Any, int]] = []
        self.answer: Callable[[Future[Any]], None] = self.fine

    def commit(self, group: str, offsets: dict[Any, int]) -> Future[Any]:
        assert group == "orders"
        self.sent.append(offsets)
        self.asked.append(offsets.get(TOPIC, -1))
        question: Future[Any] = Future()
        self.answer(question)
        return question

    @staticmethod
    def fine(question: Future[Any]) -> None:
        question.set_result([SimpleNamespace(error=None)])

    @staticmethod
    def refused(question: Future[Any]) -> None:
        question.set_result([SimpleNamespace(error="not authorised")])

    @staticmethod
    def failed(question: Future[Any]) -> None:
        question.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))

    @staticmethod
    def raised(_question: Future[Any]) -> None:
        raise RuntimeError("the client is broken")


@pytest.mark.parametrize("how", ["refused", "failed", "raised"])
def test_a_failure_is_logged_once_and_the_newest_positions_follow_its_end(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    view: Any = View()
    mirror = GroupMirror(view, "orders")
    view.answer = getattr(view, how)
    with caplog.at_level(logging.WARNING):
        for offset in (1, 2, 3):
            mirror.show({TOPIC: offset})
    assert len(caplog.records) == 1
    assert "only lag tools miss them" in caplog.text
    view.answer = view.fine
    mirror.show({TOPIC: 4})
    mirror.close()
    assert view.asked[-1] == 4


def test_an_answer_that_does_not_come_holds_nothing_up_and_the_newest_positions_follow_it() -> None:
    view: Any = View()
    mirror = GroupMirror(view, "orders")
    questions: list[Future[Any]] = []
    view.answer = questions.append
    for offset in (1, 2, 3):
        mirror.show({TOPIC: offset})
    assert view.asked == [1]
    view.fine(questions[0])
    view.answer = view.fine
    mirror.close()
    assert view.asked == [1, 3]


def test_only_moved_positions_are_sent_and_failed_ones_are_retried() -> None:
    view: Any = View()
    mirror = GroupMirror(view, "orders")
    other: Any = ("in", 1)
    mirror.show({TOPIC: 1, other: 1})
    mirror.show({TOPIC: 1, other: 2})
    mirror.show({TOPIC: 1, other: 2})
    mirror.show({TOPIC: 1, other: 2})
    assert view.sent == [{TOPIC: 1, other: 1}, {other: 2}]
    view.answer = view.failed
    mirror.show({TOPIC: 5, other: 2})
    view.answer = view.fine
    mirror.show({TOPIC: 5, other: 3})
    mirror.close()
    mirror.close()
    assert view.sent[2:] == [{TOPIC: 5}, {TOPIC: 5, other: 3}]


def test_a_returning_failure_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    view: Any = View()
    mirror = GroupMirror(view, "orders")
    with caplog.at_level(logging.WARNING):
        for offset, answer in enumerate((view.failed, view.refused, view.fine, view.fine, view.failed, view.fine)):
            view.answer = answer
            mirror.show({TOPIC: offset})
    assert len(caplog.records) == 2
    assert all("group orders" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("last", ["refused", "failed", "raised"])
def test_a_failure_at_the_end_stops_no_reader(last: str, caplog: pytest.LogCaptureFixture) -> None:
    view: Any = View()
    mirror = GroupMirror(view, "orders")
    question: list[Future[Any]] = []
    view.answer = question.append
    mirror.show({TOPIC: 1})
    mirror.show({TOPIC: 2})
    view.fine(question[0])
    view.answer = getattr(view, last)
    with caplog.at_level(logging.WARNING):
        mirror.close()
    assert view.asked == [1, 2]
    assert len(caplog.records) == 1
