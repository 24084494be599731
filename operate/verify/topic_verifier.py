"""Judge a user's topics: what completed checkpoints cover of the input against everything visible in the output.

Both topics are read once. Only digests of the records are kept, in files of a temporary directory; the judge gets the
records of keys that differ, one by one.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from onceward.connections.cluster import KafkaCluster
from onceward.operate.verify.cluster import ClusterView, Raw, read_range
from onceward.operate.verify.external_sort import COVERED, REPEATED, ExternalSort, Record, Side
from onceward.operate.verify.history import Content, Fed, History, Lane, Part, Visible
from onceward.operate.verify.judge import AT_REST, NOT_AT_LEAST_ONCE, judge
from onceward.operate.verify.quiescence import Job, Moment, deleted, steady_moment, unusable_input
from onceward.operate.verify.streams import Range, Ranges, ranges
from onceward.operate.verify.verdict import Grade, Property, Verification

__all__ = ["Asked", "Expected", "Progress", "Verified", "verify"]

Expected: TypeAlias = Callable[[str, bytes | None, bytes | None], Iterable[Record]]
"""(input topic, key, value) -> the required output records, as (topic, key, value)."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""(what, offsets passed, offsets in total)."""

_SAMPLE = 20_000
"""Limit of records that are judged one by one; whole keys only."""
_TOLD_EVERY = 20_000


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to compare."""

    source: KafkaCluster
    inputs: Sequence[str]
    sink: KafkaCluster
    outputs: Sequence[str]
    expected: Expected
    from_earliest: bool = False
    """The job began at offset 0; otherwise its first checkpoint says where."""
    order: bool = True
    """Also compare the order per key."""
    at_least_once: bool = False
    """The job's sink promises only that nothing is lost."""
    patience_s: float = 30.0
    """Seconds to wait for a moment at which every completed checkpoint is settled and nothing is open."""


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The verdict, and figures for people."""

    verdict: Verification
    checkpoint: int
    """The last completed checkpoint."""
    expected: int = 0
    """Number of records."""
    visible: int = 0
    differing: int = 0
    """Keys whose records or order differ."""
    judged: int = 0
    """How many of these keys were judged record by record."""


def verify(job: Job, asked: Asked, progress: Progress = lambda _what, _done, _all: None) -> Verified:
    """Compare, and judge.

    Raises KafkaException when a cluster does not answer, OncewardError when the coordinator does not.
    """
    source, sink = ClusterView(asked.source), ClusterView(asked.sink)
    properties = AT_REST if asked.order else AT_REST - {Property.ORDER}
    if asked.at_least_once:
        properties -= NOT_AT_LEAST_ONCE
    moment = steady_moment(job, sink, asked.outputs, asked.patience_s)
    covered = ranges(moment.reports, {})
    unusable_input(job, source, asked.inputs, covered, moment, from_earliest=asked.from_earliest)
    moment.gaps[Part.REST].extend(f"topic {name} may be compacted" for name in sink.compacted(asked.outputs))
    starts = sink.beginnings(asked.outputs)
    moment.gaps[Part.REST].extend(f"{lane} is deleted below offset {at}" for lane, at in starts.items() if at)
    if any(moment.gaps[part] for part in (Part.FED, Part.REST, Part.COORDINATOR)):
        # whatever the records are, no judgement is possible
        return Verified(verdict=judge(_history(job, moment), properties), checkpoint=moment.newest)
    with tempfile.TemporaryDirectory(prefix="onceward-verify-") as directory:
        sort = ExternalSort(Path(directory), asked.outputs)
        try:
            inputs = _read_input(asked, source, covered, sort, progress)
            outputs = _read_output(asked, {one.lane: one.stable for one in moment.ends}, sort, progress)
            moment.gaps[Part.FED].extend(deleted(source.beginnings(asked.inputs), covered))
            fed, rest, judged = _sample(sort, inputs, outputs)
        finally:
            sort.close()
    verdict = judge(replace(_history(job, moment), fed=fed, rest=rest), properties)
    return Verified(
        verdict=_with_unordered(verdict, sort.unordered),
        checkpoint=moment.newest,
        expected=sort.counts[Side.EXPECTED],
        visible=sort.counts[Side.VISIBLE],
        differing=sort.differing,
        judged=judged,
    )


def _history(job: Job, moment: Moment) -> History:
    gaps = {part: words for part, words in moment.gaps.items() if words}
    return History(job=job.name, fed=(), rest=(), reports=moment.reports, ends=moment.ends, open=moment.open, gaps=gaps)


def _with_unordered(verdict: Verification, keys: int) -> Verification:
    order = verdict.results.get(Property.ORDER)
    if order is None or order.grade is Grade.FAIL or not keys:
        return verdict
    words = f"{keys} keys come from several input partitions, so the order of their records was not compared"
    unknown = replace(order, grade=Grade.UNKNOWN, evidence=(*order.evidence, words))
    return Verification(results={**verdict.results, Property.ORDER: unknown})


# -- reading


def _read_input(
    asked: Asked, source: ClusterView, covered: Ranges, sort: ExternalSort, progress: Progress
) -> dict[int, Lane]:
    """Read what completed checkpoints cover, range by range; then the records in no checkpoint, which must not be
    visible.

    Returns the partitions by their index in the sort.
    """
    ends = {one.lane: one.stable for one in source.ends(asked.inputs)}
    places = {lane: place for place, lane in enumerate(sorted(ends))}
    rounds = [
        (flags, {lane: one for lane, one in each.items() if one.end > one.start})
        for flags, each in _rounds(covered, source.beginnings(asked.inputs), ends)
    ]
    total = sum(one.end - one.start for _, each in rounds for one in each.values())
    done = 0
    for flags, each in rounds:
        begun = done
        for one, done in _counted(source.cluster, each, begun):
            for record in asked.expected(one.lane.topic, one.key, one.value):
                sort.add(Side.EXPECTED, record, lane=places[one.lane], offset=one.offset, flags=flags)
            if not done % _TOLD_EVERY:
                progress("reading input", done, total)
        done = begun + sum(one.end - one.start for one in each.values())
        progress("reading input", done, total)
    return {place: lane for lane, place in places.items()}


def _rounds(
    covered: Ranges, beginnings: Mapping[Lane, int], ends: Mapping[Lane, int]
) -> Iterator[tuple[int, dict[Lane, Range]]]:
    """Yield the ranges to read, with the flags of their records; more than one covered round only after a restore. What
    no checkpoint covers is read from where the log begins now."""
    merged: dict[Lane, list[Range]] = defaultdict(list)
    for lane, each in covered.lanes.items():
        for one in each:
            if merged[lane] and merged[lane][-1].end == one.start:
                merged[lane][-1] = Range(merged[lane][-1].start, one.end, 0)
            else:
                merged[lane].append(one)
    for number in range(max(map(len, merged.values()), default=0)):
        flags = COVERED | (REPEATED if number else 0)
        yield flags, {lane: each[number] for lane, each in merged.items() if number < len(each)}
    reached = {lane: max((one.end for one in merged.get(lane, ())), default=0) for lane in ends}
    yield 0, {lane: Range(max(reached[lane], beginnings[lane]), end, 0) for lane, end in ends.items()}


def _read_output(asked: Asked, ends: Mapping[Lane, int], sort: ExternalSort, progress: Progress) -> dict[int, Lane]:
    places = {lane: place for place, lane in enumerate(sorted(ends))}
    total = sum(ends.values())
    for one, done in _counted(asked.sink, {lane: Range(0, end, 0) for lane, end in ends.items()}, 0):
        record = (one.lane.topic, one.key, one.value)
        sort.add(Side.VISIBLE, record, lane=places[one.lane], offset=one.offset)
        if not done % _TOLD_EVERY:
            progress("reading output", done, total)
    progress("reading output", total, total)
    return {place: lane for lane, place in places.items()}


def _counted(cluster: KafkaCluster, each: Mapping[Lane, Range], begun: int) -> Iterator[tuple[Raw, int]]:
    records = read_range(
        cluster, {lane: one.start for lane, one in each.items()}, {lane: one.end for lane, one in each.items()}
    )
    for number, one in enumerate(records, start=begun + 1):
        yield one, number


# -- differences


def _sample(
    sort: ExternalSort, inputs: Mapping[int, Lane], outputs: Mapping[int, Lane]
) -> tuple[list[Fed], list[Visible], int]:
    """Return the records of differing keys that are judged one by one, and the number of these keys."""
    effects: dict[tuple[Lane, int], list[Content]] = defaultdict(list)
    rest: list[Visible] = []
    judged = taken = 0
    for each in sort.compare():
        if taken and taken + len(each.expected) + len(each.visible) > _SAMPLE:
            continue
        judged += 1
        taken += len(each.expected) + len(each.visible)
        for entry in each.expected:
            if not entry.flags & REPEATED:
                effects[inputs[entry.lane], entry.offset].append(sort.content(entry))
        rest += [Visible(outputs[one.lane], one.offset, sort.content(one)) for one in each.visible]
    fed = [Fed(lane, offset, tuple(contents)) for (lane, offset), contents in sorted(effects.items())]
    return fed, sorted(rest), judged
