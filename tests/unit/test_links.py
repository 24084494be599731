"""Broken links are logged at a bounded rate, with their start and what waits; their end is logged too."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from onceward.common.links import FORGET_AFTER_S, HELD_LOG_AFTER_S, HELD_LOG_EVERY_S, LOG_EVERY_S, MAX_LINKS, Links

BEGIN = datetime(2026, 5, 3, 12, 0, tzinfo=UTC)


class LoggedLinks:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 0.0
        self.links = Links(clock=lambda: self.now, wall=lambda: BEGIN + timedelta(seconds=self.now))
        self._caplog = caplog
        caplog.set_level(logging.INFO, "onceward.links")

    def lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> LoggedLinks:
    return LoggedLinks(caplog)


def test_a_broken_link_is_logged_at_once_repeated_and_its_end_logged(world: LoggedLinks) -> None:
    for second in range(61):
        world.now = second / 2
        world.links.failed("cluster 'main'", "timed out", waiting="4 EndTxn")
    world.now = 31.0
    world.links.worked("cluster 'main'")
    lines = world.lines()
    since = BEGIN.astimezone().isoformat("T", "seconds")
    first = f'event=link_down link="cluster \'main\'" since={since} waits="4 EndTxn" why="timed out"'
    assert lines[:-1] == [first] * 4
    assert lines[-1] == f"event=link_up link=\"cluster 'main'\" since={since} lasted_s=31.0"
    assert world.links.troubles() == ()


def test_the_end_of_what_a_log_says_is_in_the_same_log(world: LoggedLinks, caplog: pytest.LogCaptureFixture) -> None:
    """A program that configures no logging shows warnings only: a link must not look broken for ever there."""
    world.links.failed("coordinator", "refused", waiting="a call")
    world.links.worked("coordinator")
    for second in (0.0, HELD_LOG_AFTER_S):
        world.now = second
        world.links.failed("an open transaction", "producer 7", waiting="20 offsets", held=True)
    world.links.worked("an open transaction")
    world.links.failed("broker 3", "refused", waiting="a call")
    world.now += FORGET_AFTER_S + 1
    assert world.links.troubles() == ()
    said = [(record.getMessage().split()[0], record.levelname) for record in caplog.records]
    events = ("link_down", "link_up", "held_back", "held_no_more", "link_down", "link_unused")
    assert said == [(f"event={event}", "WARNING") for event in events]


def test_a_link_that_comes_and_goes_fills_no_log(world: LoggedLinks) -> None:
    for tenth in range(600):
        world.now = tenth / 10
        world.links.failed("coordinator", "refused", waiting="a call")
        world.links.worked("coordinator")
    assert len(world.lines()) <= 2 * 60 / LOG_EVERY_S + 2
    assert len(world.lines()) % 2 == 0, "each logged problem has a logged end"


def test_what_holds_back_for_a_moment_is_shown_and_not_logged_and_later_logged_now_and_then(world: LoggedLinks) -> None:
    def held() -> None:
        world.links.failed("an open transaction in orders-0 at offset 5", "producer 7", waiting="20 offsets", held=True)

    held()
    assert [(one.held, one.waiting) for one in world.links.troubles()] == [(True, "20 offsets")]
    world.links.worked("an open transaction in orders-0 at offset 5")
    assert world.lines() == []
    for second in range(0, 1200, 10):
        world.now = float(second)
        held()
    assert len(world.lines()) == 1 + (1200 - 60) // HELD_LOG_EVERY_S
    assert world.lines()[0].startswith('event=held_back link="an open transaction in orders-0 at offset 5" since=')
    world.links.worked("an open transaction in orders-0 at offset 5")
    assert world.lines()[-1].startswith("event=held_no_more ")


def test_news_is_logged_at_once(world: LoggedLinks) -> None:
    world.links.failed("coordinator", "refused", waiting="a call")
    world.links.failed("coordinator", "its certificate has expired", waiting="a call", news=True)
    assert [line.rpartition("why=")[2] for line in world.lines()] == ["refused", '"its certificate has expired"']


def test_listings_show_the_oldest_trouble_first_with_its_last_cause(world: LoggedLinks) -> None:
    world.links.failed("a", "refused", waiting="x")
    world.now = 5.0
    world.links.failed("b", "timed out", waiting="y")
    world.links.failed("a", "timed out", waiting="z")
    world.now = 7.0
    shown = [(one.link, one.for_s, one.why, one.waiting) for one in world.links.troubles()]
    assert shown == [("a", 7.0, "timed out", "z"), ("b", 2.0, "timed out", "y")]


def test_an_unused_link_is_forgotten_with_a_log_line(world: LoggedLinks) -> None:
    world.links.failed("broker 3", "refused", waiting="x")
    world.now = FORGET_AFTER_S + 1
    assert world.links.troubles() == ()
    assert 'event=link_unused link="broker 3"' in world.lines()[-1]
    world.links.worked("broker 3")
    assert len(world.lines()) == 2


def test_what_hangs_is_shown_like_what_holds_back_and_is_not_forgotten(world: LoggedLinks) -> None:
    world.links.hangs("orders.sink.1.0123abcd.0", "readers of out-0", "not authorized")
    (trouble,) = world.links.troubles()
    assert (trouble.held, trouble.waiting, trouble.why) == (True, "readers of out-0", "not authorized")
    assert "orders.sink.1.0123abcd.0" in trouble.link
    world.now = FORGET_AFTER_S + 1
    assert len(world.links.troubles()) == 1, "no look is due, and readers still wait"
    assert list(world.links.hanging) == ["orders.sink.1.0123abcd.0"]
    world.links.hangs_no_more("orders.sink.1.0123abcd.0", by_us=True)
    assert list(world.links.hanging) == []
    assert world.links.troubles() == ()
    assert world.links.finished == 1


def test_the_memory_of_broken_links_is_bounded(world: LoggedLinks) -> None:
    for number in range(10 * MAX_LINKS):
        world.links.failed(f"broker {number}", "refused", waiting="x")
    assert len(world.links.troubles()) == MAX_LINKS
