"""Waiting for brokers, on clocks that tests can replace."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from onceward.common.backoff import Backoff

__all__ = ["Clock", "broker_backoff"]

_FIRST_S = 0.005
_LONGEST_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Wall clock for display and ages, monotonic seconds for timeouts, and a way to wait."""

    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))
    monotonic: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


def broker_backoff() -> Backoff:
    """Backoff between two rounds of control plane requests."""
    return Backoff(first=_FIRST_S, longest=_LONGEST_S)
