"""Pauses between attempts: doubled each time, with jitter. The one place where retries of ours get their pauses.

Kafka's clients and gRPC reconnect by themselves, with jitter of their own; `onceward.connections.limits` and
`onceward.coordinator.client.calls` say how fast.
"""

import random
from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """Seconds to wait before the next attempt: ``first``, doubled up to ``longest``, each between half and all of it,
    so that the processes which one failure stopped together do not come back together.

    :param chance: ``(low, high)`` -> a number between them; the process's own generator unless a test says otherwise.
    """

    def __init__(self, *, first: float, longest: float, chance: Callable[[float, float], float] | None = None) -> None:
        if not 0 < first <= longest:
            raise ValueError(f"a pause of {first} s cannot grow to {longest} s")
        self._first = first
        self._longest = longest
        self._next = first
        self._chance = chance

    def next(self) -> float:
        pause = self._next
        self._next = min(self._longest, pause * 2)
        return (self._chance or random.uniform)(pause / 2, pause)

    def reset(self) -> None:
        """An attempt has worked."""
        self._next = self._first
