"""The queries and their records. Pure.

A record is generated from its number: a key of 8 digits and a value of 92 bytes, which begins with the record's event
time, 13 digits of milliseconds since the epoch. Results do not depend on the time of a run, because the time is part
of the record.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from benchmarks.workloads import KEY_BYTES, RECORD_BYTES, Content

__all__ = [
    "LATE_MS",
    "TIME_DIGITS",
    "TRAILER",
    "WINDOW_MS",
    "QueryWorkload",
    "event_time_ms",
    "expected",
    "found",
    "outputs",
    "record",
    "trailer",
]

_BEGAN_MS = 1_700_000_000_000
"""Event time of record 0; the first window begins there."""
TIME_DIGITS = 13
WINDOW_MS = 10_000
LATE_MS = 10_000
"""A window is over when a record this much later than its end has come. Partitions are read at almost the same
pace, far less apart than this."""
TRAILER = b"trailer"
"""Key of the records that end the last window."""
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
    return _BEGAN_MS + number // _PER_MS


def record(number: int) -> tuple[bytes, bytes]:
    """Return key and value of input record ``number`` (from 0)."""
    return b"%0*d" % (KEY_BYTES, number % _KEYS), _value(event_time_ms(number))


def trailer(records: int) -> tuple[bytes, bytes]:
    """Return a record that ends all windows of records 0 to ``records`` - 1, if each partition gets one."""
    return TRAILER, _value(event_time_ms(records) + WINDOW_MS + 2 * LATE_MS)


def _value(time_ms: int) -> bytes:
    return (b"%0*d" % (TIME_DIGITS, time_ms)).ljust(RECORD_BYTES - KEY_BYTES, b"x")


def outputs(workload: QueryWorkload, records: int) -> dict[bytes, bytes]:
    """Return the expected last value of each output key for records 0 to ``records`` - 1 and the trailer."""
    counts: Counter[bytes] = Counter()
    for number in range(records):
        key = b"%0*d" % (KEY_BYTES, number % _KEYS)
        if workload is QueryWorkload.WINDOW_COUNT:
            key += b"@%d" % (event_time_ms(number) // WINDOW_MS * WINDOW_MS)
        counts[key] += 1
    return {key: b"%d" % count for key, count in counts.items()}


def expected(workload: QueryWorkload, records: int) -> Content:
    """Return the content of `outputs`."""
    return Content.of(key + b"=" + value for key, value in outputs(workload, records).items())


def found(workload: QueryWorkload, records: Iterable[tuple[bytes, bytes]]) -> Content:
    """Return the content of an output. A running count is as right as the last value of each key: how many updates a
    system writes is its own matter. Of the windows every record counts. The trailer's counts are not looked at."""
    if workload is QueryWorkload.RUNNING_COUNT:
        records = dict(records).items()
    return Content.of(key + b"=" + value for key, value in records if not key.startswith(TRAILER))
