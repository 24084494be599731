"""How long the store took for its latest writes: within bounds of memory, however many they are."""

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from onceward.wire.rows import CommitTimes

__all__ = ["RecentCommits"]

_STEP_S = 60.0
_STEPS = 5
_PER_DOUBLING = 8
"""Classes in which a time is counted: the next one is 9 % longer."""
_LEAST_S = 1e-6


@dataclass
class _Step:
    begun: float
    counts: Counter[int] = field(default_factory=Counter)
    worst_s: float = 0.0


class RecentCommits:
    """The times of the last minutes. Use from one thread at a time.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = clock()
        self._steps: deque[_Step] = deque()

    def add(self, seconds: float) -> None:
        now = self._clock()
        if not self._steps or now - self._steps[-1].begun >= _STEP_S:
            self._steps.append(_Step(begun=now))
            self._forget(now)
        step = self._steps[-1]
        step.counts[math.ceil(math.log2(max(seconds, _LEAST_S)) * _PER_DOUBLING)] += 1
        step.worst_s = max(step.worst_s, seconds)

    def summary(self) -> CommitTimes:
        now = self._clock()
        self._forget(now)
        steps = list(self._steps)
        counts: Counter[int] = Counter()
        for step in steps:
            counts.update(step.counts)
        commits, worst_s = counts.total(), max((step.worst_s for step in steps), default=0.0)

        def within(share: float) -> timedelta | None:
            """The upper end of the class in which that share of the writes is complete."""
            left = math.ceil(share * commits)
            for each in sorted(counts):
                left -= counts[each]
                if left <= 0:
                    return timedelta(seconds=min(2.0 ** (each / _PER_DOUBLING), worst_s))
            return None

        return CommitTimes(
            commits=commits,
            median=within(0.5),
            p99=within(0.99),
            worst=timedelta(seconds=worst_s) if commits else None,
            window=timedelta(seconds=min(now - self._begun, _STEPS * _STEP_S)),
        )

    def _forget(self, now: float) -> None:
        while self._steps and now - self._steps[0].begun >= _STEPS * _STEP_S:
            self._steps.popleft()
