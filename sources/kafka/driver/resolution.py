"""Turns ``start=``, ``reset=`` and ``end=``, and the bounds of ``format("onceward")``, into offsets, once, against the
live cluster."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from onceward.common.errors import ConfigurationError, HaltedError
from onceward.sources.kafka.control.metadata import BrokerView, insist
from onceward.sources.kafka.driver.options import EARLIEST, LATEST, Bound
from onceward.sources.kafka.driver.starts import End, Offsets, Reset, Start, StartMode
from onceward.sources.kafka.positions import Partition

__all__ = ["resolve_bound", "resolve_ends", "resolve_starts"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def resolve_starts(
    view: BrokerView, partitions: Collection[Partition], *, start: Start, reset: Reset, group: str
) -> dict[Partition, int]:
    """Return the offset to begin with, for each partition.

    Raises ConfigurationError if an argument does not fit the cluster, HaltedError if a committed offset points at
    records that are gone, CheckpointFailedError if the brokers do not answer.
    """
    # Requested first: a record that arrives between the requests lies after this end, so it is not missed.
    ends = insist(view.committed_ends, partitions)
    firsts = insist(view.log_starts, partitions)
    if isinstance(start, datetime):
        instant = milliseconds(start)
        at = insist(lambda wanted: view.first_at(wanted, instant), partitions)
        return {p: ends[p] if (offset := at[p]) is None else max(offset, firsts[p]) for p in partitions}
    if isinstance(start, Mapping):
        named = _named("start=", _flat(start), partitions)
        _refuse_outside("start=", named, firsts, insist(view.high_watermarks, named))
        return {**_reset(set(partitions) - named.keys(), reset, firsts, ends, "start= names no offset"), **named}
    match StartMode(start):
        case StartMode.EARLIEST:
            return firsts
        case StartMode.LATEST:
            return ends
        case StartMode.GROUP:
            committed = view.committed(group, partitions)
            _refuse_gone(group, committed, firsts, insist(view.high_watermarks, committed))
            why = f"group {group!r} has committed no offset"
            return {**_reset(set(partitions) - committed.keys(), reset, firsts, ends, why), **committed}


def resolve_ends(view: BrokerView, partitions: Collection[Partition], *, end: End) -> dict[Partition, int] | None:
    """Return each partition's exclusive bound; None for an unbounded source. Raises as :func:`resolve_starts`."""
    if end is None:
        return None
    if isinstance(end, Mapping):
        named = _named("end=", _flat(end), partitions)
        missing = sorted(set(partitions) - named.keys())
        if missing:
            raise ConfigurationError(
                f"end= names no offset for {_listed(missing)}, so the job would never finish. Nothing was read. "
                "Name every partition, or use end='latest'."
            )
        return named
    ends = insist(view.committed_ends, partitions)
    if end == "latest":
        return ends
    instant = milliseconds(end)
    at = insist(lambda wanted: view.first_at(wanted, instant), partitions)
    return {p: ends[p] if (offset := at[p]) is None else offset for p in partitions}


def resolve_bound(view: BrokerView, partitions: Collection[Partition], bound: Bound) -> dict[Partition, int]:
    """Return the bound's offset in each partition. Raises as :func:`resolve_starts`."""
    # Requested first: see resolve_starts.
    ends = insist(view.committed_ends, partitions)
    firsts = insist(view.log_starts, partitions)
    at = bound.at if isinstance(bound.at, Mapping) else dict.fromkeys(partitions, bound.at)
    named = _named(bound.option, at, partitions)
    missing = sorted(set(partitions) - named.keys())
    if missing:
        raise ConfigurationError(
            f"{bound.option} does not name {_listed(missing)}. Nothing was read. Name every partition that is read: an "
            f"offset, {EARLIEST} for earliest, or {LATEST} for latest."
        )
    if bound.times:
        return _at_times(view, named, bound, firsts, ends)
    words = {EARLIEST: firsts, LATEST: ends}
    offsets = {p: offset for p, offset in named.items() if offset not in words}
    _refuse_outside(bound.option, offsets, firsts, insist(view.high_watermarks, offsets))
    return {p: words[offset][p] if offset in words else offset for p, offset in named.items()}


def _at_times(
    view: BrokerView,
    times: Mapping[Partition, int],
    bound: Bound,
    firsts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> dict[Partition, int]:
    found: dict[Partition, int | None] = {}
    for instant in set(times.values()):
        found |= insist(partial(view.first_at, milliseconds=instant), [p for p in times if times[p] == instant])
    none = sorted(p for p, offset in found.items() if offset is None)
    if none and not bound.or_latest:
        raise ConfigurationError(
            f"{bound.option}: there is no record with that timestamp or a later one in {_listed(none)}. Nothing was "
            "read. Choose an earlier time, or set startingOffsetsByTimestampStrategy=latest to begin with new records."
        )
    return {p: ends[p] if offset is None else max(offset, firsts[p]) for p, offset in found.items()}


def milliseconds(instant: datetime) -> int:
    """Return ms since 1970, rounded up: a record is at or after an instant exactly if its whole milliseconds are."""
    return -((_EPOCH - instant) // timedelta(milliseconds=1))


def _flat(offsets: Offsets) -> dict[Partition, int]:
    return {Partition(topic, n): offset for topic, numbers in offsets.items() for n, offset in numbers.items()}


def _named(argument: str, named: Mapping[Partition, int], partitions: Collection[Partition]) -> dict[Partition, int]:
    unknown = sorted(named.keys() - set(partitions))
    if unknown:
        raise ConfigurationError(
            f"{argument} names partitions that do not exist: {_listed(unknown)}. Nothing was read. Correct {argument}."
        )
    return dict(named)


def _refuse_outside(
    argument: str, named: Mapping[Partition, int], firsts: Mapping[Partition, int], watermarks: Mapping[Partition, int]
) -> None:
    outside = [
        f"{p} at {offset} (its log is [{firsts[p]}, {watermarks[p]}))"
        for p, offset in sorted(named.items())
        if not firsts[p] <= offset <= watermarks[p]
    ]
    if outside:
        raise ConfigurationError(
            f"{argument} names offsets that are not in the log: {'; '.join(outside)}. Nothing was read. "
            f"Correct {argument}."
        )


def _refuse_gone(
    group: str, committed: Mapping[Partition, int], firsts: Mapping[Partition, int], watermarks: Mapping[Partition, int]
) -> None:
    gone = [
        f"{p} at {offset} (its log is [{firsts[p]}, {watermarks[p]}))"
        for p, offset in sorted(committed.items())
        if not firsts[p] <= offset <= watermarks[p]
    ]
    if gone:
        raise HaltedError(
            f"Group {group!r} committed offsets that are no longer in the log: {'; '.join(gone)}. Another start would "
            "skip or repeat records, so nothing was read. Choose the start: start='earliest', 'latest' or offsets."
        )


def _reset(
    partitions: Collection[Partition],
    reset: Reset,
    firsts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    why: str,
) -> dict[Partition, int]:
    match reset:
        case Reset.EARLIEST:
            return {p: firsts[p] for p in partitions}
        case Reset.LATEST:
            return {p: ends[p] for p in partitions}
        case Reset.ERROR if partitions:
            raise ConfigurationError(
                f"{why} for {_listed(sorted(partitions))}, and reset='error' forbids to choose. Nothing was read. "
                "Use reset='earliest' or 'latest', or name offsets."
            )
        case Reset.ERROR:
            return {}


def _listed(partitions: Collection[Partition]) -> str:
    shown = [str(p) for p in list(partitions)[:10]]
    more = len(partitions) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
