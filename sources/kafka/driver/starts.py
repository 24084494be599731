"""The ``start=``, ``reset=`` and ``end=`` of a Kafka source: meaning and validation. Pure."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias

__all__ = ["End", "Offsets", "Reset", "Start", "StartMode", "bound_text", "end_problems", "start_problems"]

Offsets: TypeAlias = Mapping[str, Mapping[int, int]]
"""Topic -> partition number -> offset."""

Start: TypeAlias = Literal["group", "earliest", "latest"] | datetime | Offsets
End: TypeAlias = Literal["latest"] | datetime | Offsets | None


class StartMode(StrEnum):
    GROUP = "group"
    """Offsets committed by the consumer group; ``reset`` for partitions without one."""
    EARLIEST = "earliest"
    LATEST = "latest"


class Reset(StrEnum):
    """Where a partition starts if neither the group nor the given offsets name it."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "error"
    """The job does not start."""


def start_problems(start: object, now: datetime) -> Iterator[str]:
    """Describe the problems of a ``start=``."""
    if isinstance(start, datetime):
        yield from _instant_problems("start", start, now)
    elif isinstance(start, Mapping):
        yield from _offset_problems("start", start)
    elif start not in tuple(StartMode):
        yield f"start: {start!r} is none of {', '.join(StartMode)}, a datetime, or offsets like {{'orders': {{0: 23}}}}"


def end_problems(end: object, now: datetime) -> Iterator[str]:
    """Describe the problems of an ``end=``."""
    if end is None or end == "latest":
        return
    if isinstance(end, datetime):
        yield from _instant_problems("end", end, now)
    elif isinstance(end, Mapping):
        yield from _offset_problems("end", end)
    else:
        yield f"end: {end!r} is none of 'latest', a datetime, or offsets like {{'orders': {{0: 23}}}}"


def bound_text(end: End) -> str | None:
    """Return a canonical text, one per meaning, stored with the ends that were resolved from it."""
    if end is None or isinstance(end, str):
        return end
    if isinstance(end, datetime):
        return end.astimezone(UTC).isoformat()
    return json.dumps({t: {str(p): end[t][p] for p in sorted(end[t])} for t in sorted(end)}, separators=(",", ":"))


def _instant_problems(name: str, instant: datetime, now: datetime) -> Iterator[str]:
    if instant.tzinfo is None:
        yield f"{name}: {instant.isoformat()} has no time zone; for example datetime(2026, 1, 31, tzinfo=UTC)"
    elif instant > now:
        yield f"{name}: {instant.isoformat()} lies in the future; it is resolved to offsets once, when the job starts"
    elif instant.timestamp() < 0:
        yield f"{name}: {instant.isoformat()} lies before 1970"


def _offset_problems(name: str, offsets: Mapping[Any, Any]) -> Iterator[str]:
    if not offsets:
        yield f"{name}: no topic is named"
    for topic, partitions in offsets.items():
        if not isinstance(topic, str) or not isinstance(partitions, Mapping):
            yield f"{name}: offsets look like {{'orders': {{0: 23}}}}, not {topic!r}: {partitions!r}"
            continue
        for number, offset in partitions.items():
            if not _is_count(number) or not _is_count(offset):
                yield f"{name}: partition {number!r} of {topic!r} at {offset!r}: both are whole numbers from 0"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
