from datetime import UTC, datetime, timedelta

import pytest

from onceward.common.readable import age, count, duration

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.34, "340 ms"),
        (0.9996, "1 s"),
        (3.4, "3 s"),
        (59.6, "1 min"),
        (120, "2 min"),
        (3899, "1 h 4 min"),
        (3900, "1 h 5 min"),
        (7200, "2 h"),
        (100_000, "1 d 3 h"),
        (-3, "-3 s"),
    ],
)
def test_a_duration_has_the_units_that_matter(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_an_age_is_never_in_the_future() -> None:
    assert age(NOW - timedelta(seconds=3), NOW) == "3 s ago"
    assert age(NOW + timedelta(seconds=3), NOW) == "0 ms ago"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (950, "950"), (12_345, "12.3 k"), (999_999, "1.0 M"), (1_234_567, "1.2 M"), (-5_000, "-5.0 k")],
)
def test_a_count_has_a_digit_after_the_point(number: int, text: str) -> None:
    assert count(number) == text
