"""What may still go wrong: sets of budgets as bits of a number.

A budget is one count per fault. The set that belongs to a state contains with a budget also all smaller ones, so that
sets can be compared and joined bit by bit.
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
        )
        self._values = list(product(*(range(count + 1) for count in most)))
        self._numbers = {value: number for number, value in enumerate(self._values)}
        self._spent: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.all = (1 << len(self._values)) - 1
        """The set that a path begins with."""

    def spent(self, left: int) -> tuple[int, tuple[int, ...]]:
        """Bits of the possible faults, and what is left after one of some faults (by their bits)."""
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
        """The budgets of a set as sets of one."""
        return [1 << number for number in range(len(self._values)) if left >> number & 1]

    def _less(self, left: int, fault: Fault) -> int:
        after = 0
        for number, value in enumerate(self._values):
            if left >> number & 1 and value[fault]:
                fewer = tuple(count - (kind == fault) for kind, count in enumerate(value))
                after |= 1 << self._numbers[fewer]
        return after
