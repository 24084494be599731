"""Each operator breaks exactly the place that it names, and for a while only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.mutants.breaking import Break, Field, always, both, within, wrapped


@dataclass(frozen=True)
class Account:
    balance: int

    @property
    def overdrawn(self) -> bool:
        return self.balance < 0

    def after(self, payment: int, fee: int = 1) -> "Account":
        return Account(self.balance - payment - fee)


def allowed(account: Account, payment: int, *, limit: int = 100) -> bool:
    return payment <= limit and not account.after(payment).overdrawn


def total(accounts: list[Account]) -> int:
    return sum(account.balance for account in accounts)


def spread(accounts: list[Account]) -> int:
    return max(one.balance for one in accounts) - min(one.balance for one in accounts)


imported_elsewhere = allowed

RICH, POOR = Account(50), Account(5)


@contextmanager
def broken(breaks: Break) -> Iterator[None]:
    """The product is whole before and afterwards."""
    assert (allowed(RICH, 20), allowed(POOR, 20), total([RICH, POOR])) == (True, False, 55)
    with breaks():
        yield
    assert (allowed(RICH, 20), allowed(POOR, 20), total([RICH, POOR])) == (True, False, 55)


def _refuses_small(original: Callable[..., bool], account: Account, payment: int, *, limit: int = 100) -> bool:
    return payment > 1 and original(account, payment, limit=limit)


def test_a_wrapper_runs_in_place_of_the_function_wherever_it_was_imported() -> None:
    with broken(wrapped(allowed, _refuses_small)):
        assert not imported_elsewhere(RICH, 1)
        assert imported_elsewhere(RICH, 20)
        assert not imported_elsewhere(RICH, 200)


def test_a_wrapped_method_keeps_its_defaults() -> None:
    with broken(wrapped(Account.after, lambda after, self, payment, fee=1: after(self, payment))):
        assert RICH.after(20) == Account(29)


def test_a_method_that_a_function_mentions_means_the_stand_in() -> None:
    with broken(within(allowed, Account.after, lambda self, payment, fee=1: self)):
        assert allowed(POOR, 20)
        assert POOR.after(20).overdrawn, "only inside the function"


def test_a_property_that_a_function_mentions_means_the_stand_in() -> None:
    with broken(within(allowed, Account.overdrawn, always(False))):
        assert allowed(POOR, 20)


def test_a_field_that_a_function_mentions_means_the_stand_in() -> None:
    with broken(within(total, Field(Account, lambda account: account.balance), lambda account: account.balance + 1)):
        assert total([RICH, POOR]) == 57


def test_a_name_that_a_function_mentions_means_the_stand_in() -> None:
    with broken(within(total, sum, max)):
        assert total([RICH, POOR]) == 50


def test_one_bug_can_have_several_places() -> None:
    with broken(both(within(allowed, Account.overdrawn, always(False)), wrapped(total, always(0)))):
        assert allowed(POOR, 20)
        assert total([RICH, POOR]) == 0


@pytest.mark.parametrize(
    ("breaks", "error"),
    [
        (within(total, max, min), "total mentions max 0 times, not once"),
        (
            within(spread, Field(Account, lambda account: account.balance), always(0)),
            "spread mentions balance 2 times, not once",
        ),
        (both(within(total, sum, max), within(total, sum, min)), "total is broken already"),
    ],
)
def test_a_bug_that_does_not_apply_exactly_once_is_out_of_date(breaks: Break, error: str) -> None:
    with pytest.raises(AssertionError, match=error), broken(breaks):
        pass
