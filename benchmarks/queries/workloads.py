"""The queries and their records. Pure.

A record is generated from its number: a key of 8 digits and a value of 92 bytes, which begins with the record's event
time, 13 digits of milliseconds since the epoch. Results do not depend on the time of a run, because the time is part
of the record.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.workloads import KEY_BYTES, RECORD_BYTES, Content

__all__ = [
    "KEYS",
    "LATE_MS",
    "MATCH_MS",
    "RIGHT",
    "TIME_DIGITS",
    "TRAILER",
    "WINDOW_MS",
    "QueryWorkload",
    "event_time_ms",
    "expected",
    "found",
    "inputs",
    "last_needed",
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
MATCH_MS = 400
"""A record of the right topic matches one of the left with its key that is at most this much earlier. A key comes again
after a second, so each record has one match."""
_APART_MS = 100
"""Event time from a record of the left topic to its match."""
RIGHT = "-right"
"""Of a join's second topic: what follows the name of the first one."""
TRAILER = b"trailer"
"""Key of the records that end the last window."""
KEYS = 10_000
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
    JOIN = "join"
    """Inner join of two topics within a time; each record of one has its match in the other."""


def event_time_ms(number: int) -> int:
    """Return the event time of record ``number``."""
    return _BEGAN_MS + number // _PER_MS


def record(number: int) -> tuple[bytes, bytes]:
    """Return key and value of input record ``number`` (from 0)."""
    return _key(number), _value(event_time_ms(number))


def _left(number: int) -> tuple[bytes, bytes]:
    return _key(number), _value(event_time_ms(2 * number))


def _right(number: int) -> tuple[bytes, bytes]:
    return _key(number), _value(event_time_ms(2 * number) + _APART_MS)


def _joined(number: int) -> tuple[bytes, bytes]:
    at = event_time_ms(2 * number)
    return _key(number), b"%d-%d" % (at, at + _APART_MS)


def _key(number: int) -> bytes:
    return b"%0*d" % (KEY_BYTES, number % KEYS)


def inputs(workload: QueryWorkload) -> Mapping[str, Callable[[int], tuple[bytes, bytes]]]:
    """Return, by the end of each input topic's name, what makes its records. They share the records evenly."""
    return {"": _left, RIGHT: _right} if workload is QueryWorkload.JOIN else {"": record}


def last_needed(
    workload: QueryWorkload, keys: pa.Array, values: pa.Array
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return, of an output's records, the input's key, a count if there is one, else 0, and the number of the last
    record that the result needs, of all inputs together. Trailers' results are left out."""
    texts = keys.cast(pa.string())
    ours = pc.invert(pc.starts_with(texts, TRAILER.decode()))
    texts, results = texts.filter(ours), values.filter(ours).cast(pa.string())
    key = _integers(pc.utf8_slice_codeunits(texts, 0, KEY_BYTES))
    match workload:
        case QueryWorkload.RUNNING_COUNT:
            count = _integers(results)
            return key, count, (count - 1) * KEYS + key
        case QueryWorkload.WINDOW_COUNT:
            began = _integers(pc.utf8_slice_codeunits(texts, KEY_BYTES + 1))
            return key, _integers(results), (began + WINDOW_MS + LATE_MS - _BEGAN_MS) * _PER_MS
        case QueryWorkload.JOIN:
            at = _integers(pc.utf8_slice_codeunits(results, 0, TIME_DIGITS)) - _BEGAN_MS
            pairs_per_ms = _PER_MS // 2
            return key, np.zeros_like(key), 2 * (at * pairs_per_ms + key % pairs_per_ms) + 1
        case _:
            raise ValueError(f"{workload}: the result does not name its record")


def _integers(texts: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = texts.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers


def trailer(records: int) -> tuple[bytes, bytes]:
    """Return a record that ends all windows of records 0 to ``records`` - 1, if each partition gets one."""
    return TRAILER, _value(event_time_ms(records) + WINDOW_MS + 2 * LATE_MS)


def _value(time_ms: int) -> bytes:
    return (b"%0*d" % (TIME_DIGITS, time_ms)).ljust(RECORD_BYTES - KEY_BYTES, b"x")


def outputs(workload: QueryWorkload, records: int) -> Iterable[tuple[bytes, bytes]]:
    """Return the expected output for ``records`` in the input, besides trailers: every record, or of a running count
    the last value of each key."""
    if workload is QueryWorkload.JOIN:
        return map(_joined, range(records // 2))
    counts: Counter[bytes] = Counter()
    for number in range(records):
        key = _key(number)
        if workload is QueryWorkload.WINDOW_COUNT:
            key += b"@%d" % (event_time_ms(number) // WINDOW_MS * WINDOW_MS)
        counts[key] += 1
    return {key: b"%d" % count for key, count in counts.items()}.items()


def expected(workload: QueryWorkload, records: int) -> Content:
    """Return the content of `outputs`."""
    return Content.of(key + b"=" + value for key, value in outputs(workload, records))


def found(workload: QueryWorkload, records: Iterable[tuple[bytes, bytes]]) -> Content:
    """Return the content of an output. A running count is as right as the last value of each key: how many updates a
    system writes is its own matter. Of the windows every record counts. The trailer's counts are not looked at."""
    if workload is QueryWorkload.RUNNING_COUNT:
        records = dict(records).items()
    return Content.of(key + b"=" + value for key, value in records if not key.startswith(TRAILER))
