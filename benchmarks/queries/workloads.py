"""The queries and their records. Pure.

A record is generated from its number: a key of 8 digits and a value of 92 bytes, which begins with the record's event
time, 13 digits of milliseconds since the epoch. Results do not depend on the time of a run, because the time is part
of the record.
"""

from enum import StrEnum

from benchmarks.workloads import KEY_BYTES, RECORD_BYTES

__all__ = ["BEGAN_MS", "TIME_DIGITS", "WINDOW_MS", "QueryWorkload", "event_time_ms", "record"]

BEGAN_MS = 1_700_000_000_000
"""Event time of record 0; the first window begins there."""
TIME_DIGITS = 13
WINDOW_MS = 10_000
_KEYS = 10_000
_PER_MS = 20
"""Records per millisecond of event time: 20,000 per second, as the load sends them."""


class QueryWorkload(StrEnum):
    """The measured queries."""

    COPY = "copy"
    """No state: keys and values as they are."""
    WINDOW_COUNT = "window-count"
    """Count per key and window of event time; append: each window once, when the watermark has passed its end."""
    RUNNING_COUNT = "running-count"
    """Count per key; update: each batch writes the counts that it has changed."""


def event_time_ms(number: int) -> int:
    """Return the event time of record ``number``."""
    return BEGAN_MS + number // _PER_MS


def record(number: int) -> tuple[bytes, bytes]:
    """Return key and value of input record ``number`` (from 0)."""
    time = b"%0*d" % (TIME_DIGITS, event_time_ms(number))
    return b"%0*d" % (KEY_BYTES, number % _KEYS), time.ljust(RECORD_BYTES - KEY_BYTES, b"x")
