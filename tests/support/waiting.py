"""Waits for a condition that another thread, process or server brings about."""

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(condition: Callable[[], object], what: str, limit_s: float = 60.0) -> None:
    """Wait for a condition. Raises AssertionError with `what` when it does not come true within the limit."""
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, f"waited {limit_s:.0f} s in vain: {what}"
        time.sleep(0.01)
