"""Positions in the consumer group serve lag tools only: a failure there affects nothing else."""

import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onceward.sources.kafka.control.mirror import GroupMirror
from tests.support.waiting import wait_until

TOPIC: Any = ("in", 0)
OTHER: Any = ("in", 1)


class View:
    """Answers commits to the group as the test sets."""

    def __init__(self) -> None:
        self.sent: list[dict[Any, int]] = []
        self.answer: Callable[[], list[Any]] = self.fine

    def commit(self, group: str, offsets: dict[Any, int]) -> list[Any]:
        assert group == "orders"
        self.sent.append(dict(offsets))
        return self.answer()

    @staticmethod
    def fine() -> list[Any]:
        return [SimpleNamespace(error=None)]

    @staticmethod
    def refused() -> list[Any]:
        return [SimpleNamespace(error="not authorised")]

    @staticmethod
    def failed() -> list[Any]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    @staticmethod
    def raised() -> list[Any]:
        raise RuntimeError("the client is broken")


@pytest.fixture
def view() -> View:
    return View()


@pytest.fixture
def mirror(view: Any) -> Iterator[GroupMirror]:
    """Without a pause between two commits."""
    mirror = GroupMirror(view, "orders", interval_s=0)
    yield mirror
    mirror.close()


def test_only_moved_positions_are_sent_and_those_of_a_close_at_once(view: Any) -> None:
    mirror = GroupMirror(view, "orders", interval_s=3600)
    mirror.show({TOPIC: 1, OTHER: 1})
    wait_until(lambda: len(view.sent) == 1, "the first positions are shown")
    for offset in (2, 3, 4):
        mirror.show({TOPIC: 1, OTHER: offset})
    mirror.close()
    mirror.close()
    assert view.sent == [{TOPIC: 1, OTHER: 1}, {OTHER: 4}], "the newest offsets win"


@pytest.mark.parametrize("how", ["refused", "failed", "raised"])
def test_a_failure_is_logged_once_and_the_positions_are_sent_again(
    how: str, view: View, mirror: GroupMirror, caplog: pytest.LogCaptureFixture
) -> None:
    view.answer = getattr(view, how)
    with caplog.at_level(logging.WARNING):
        mirror.show({TOPIC: 1})
        wait_until(lambda: len(view.sent) > 2, "it is tried again")
    assert len(caplog.records) == 1
    assert "only lag tools miss them" in caplog.text
    view.answer = view.fine
    mirror.show({TOPIC: 4})
    mirror.close()
    assert view.sent[-1] == {TOPIC: 4}


def test_a_returning_failure_is_logged_again(view: View, mirror: GroupMirror, caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([view.failed, view.refused, view.fine, view.failed, view.fine])
    view.answer = lambda: next(answers)()
    with caplog.at_level(logging.WARNING):
        mirror.show({TOPIC: 1})
        wait_until(lambda: len(view.sent) == 3, "the first positions are shown")
        mirror.show({TOPIC: 2})
        wait_until(lambda: len(view.sent) == 5, "the next positions are shown")
    assert len(caplog.records) == 2
    assert all("group orders" in record.getMessage() for record in caplog.records)


def test_an_answer_that_does_not_come_holds_nothing_up(
    view: View, mirror: GroupMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def hang() -> list[Any]:
        assert answered.wait(60)
        return view.fine()

    view.answer = hang
    for offset in (1, 2, 3):
        mirror.show({TOPIC: offset})
    monkeypatch.setattr("onceward.sources.kafka.control.mirror._LAST_S", 0.01)
    mirror.close()
    assert view.sent in ([{TOPIC: 1}], [{TOPIC: 2}], [{TOPIC: 3}])
    answered.set()
    wait_until(lambda: view.sent[-1] == {TOPIC: 3}, "the newest positions follow")


@pytest.mark.parametrize("last", ["refused", "failed", "raised"])
def test_a_failure_at_the_end_stops_no_reader(
    last: str, view: View, mirror: GroupMirror, caplog: pytest.LogCaptureFixture
) -> None:
    view.answer = getattr(view, last)
    with caplog.at_level(logging.WARNING):
        mirror.show({TOPIC: 1})
        mirror.close()
    assert view.sent[-1] == {TOPIC: 1}
    assert len(caplog.records) == 1
