"""The times of the latest writes: right within their bounds, and forgotten in time."""

import random

import pytest

from onceward.coordinator.service.commit_times import RecentCommits
from tests.support.manual_time import ManualTime


def test_half_99_percent_and_the_worst_are_right_within_a_tenth() -> None:
    time = ManualTime()
    recent, chance = RecentCommits(time.monotonic), random.Random(7)
    took = [chance.lognormvariate(-7, 1.5) for _ in range(10_000)]
    for one in took:
        time.now += 0.01
        recent.add(one)
    found = recent.summary()
    took.sort()
    assert found.commits == len(took)
    for share, shown in ((0.5, found.median), (0.99, found.p99)):
        assert shown is not None
        right = took[round(share * len(took)) - 1]
        assert right <= shown.total_seconds() + 1e-6 <= right * 1.1
    assert found.worst is not None
    assert found.worst.total_seconds() == pytest.approx(took[-1], abs=1e-6)
    assert found.window.total_seconds() == pytest.approx(100)


def test_without_a_write_times_are_unknown() -> None:
    found = RecentCommits(ManualTime().monotonic).summary()
    assert (found.commits, found.median, found.p99, found.worst) == (0, None, None, None)


def test_one_write_is_exact_and_none_takes_no_time() -> None:
    for took in (0.0, 0.0031, 40.0):
        recent = RecentCommits(ManualTime().monotonic)
        recent.add(took)
        found = recent.summary()
        assert found.worst is not None
        assert found.median == found.p99 == found.worst
        assert found.worst.total_seconds() == pytest.approx(took, abs=1e-6)


def test_a_slow_write_is_forgotten_after_five_minutes() -> None:
    time = ManualTime()
    recent = RecentCommits(time.monotonic)
    recent.add(3.0)
    time.now += 240
    recent.add(0.001)
    slow = recent.summary()
    assert (slow.commits, slow.worst is not None and slow.worst.total_seconds()) == (2, 3.0)
    time.now += 61
    later = recent.summary()
    assert (later.commits, later.worst is not None and later.worst.total_seconds()) == (1, 0.001)
    assert later.window.total_seconds() == 300
    time.now += 300
    assert recent.summary().commits == 0
