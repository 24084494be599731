"""Breadth-first search through all worlds reachable within the bounds."""

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tests.explorer.budgets import Budgets
from tests.explorer.moves import Move, Moves
from tests.explorer.probes import probe
from tests.explorer.world import Bounds, SmallWorld
from tests.support.oracle import Invariant, Violation

__all__ = ["Broken", "Result", "explore"]

Label = tuple[object, ...]

_LONG = 500
"""More moves than any schedule without faults needs."""


class Broken(NamedTuple):
    """A counter-example."""

    violation: Violation
    path: tuple[Label, ...]
    """Labels of the moves; see ``report``."""


@dataclass(kw_only=True)
class Result:
    """The result of a search."""

    bounds: Bounds
    worlds: int = 0
    """Distinct situations."""
    states: int = 0
    """Situations with their remaining budgets; each was expanded once."""
    transitions: int = 0
    depth: int = 0
    coordinators: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    complete: bool = False
    """True when everything within the bounds was visited."""
    broken: Broken | None = None

    @property
    def violation(self) -> Violation | None:
        return self.broken.violation if self.broken is not None else None


def explore(
    bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    *,
    limit_states: int | None = None,
    progress: Callable[[Result], None] = lambda _result: None,
) -> Result:
    """Visit every state within ``bounds``. Stop at the first violation, which is one with the fewest moves.

    A state is a world and the set of budgets left on the paths that lead to it. A world is expanded again only for
    budgets that it was not expanded with before: everything else that can follow was found then, in no more moves.

    From every state, the schedule without further faults is followed to its end (``Moves.fair``). There, everything
    completed must be settled and no transaction open. Worlds known to end well are not followed again.

    :param limit_states: give up after this many states, with ``complete`` false.
    :param progress: called after each layer.
    """
    collecting = gc.isenabled()
    gc.disable()  # millions of tuples and no cycles: searching for cycles takes a third of the time
    try:
        return _Search(bounds, limit_states, progress).run()
    finally:
        if collecting:
            gc.enable()


class _Search:
    def __init__(self, bounds: Bounds, limit: int | None, progress: Callable[[Result], None]) -> None:
        self._moves = Moves(bounds)
        self._budgets = Budgets(bounds)
        self._limit = limit
        self._progress = progress
        self._result = Result(bounds=bounds)
        self._states: list[tuple[SmallWorld, int]] = []
        """Each world with its set of remaining budgets, as bits."""
        self._ways: list[list[tuple[int, int]]] = []
        """For each state: the states it was reached from, and with which budgets."""
        self._layer: dict[SmallWorld, int] = {}
        """The states of the next layer, by world."""
        self._seen: dict[SmallWorld, int] = {}
        """All budgets with which a world was ever reached."""
        self._good: set[SmallWorld] = set()
        self._probed: set[int] = set()
        self._found: Broken | None = None
        """A violation on a schedule without faults; reported unless a shorter one turns up."""
        self._began = time.monotonic()
        self._cpu_began = time.process_time()

    def run(self) -> Result:
        result = self._result
        self._visit(self._moves.start(), self._budgets.all, -1)
        done = 0
        while done < len(self._states):
            end, self._layer = len(self._states), {}
            if self._limit is not None and end > self._limit:
                return self._count()
            while done < end:
                if self._expand(done):
                    return self._count()
                done += 1
            self._progress(self._count())
            result.depth += 1
            if self._found is not None and len(self._found.path) <= result.depth:
                break
        result.broken = self._found
        result.complete = self._found is None
        return self._count()

    def _expand(self, state: int) -> bool:
        """Check a state and make all moves from it. True when an invariant is broken."""
        (world, left), result = self._states[state], self._result
        if self._broken_here(state, world):
            return True
        faults, spent = self._budgets.spent(left)
        for move in self._moves.of(world, faults=faults):
            result.transitions += 1
            if move.violation is not None:
                result.broken = self._tell(state, [move.label], move.violation)
                return True
            self._visit(move.world, spent[move.cost], state)
        return False

    def _visit(self, world: SmallWorld, left: int, before: int) -> None:
        seen = self._seen.get(world, 0)
        new = left & ~seen
        if not new:
            return
        self._seen[world] = seen | new
        state = self._layer.get(world)
        if state is None:
            self._layer[world] = len(self._states)
            self._states.append((world, new))
            self._ways.append([(before, new)])
        else:
            self._states[state] = (world, self._states[state][1] | new)
            self._ways[state].append((before, new))

    def _broken_here(self, state: int, world: SmallWorld) -> bool:
        """Run the checks that are made once per coordinator, and check that the world ends well without further
        faults."""
        coordinators = self._moves.coordinators
        if world.coordinator not in self._probed:
            self._probed.add(world.coordinator)
            said = coordinators.violations[world.coordinator]
            refused = probe(coordinators, world.coordinator) if said is None else None
            if refused is not None:
                self._result.broken = self._tell(state, [("probe", refused[0])], refused[1])
            elif said is not None:
                self._result.broken = self._tell(state, [], said)
        if self._result.broken is None and world not in self._good:
            self._follow(state, world)
        return self._result.broken is not None

    def _follow(self, state: int, world: SmallWorld) -> None:
        """Follow the schedule without faults until it reaches a world that ended well."""
        walked: dict[SmallWorld, Label] = {}
        violation: Violation | None = None
        while violation is None and world not in self._good:
            move = self._moves.fair(world)
            if move is None:
                violation = self._moves.unfinished(world)
                walked.setdefault(world, ("end",))
                break
            if world in walked or len(walked) > _LONG:  # or with ever new generations
                violation = Violation(Invariant.SETTLED, "without any fault it goes round for ever")
                break
            walked[world] = move.label
            violation, world = move.violation, move.world
        self._good.update(walked)
        if violation is not None:
            labels = [label for label in walked.values() if label != ("end",)]
            if violation.invariant is Invariant.SETTLED:
                self._result.broken = self._tell(state, labels, violation)
            elif self._found is None:  # the same violation is found move by move, perhaps on a shorter path
                self._found = self._tell(state, labels, violation)

    def _tell(self, state: int, last: Iterable[Label], violation: Violation) -> Broken:
        """The path to a state, followed by the last moves."""
        labels = list(last)[::-1]
        left = self._states[state][1] & -self._states[state][1]
        while True:
            before, _ = next(way for way in self._ways[state] if way[1] & left)
            if before < 0:
                return Broken(violation, tuple(labels[::-1]))
            move, left = self._step_back(before, self._states[state][0], left)
            labels.append(move.label)
            state = before

    def _step_back(self, before: int, world: SmallWorld, left: int) -> tuple[Move, int]:
        """The move from a state to a world that leaves the budget ``left``, and the budget before it."""
        budgets = self._states[before][1]
        faults, _ = self._budgets.spent(budgets)
        for move in self._moves.of(self._states[before][0], faults=faults):
            if move.world == world:
                for one in self._budgets.each(budgets):
                    if self._budgets.spent(one)[1][move.cost] & left:
                        return move, one
        raise AssertionError("a state was reached by no move")

    def _count(self) -> Result:
        result = self._result
        result.worlds, result.states = len(self._seen), len(self._states)
        result.coordinators = len(self._moves.coordinators)
        result.seconds = time.monotonic() - self._began
        result.cpu_seconds = time.process_time() - self._cpu_began
        return result
