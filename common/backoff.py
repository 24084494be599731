"""Pauses between attempts: doubled each time, with jitter. All of Onceward's retries take their pauses from here.

Kafka's clients and gRPC reconnect on their own, with their own jitter; `onceward.connections.limits` and
`onceward.client.calls` set their pace.
"""

import random
from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """Seconds to wait before the next attempt: ``first``, doubled up to ``longest``. Each pause is random, between half
    and the full value, so that processes stopped by the same failure do not return at the same moment.

    :param chance: ``(low, high)`` -> a number between them; by default the process's own generator.
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
        """Start again at ``first``, after an attempt has worked."""
        self._next = self._first
