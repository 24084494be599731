"""Pauses between attempts."""

import random
from collections.abc import Callable

import pytest

from onceward.common.backoff import Backoff, persist


def longest_of(_low: float, high: float) -> float:
    return high


def shortest_of(low: float, _high: float) -> float:
    return low


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(first=1.0, longest=10.0, chance=longest_of)
    assert [backoff.next() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    backoff.reset()
    assert [backoff.next() for _ in range(2)] == [1.0, 2.0]


def test_a_pause_is_between_half_and_all_of_it() -> None:
    backoff = Backoff(first=1.0, longest=10.0, chance=shortest_of)
    assert [backoff.next() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


@pytest.mark.parametrize("chance", [None, random.Random(7).uniform])
def test_processes_that_fail_together_do_not_come_back_together(chance: Callable[[float, float], float] | None) -> None:
    backoff = Backoff(first=10.0, longest=10.0, chance=chance)
    assert len({backoff.next() for _ in range(196)}) == 196


def test_a_pause_may_stay_the_same() -> None:
    backoff = Backoff(first=2.0, longest=2.0, chance=longest_of)
    assert [backoff.next(), backoff.next()] == [2.0, 2.0]


@pytest.mark.parametrize(("first", "longest"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_a_pause_that_would_be_a_hot_loop_is_refused(first: float, longest: float) -> None:
    with pytest.raises(ValueError, match="cannot grow"):
        Backoff(first=first, longest=longest)


def test_an_attempt_is_repeated_until_it_works_is_given_up_or_is_refused() -> None:
    errors = [TimeoutError("1"), TimeoutError("2")]
    heard: list[Exception] = []

    def attempt() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    def ask(give_up: bool) -> str | None:
        return persist(attempt, TimeoutError, heard.append, lambda: give_up, first=0.001, longest=0.001)

    assert ask(give_up=True) is None
    assert ask(give_up=False) == "done"
    assert [str(one) for one in heard] == ["1", "2"]
    errors.append(ValueError("refused"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="refused"):
        ask(give_up=False)
