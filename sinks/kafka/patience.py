"""Waiting between attempts: exponential with jitter, on clocks that tests can replace."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

__all__ = ["Backoff", "Clock"]

_FIRST_S = 0.005
_LONGEST_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Wall clock for people and ages, monotonic seconds for time-outs, and a way to wait."""

    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))
    monotonic: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


class Backoff:
    """Seconds to wait before the next attempt: 5 ms, doubled up to 1 s, each between half and all of it, so that the
    processes which a broker's failure stopped together do not come back together."""

    def __init__(self) -> None:
        self._next = _FIRST_S

    def next(self) -> float:
        delay = self._next
        self._next = min(_LONGEST_S, delay * 2)
        return random.uniform(delay / 2, delay)
