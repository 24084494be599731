"""Judge a user's output: what completed checkpoints cover of the input against everything visible in the output.

Both are read once. Only digests of the records are kept, in files of a temporary directory; the judge gets the records
of keys that differ, one by one.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from onceward.connections.cluster import KafkaCluster
from onceward.operate.verify.cluster import ClusterView, Raw, read_range
from onceward.operate.verify.external_sort import COVERED, REPEATED, ExternalSort, Record, Side
from onceward.operate.verify.history import Content, Fed, History, Lane, Part, PartitionEnd, Visible
from onceward.operate.verify.judge import NOT_AT_LEAST_ONCE, judge, reported
from onceward.operate.verify.letters import LettersAtRest
from onceward.operate.verify.quiescence import Job, Look, Moment, deleted, steady_moment, unusable_input
from onceward.operate.verify.streams import Range, Ranges, ranges
from onceward.operate.verify.verdict import Breach, Grade, Property, Verification

__all__ = ["Asked", "Fates", "Output", "Progress", "Verified", "counted", "sample", "verify"]

Progress: TypeAlias = Callable[[str, int, int], None]
"""(what, passed, in total); 0 in total: it is not known."""

_SAMPLE = 20_000
"""Limit of records that are judged one by one; whole keys only."""
TOLD_EVERY = 20_000


class Output(Protocol):
    """What the job writes to, and what is expected there."""

    properties: frozenset[Property]
    """What can be judged of it."""
    by_order: Property
    """What is unknown for keys that come from several input partitions, because their records have no order."""

    def look(self, job: str) -> Look:
        """See what is open now. What is read later is what a reader sees now."""

    def gaps(self) -> Sequence[str]:
        """Say why not everything that was visible is visible still."""

    def expected(self, topic: str, key: bytes | None, value: bytes | None) -> Iterable[Record]:
        """Return the required records of an input record."""

    def sort(self, directory: Path) -> ExternalSort:
        """Return what compares the records."""

    def read(self, ends: Sequence[PartitionEnd], sort: ExternalSort, progress: Progress) -> Mapping[int, Lane]:
        """Add all visible records. Return the partitions by their index in the sort. ``ends``: from :meth:`look`."""

    def texts(self, contents: Collection[str]) -> Mapping[str, str]:
        """Return what to show people in place of these contents, as :meth:`ExternalSort.content` has them."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to compare."""

    source: KafkaCluster
    inputs: Sequence[str]
    output: Output
    from_earliest: bool = False
    """The job began at offset 0; otherwise its first checkpoint says where."""
    order: bool = True
    """Also compare the order per key."""
    at_least_once: bool = False
    """The job's sink promises only that nothing is lost."""
    letters: LettersAtRest | None = None
    """The job's dead letters; None if it has none."""
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
    fates: "Fates | None" = None
    """Of the records that completed checkpoints cover; None if none were read."""


@dataclass(kw_only=True)
class Fates:
    """Numbers of input records; one that was read again after a restore counts again."""

    written: int = 0
    """An effect is expected in the output."""
    filtered: int = 0
    """None is."""
    letters: int = 0

    @property
    def read(self) -> int:
        return self.written + self.filtered + self.letters


def verify(job: Job, asked: Asked, progress: Progress = lambda _what, _done, _all: None) -> Verified:
    """Compare, and judge.

    Raises KafkaException when a cluster does not answer, OncewardError when the coordinator or the output does not.
    """
    source, output = ClusterView(asked.source), asked.output
    properties = output.properties if asked.order else output.properties - {Property.ORDER}
    if asked.at_least_once:
        properties -= NOT_AT_LEAST_ONCE
    letters = asked.letters

    def look() -> Look:
        seen = output.look(job.name)
        return seen if letters is None else seen._replace(letters=letters.look())

    moment = steady_moment(job, look, asked.patience_s)
    covered = ranges(moment.reports, {})
    unusable_input(job, source, asked.inputs, covered, moment, from_earliest=asked.from_earliest)
    moment.gaps[Part.REST].extend([*output.gaps(), *(letters.gaps() if letters is not None else ())])
    if any(moment.gaps[part] for part in (Part.FED, Part.REST, Part.COORDINATOR)):
        # whatever the records are, no judgement is possible
        return Verified(verdict=judge(_history(job, moment), properties), checkpoint=moment.newest)
    with tempfile.TemporaryDirectory(prefix="onceward-verify-") as directory:
        sort = output.sort(Path(directory))
        try:
            if letters is not None:
                letters.read()
                moment.gaps[Part.REST].extend(letters.nameless)
            inputs, fates = _read_input(asked, source, covered, sort, progress)
            outputs = output.read(moment.ends, sort, progress)
            moment.gaps[Part.FED].extend(deleted(source.beginnings(asked.inputs), covered))
            fed, rest, judged = sample(output, sort, inputs, outputs)
        finally:
            sort.close()
    verdict = judge(replace(_history(job, moment), fed=fed, rest=rest), properties)
    if letters is not None:
        known = {lane: [(one.start, one.end) for one in each] for lane, each in covered.lanes.items()}
        verdict = _with_letters(verdict, letters.unexplained(known))
    return Verified(
        verdict=_with_unordered(verdict, output.by_order, sort.unordered if asked.order else 0),
        checkpoint=moment.newest,
        expected=sort.counts[Side.EXPECTED],
        visible=sort.counts[Side.VISIBLE],
        differing=sort.differing,
        judged=judged,
        fates=fates,
    )


def _with_letters(verdict: Verification, unexplained: Iterable[tuple[Property, Breach]]) -> Verification:
    breaches: dict[Property, list[Breach]] = defaultdict(list)
    for name, breach in unexplained:
        breaches[name].append(breach)
    results = dict(verdict.results)
    for name in breaches.keys() & results.keys():
        result = results[name]
        grade = Grade.UNKNOWN if result.grade is Grade.UNKNOWN else Grade.FAIL
        results[name] = replace(result, grade=grade, evidence=(*result.evidence, *reported(breaches[name])))
    return Verification(results=results)


def _history(job: Job, moment: Moment) -> History:
    gaps = {part: words for part, words in moment.gaps.items() if words}
    return History(job=job.name, fed=(), rest=(), reports=moment.reports, ends=moment.ends, open=moment.open, gaps=gaps)


def _with_unordered(verdict: Verification, by_order: Property, keys: int) -> Verification:
    order = verdict.results.get(by_order)
    if order is None or order.grade is Grade.FAIL or not keys:
        return verdict
    words = f"{keys} keys come from several input partitions, so the order of their records was not compared"
    unknown = replace(order, grade=Grade.UNKNOWN, evidence=(*order.evidence, words))
    return Verification(results={**verdict.results, by_order: unknown})


# -- reading


def _read_input(
    asked: Asked, source: ClusterView, covered: Ranges, sort: ExternalSort, progress: Progress
) -> tuple[dict[int, Lane], Fates]:
    """Read what completed checkpoints cover, range by range; then the records in no checkpoint, which must not be
    visible.

    Returns the partitions by their index in the sort, and the fates of the covered records.
    """
    fates = Fates()
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
        for one, done in counted(source.cluster, each, begun):
            for record in _effects(asked, one, fates, covered=bool(flags)):
                sort.add(Side.EXPECTED, record, lane=places[one.lane], offset=one.offset, flags=flags)
            if not done % TOLD_EVERY:
                progress("reading input", done, total)
        done = begun + sum(one.end - one.start for one in each.values())
        progress("reading input", done, total)
    return {place: lane for lane, place in places.items()}, fates


def _effects(asked: Asked, one: Raw, fates: Fates, *, covered: bool) -> Sequence[Record]:
    """Return the records that an input record must have in the output."""
    if not covered:
        try:
            return list(asked.output.expected(one.lane.topic, one.key, one.value))
        except Exception:
            if asked.letters is None:
                raise
            return ()  # it may become a letter
    if asked.letters is not None and asked.letters.takes(one):
        fates.letters += 1
        return ()
    effects = list(asked.output.expected(one.lane.topic, one.key, one.value))
    if effects:
        fates.written += 1
    else:
        fates.filtered += 1
    return effects


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


def counted(cluster: KafkaCluster, each: Mapping[Lane, Range], begun: int) -> Iterator[tuple[Raw, int]]:
    """Yield all records of the ranges, each with its number after ``begun``."""
    records = read_range(
        cluster, {lane: one.start for lane, one in each.items()}, {lane: one.end for lane, one in each.items()}
    )
    for number, one in enumerate(records, start=begun + 1):
        yield one, number


# -- differences


def sample(
    output: Output, sort: ExternalSort, inputs: Mapping[int, Lane], outputs: Mapping[int, Lane]
) -> tuple[Sequence[Fed], Sequence[Visible], int]:
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
    return *_readable(output, fed, sorted(rest)), judged


def _readable(output: Output, fed: Sequence[Fed], rest: Sequence[Visible]) -> tuple[Sequence[Fed], Sequence[Visible]]:
    """Put texts for people in place of digests, where there are any."""
    contents = {one.content for one in rest} | {content for one in fed for content in one.outputs}
    texts = output.texts({content.value for content in contents if content.value is not None}) if contents else {}

    def shown(content: Content) -> Content:
        return content._replace(value=texts.get(content.value or "", content.value))

    if not texts:
        return fed, rest
    return (
        [one._replace(outputs=tuple(map(shown, one.outputs))) for one in fed],
        [one._replace(content=shown(one.content)) for one in rest],
    )
