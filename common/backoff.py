"""Pauses between attempts: doubled each time, with jitter. All of Onceward's retries take their pauses from here.

Kafka's clients and gRPC reconnect on their own, with their own jitter; `onceward.connections.limits` and
`onceward.client.calls` set their pace.
"""

import random
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Backoff", "persist"]

_Done = TypeVar("_Done")
_Error = TypeVar("_Error", bound=Exception)


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


def persist(
    attempt: Callable[[], _Done],
    passes: type[_Error] | tuple[type[_Error], ...],
    failed: Callable[[_Error], None],
    give_up: Callable[[], bool],
    *,
    first: float = 0.05,
    longest: float,
) -> _Done | None:
    """Return what ``attempt`` returns; call it again as long as it raises ``passes``; None if ``give_up()`` ends that.

    :param failed: called with each such error; it may raise one that does not pass.
    :param first: seconds of the first pause, of at most ``longest``.
    """
    backoff = Backoff(first=first, longest=longest)
    while True:
        try:
            return attempt()
        except passes as error:
            failed(error)
        if give_up():
            return None
        time.sleep(backoff.next())
