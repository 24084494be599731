"""Valid values of ``start=`` and ``end=``, and the text of an end, which never changes."""

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from onceward.sources.kafka.driver.starts import bound_text, end_problems, start_problems

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TINY = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OFFSETS = {"orders": {0: 0, 1: 2**63 - 1}, "bills": {0: 5}}


def problems(given: Any) -> list[str]:
    """Return the problems of a start; an end has the same, apart from the words that only one of them accepts."""
    start = list(start_problems(given, NOW))
    end = list(end_problems(given, NOW))
    assert all(each.startswith("start: ") for each in start)
    assert all(each.startswith("end: ") for each in end)
    if not isinstance(given, str):
        assert [each.split()[1:3] for each in start] == [each.split()[1:3] for each in end]
    return start


@pytest.mark.parametrize("fine", [NOW, NOW - TINY, EPOCH, EPOCH + TINY, OFFSETS], ids=repr)
def test_instants_until_now_and_offsets_are_fine_for_both(fine: Any) -> None:
    assert problems(fine) == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (NOW + TINY, ["in the future"]),
        (NOW.replace(tzinfo=None), ["no time zone"]),
        (EPOCH - TINY, ["before 1970"]),
        ({}, ["no topic"]),
        ({3: {0: 1}}, ["not 3: {0: 1}"]),
        ({"orders": 5}, ["not 'orders': 5"]),
        ({"orders": {-1: 1, 0: -2}}, ["partition -1 of 'orders' at 1", "partition 0 of 'orders' at -2"]),
        ({"orders": {True: 1, 0: False}}, ["partition True of", "of 'orders' at False"]),
        ({"orders": {1.0: 1, 0: "4"}}, ["partition 1.0 of", "at '4'"]),
        ({"orders": {0: 2**63, 2**63: 0}}, [f"at {2**63}:", f"partition {2**63} of"]),
        ({"bad": 5, "orders": {0: -1}, "worse": []}, ["'bad'", "at -1", "'worse'"]),
        (7, ["7 is none of"]),
    ],
    ids=repr,
)
def test_everything_that_is_wrong_is_named(given: Any, named: list[str]) -> None:
    found = problems(given)
    assert len(found) == len(named)
    assert all(name in each for name, each in zip(named, found, strict=True))


def test_each_value_parses_its_own_text() -> None:
    for word in ("group", "earliest", "latest"):
        assert list(start_problems(word, NOW)) == []
    assert list(end_problems("latest", NOW)) == []
    assert list(end_problems(None, NOW)) == []
    (said,) = start_problems("end", NOW)
    assert "'end' is none of group, earliest, latest, " in said
    (said,) = end_problems("earliest", NOW)
    assert "'earliest' is none of 'latest', " in said


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (None, None),
        ("latest", "latest"),
        (NOW.astimezone(timezone(timedelta(hours=2))), "2026-01-01T12:00:00+00:00"),
        ({"b": {1: 2, 0: 5}, "a": {10: 1, 9: 3}}, '{"a":{"9":3,"10":1},"b":{"0":5,"1":2}}'),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "XXX-9"])
def test_the_text_of_an_end_is_stored_and_never_changes(
    end: Any, text: str | None, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose stored text differs takes its end for a new one, also on a machine in another time zone."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        said = bound_text(end)
    time.tzset()
    assert said == text
