"""Which faults may still happen: sets of budgets as bits of a number.

A budget is one count per fault. With each budget, the set of a state contains all smaller ones, so that sets can be
compared and joined bitwise.
"""

from itertools import product

from tests.explorer.world import Bounds, Fault

__all__ = ["Budgets"]


class Budgets:
    """All budgets within the bounds."""

    def __init__(self, bounds: Bounds) -> None:
        most = (
            bounds.crashes,
            bounds.messages,
            bounds.store,
            bounds.declines,
            bounds.timeouts,
            bounds.idles,
            bounds.requests,
            bounds.losses,
            bounds.takeovers,
            bounds.promotions,
        )
        self._values = list(product(*(range(count + 1) for count in most)))
        self._numbers = {value: number for number, value in enumerate(self._values)}
        self._spent: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.all = (1 << len(self._values)) - 1
        """The set at the start of a path."""

    def spent(self, left: int) -> tuple[int, tuple[int, ...]]:
        """The possible faults as bits, and the remaining set after one of some faults, indexed by their bits."""
        found = self._spent.get(left)
        if found is None:
            after = [left, *[0] * ((1 << len(Fault)) - 1)]
            for faults in range(1, len(after)):
                lowest = faults & -faults
                less = self._less(left, Fault(lowest.bit_length() - 1)) if lowest == faults else after[lowest]
                after[faults] = less | (after[faults ^ lowest] if lowest != faults else 0)
            found = self._spent[left] = (sum(1 << fault for fault in Fault if after[1 << fault]), tuple(after))
        return found

    def each(self, left: int) -> list[int]:
        """The budgets of a set, each as a set of its own."""
        return [1 << number for number in range(len(self._values)) if left >> number & 1]

    def _less(self, left: int, fault: Fault) -> int:
        after = 0
        for number, value in enumerate(self._values):
            if left >> number & 1 and value[fault]:
                fewer = tuple(count - (kind == fault) for kind, count in enumerate(value))
                after |= 1 << self._numbers[fewer]
        return after
