"""Transaction timeouts. Runs on executors, too: standard library only."""

from datetime import timedelta
from typing import Final

__all__ = ["NEVER", "NEVER_MS", "as_milliseconds"]

NEVER_MS: Final = 2**31 - 1
"""The timeout of a transaction that the brokers never abort (KIP-939): they store and describe it with this number."""
NEVER: Final = timedelta(milliseconds=NEVER_MS)


def as_milliseconds(timeout: timedelta) -> int:
    return int(timeout / timedelta(milliseconds=1))
