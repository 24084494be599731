"""Aging transactions are reported in time, once per stage."""

import logging
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from onceward.driver.journal import Journal
from onceward.driver.runtime import Threads
from onceward.driver.transaction_age import Ages, good_for
from onceward.protocol.committing import Age
from onceward.protocol.values import Committable
from tests.support.documents import committable


class Clock(Threads):
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class System:
    """Each committable's transaction began at the clock time that equals its slot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def age(self, committable: Committable) -> Age:
        began = timedelta(seconds=committable.slot)
        return Age(
            transaction=f"t{committable.slot}",
            open_for=timedelta(seconds=self._clock.now) - began,
            timeout=timedelta(seconds=100),
        )


class Events(Journal):
    def __init__(self, kept: list[tuple[str, dict[str, Any]]]) -> None:
        super().__init__("orders")
        self._kept = kept

    def log(self, event: str, **facts: Any) -> None:
        self._kept.append((event, facts))


class Watched:
    def __init__(self) -> None:
        self.clock = Clock()
        self.committer = System(self.clock)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.ages: Any = Ages(self._ages, Events(self.events), self.clock)
        self.held: tuple[Committable, ...] = ()

    def _ages(self, held: Any) -> Iterable[Age]:
        return filter(None, map(self.committer.age, held))

    def at(self, seconds: float) -> None:
        self.clock.now = seconds
        self.ages.look(lambda: self.held)


def transaction(began: int) -> Committable:
    return committable(began)


@pytest.fixture
def reported(caplog: pytest.LogCaptureFixture) -> Iterator[list[tuple[int, str]]]:
    found: list[tuple[int, str]] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                found.append((record.levelno, record.getMessage().split(".")[0]))

    collector = Collector()
    logger = logging.getLogger("onceward.pipeline")
    logger.addHandler(collector)
    yield found
    logger.removeHandler(collector)


def test_half_of_the_timeout_warns_and_nine_tenths_are_an_error_each_once(reported: list[tuple[int, str]]) -> None:
    watched = Watched()
    watched.held = (transaction(0), transaction(1))
    watched.at(49.0)
    assert reported == []
    watched.at(51.0)
    watched.at(60.0)
    assert reported == [(logging.WARNING, "2 pre-committed transactions have used 50 % of their timeout: t0, t1")]
    watched.at(90.5)
    watched.at(95.0)
    assert reported[1:] == [
        (logging.ERROR, "1 pre-committed transactions have used 90 % of their timeout: t0"),
        (logging.ERROR, "1 pre-committed transactions have used 90 % of their timeout: t1"),
    ]


def test_a_transaction_settled_in_time_is_not_reported(reported: list[tuple[int, str]]) -> None:
    watched = Watched()
    watched.held = (transaction(0),)
    watched.at(10.0)
    watched.held = (transaction(30),)
    watched.at(70.0)
    assert reported == []


def test_it_looks_at_most_once_a_second() -> None:
    watched = Watched()
    looks = []

    def held() -> tuple[Committable, ...]:
        looks.append(watched.clock.now)
        return ()

    for moment in (1.0, 1.5, 1.9, 2.1, 2.2):
        watched.clock.now = moment
        watched.ages.look(held)
    assert looks == [1.0, 2.1]


def test_transactions_of_this_process_age_by_its_monotonic_clock(reported: list[tuple[int, str]]) -> None:
    """The wall clock is an hour ahead of the brokers' clocks."""
    watched = Watched()
    ahead = transaction(-3600)
    watched.held = (ahead,)
    watched.clock.now = 10.0
    age = watched.committer.age(ahead)
    assert age.open_for > timedelta(hours=1)
    watched.ages.began([age], 5.0)
    watched.at(20.0)
    assert reported == []
    oldest = watched.ages.oldest(lambda: watched.held)
    assert oldest is not None
    assert oldest.open_for == timedelta(seconds=15)
    watched.at(60.0)
    assert [level for level, _ in reported] == [logging.WARNING]


def test_a_stage_is_one_event_for_all_and_its_log_line_names_ten(reported: list[tuple[int, str]]) -> None:
    watched = Watched()
    watched.held = tuple(transaction(began) for began in range(10))
    watched.at(59.0)
    watched.held += (transaction(100),)
    watched.at(60.0)
    watched.held = tuple(transaction(began) for began in range(20, 31))
    watched.at(81.0)
    assert watched.events == [
        ("transaction ages", {"used_percent": 50, "transactions": 10}),
        ("transaction ages", {"used_percent": 50, "transactions": 11}),
    ]
    assert [text.rpartition(", ")[2] for _, text in reported] == ["t9", "t29 and others"]


def test_what_this_process_began_earlier_keeps_its_clock_when_it_begins_more(reported: list[tuple[int, str]]) -> None:
    watched = Watched()
    first, second = transaction(-3600), transaction(-7200)
    for moment, begun in ((1.0, first), (2.0, second)):
        watched.clock.now = moment
        watched.ages.began([watched.committer.age(begun)], moment)
    watched.held = (first, second)
    watched.at(20.0)
    assert reported == []
    oldest = watched.ages.oldest(lambda: watched.held)
    assert oldest is not None
    assert (oldest.transaction, oldest.open_for) == ("t-3600", timedelta(seconds=19))


def test_a_checkpoint_leaves_a_tenth_of_the_shortest_timeout_and_at_most_a_minute() -> None:
    assert good_for([]) is None
    assert good_for([timedelta(minutes=15), timedelta(minutes=2)]) == 108.0
    assert good_for([timedelta(minutes=15)]) == 840.0
