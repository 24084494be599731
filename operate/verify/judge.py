"""The judge: turns a recorded history into a verdict. Pure; shares no code with sources, sinks, pipeline and
coordinator.

A breach is FAIL only if everything that could explain it was recorded. A property is PASS only if everything that could
breach it was recorded. Everything between is UNKNOWN.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from onceward.operate.verify.decisions import broken_decisions, unsettled
from onceward.operate.verify.history import History, Lane, Part, shown
from onceward.operate.verify.matching import Inversion, Matched, match
from onceward.operate.verify.prefix import broken_prefixes
from onceward.operate.verify.streams import Streams, streams
from onceward.operate.verify.verdict import Breach, Grade, Property, Result, Verification

__all__ = ["AT_REST", "EVERYTHING", "NOT_AT_LEAST_ONCE", "judge", "reported"]

EVERYTHING = frozenset(Property)
AT_REST = EVERYTHING - {Property.PREFIX, Property.ONE_DECISION}
"""Properties that can be judged without watching the run."""
NOT_AT_LEAST_ONCE = frozenset({Property.NOTHING_TWICE, Property.NOTHING_UNDECIDED, Property.ORDER})
"""Properties that records written again without transactions break."""

_SHOWN = 5
"""Examples per kind of breach."""
_CLOCK_S = 0.002
"""Decisions are stored in whole milliseconds."""


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Breaches of one property."""

    certain: Iterable[Breach] = ()
    doubtful: Iterable[Breach] = ()
    """Breaches that another reading of the history does not have."""


def judge(history: History, asked: Collection[Property] = EVERYTHING) -> Verification:
    """Rule on each requested property. Coordinator and concurrent reader must have used the same clock."""
    laid = streams(history)
    matched = match(laid, history.rest)
    gaps = {part: list(words) for part, words in history.gaps.items()}
    if not history.reports:
        for part in (Part.COORDINATOR, Part.PAST):
            gaps.setdefault(part, []).append("no checkpoint was reported")
    if laid.ranges.gap:
        gaps.setdefault(Part.PAST, []).append(f"the checkpoints before {laid.ranges.gap} are known no longer")
    if laid.ranges.unknown:
        gaps.setdefault(Part.COORDINATOR, []).extend(laid.ranges.unknown)
    unreadable = [f"checkpoint {one.checkpoint} cannot be read" for one in history.reports if one.state == "unreadable"]
    if unreadable:
        gaps.setdefault(Part.COORDINATOR, []).extend(unreadable)
    watched = bool({Property.PREFIX, Property.ONE_DECISION} & set(asked))
    results = {}
    for name in Property:
        if name in asked:
            to_fail, to_pass = _needs(name, history, watched)
            found = _BREACHES[name](history, laid, matched)
            results[name] = _result(name, found, [gaps.get(part, ()) for part in to_fail], _missing(gaps, to_pass))
    return Verification(results=results)


def _needs(name: Property, history: History, watched: bool) -> tuple[set[Part], set[Part]]:
    """Return the parts that must be recorded to call the property broken, and to call it kept."""
    covered = {Part.COORDINATOR} if history.reports or not history.whole_input else set()
    watching = {Part.SEEN, Part.PAST} if watched else set()
    match name:
        case Property.NOTHING_LOST:
            return {Part.FED, Part.REST, *covered}, {Part.FED, Part.REST, *covered}
        case Property.NOTHING_TWICE:
            return {Part.FED, *covered}, {Part.FED, Part.REST, *covered}
        case Property.NOTHING_FOREIGN:
            return {Part.FED}, {Part.FED, Part.REST}
        case Property.NOTHING_UNDECIDED:
            return {Part.FED, *covered}, {Part.FED, Part.REST, *covered, *watching}
        case Property.ORDER:
            return {Part.FED, *covered}, {Part.FED, Part.REST, *covered}
        case Property.PREFIX:
            return {Part.FED, Part.SEEN, Part.REST, *covered}, {*Part} - {Part.END}
        case Property.ONE_DECISION:
            return set(), {Part.COORDINATOR, Part.PAST}
        case Property.EVERYTHING_SETTLED:
            return set(), {Part.COORDINATOR}
        case Property.NOTHING_OPEN:
            return set(), {Part.END}


def _missing(gaps: dict[Part, list[str]], parts: Collection[Part]) -> list[str]:
    return [
        f"{part.value} is not complete: {'; '.join(gaps[part][:_SHOWN])}"
        for part in Part
        if part in parts & gaps.keys()
    ]


def _result(name: Property, found: _Found, explained: list[Collection[str]], missing: list[str]) -> Result:
    certain, doubtful = reported(found.certain), reported(found.doubtful)
    if certain and not any(explained):
        grade = Grade.FAIL
    elif certain or doubtful or missing:
        grade = Grade.UNKNOWN
    else:
        grade = Grade.PASS
    return Result(
        property=name, grade=grade, evidence=(*certain, *doubtful, *(missing if grade is Grade.UNKNOWN else ()))
    )


def reported(breaches: Iterable[Breach]) -> list[str]:
    """Describe each kind of breach in each topic, with its count and its first examples."""
    kinds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in breaches:
        kinds[one.topic, one.kind].append(one.what)
    return [
        f"{topic}{': ' if topic else ''}{len(those)} {kind}, for example {'; '.join(those[:_SHOWN])}"
        for (topic, kind), those in kinds.items()
    ]


# -- breaches, property by property


def _lost(history: History, laid: Streams, matched: Matched) -> _Found:
    def certain() -> Iterator[Breach]:
        for place in matched.lost:
            yield Breach(place.content.topic, "records lost", str(place))
        if history.whole_input and history.reports:
            visible = {content for _, fed in matched.undecided for content in fed.outputs}
            for content, those in laid.uncovered.items():
                if content not in visible:
                    yield from (
                        Breach(
                            one.lane.topic,
                            "records in no completed checkpoint",
                            f"{one.lane} offset {one.offset}: {content}",
                        )
                        for one in those
                    )

    return _Found(certain=certain())


def _twice(_history: History, _laid: Streams, matched: Matched) -> _Found:
    return _Found(certain=(Breach(one.lane.topic, "records too many", str(one)) for one in matched.surplus))


def _foreign(_history: History, _laid: Streams, matched: Matched) -> _Found:
    def certain() -> Iterator[Breach]:
        for one, home in matched.misrouted:
            yield Breach(one.lane.topic, f"records belong to {home}", str(one))
        for one in matched.foreign:
            yield Breach(one.lane.topic, "unexpected records", str(one))

    return _Found(certain=certain())


def _undecided(history: History, laid: Streams, matched: Matched) -> _Found:
    hidden = (
        Breach(
            one.lane.topic,
            "records of no completed checkpoint are visible",
            f"{one}, from {fed.lane} offset {fed.offset}",
        )
        for one, fed in matched.undecided
    )
    seen = {(one.lane, one.offset): one.at for one in history.seen if one.at}
    early = [
        Breach(
            one.lane.topic,
            "records were visible before their checkpoint was decided",
            f"{one.lane} offset {one.offset} {(decided - at) * 1000:.0f} ms before checkpoint {place.checkpoint}",
        )
        for one, place in matched.found
        if (at := seen.get((one.lane, one.offset))) is not None
        and (decided := laid.decided_at.get(place.checkpoint)) is not None
        and at < decided - _CLOCK_S
    ]
    if matched.choices:
        return _Found(certain=hidden, doubtful=early)
    return _Found(certain=[*hidden, *early])


def _order(history: History, _laid: Streams, matched: Matched) -> _Found:
    certain, doubtful = _sorted("records out of order", matched.inversions)
    homes: dict[tuple[str, str | None], set[Lane]] = defaultdict(set)
    for one in history.rest:
        if one.content.key is not None:
            homes[one.lane.topic, one.content.key].add(one.lane)
    scattered = [
        Breach(topic, "keys in more than one partition, so they have no order", f"{shown(key)} in {_numbers(lanes)}")
        for (topic, key), lanes in homes.items()
        if len(lanes) > 1 and history.by_key
    ]
    return _Found(certain=[*certain, *scattered], doubtful=doubtful)


def _numbers(lanes: Collection[Lane]) -> str:
    return ", ".join(str(lane.partition) for lane in sorted(lanes))


def _prefix(history: History, _laid: Streams, matched: Matched) -> _Found:
    certain, doubtful = _sorted("records behind those of a later checkpoint", matched.early)
    return _Found(certain=[*broken_prefixes(history), *certain], doubtful=doubtful)


def _sorted(kind: str, inversions: Iterable[Inversion]) -> tuple[list[Breach], list[Breach]]:
    """Return certain inversions, and those that another choice among equal records might avoid."""
    both: tuple[list[Breach], list[Breach]] = ([], [])
    for one in inversions:
        both[one.chosen].append(Breach(one.later.lane.topic, kind, str(one)))
    return both


def _one_decision(history: History, _laid: Streams, _matched: Matched) -> _Found:
    return _Found(certain=broken_decisions(history.reports))


def _settled(history: History, _laid: Streams, _matched: Matched) -> _Found:
    return _Found(certain=unsettled(history.reports))


def _open(history: History, _laid: Streams, _matched: Matched) -> _Found:
    def certain() -> Iterator[Breach]:
        for name, state in history.open.items():
            yield Breach("", "transactions are still open", f"{name} ({state})")
        for one in history.ends:
            if one.high != one.stable:
                yield Breach(
                    one.lane.topic,
                    "partitions are held back from read_committed readers",
                    f"{one.lane}: the last {one.high - one.stable} offsets, {one.stable} to {one.high}",
                )

    return _Found(certain=certain())


_BREACHES: dict[Property, Callable[[History, Streams, Matched], _Found]] = {
    Property.NOTHING_LOST: _lost,
    Property.NOTHING_TWICE: _twice,
    Property.NOTHING_FOREIGN: _foreign,
    Property.NOTHING_UNDECIDED: _undecided,
    Property.ORDER: _order,
    Property.PREFIX: _prefix,
    Property.ONE_DECISION: _one_decision,
    Property.EVERYTHING_SETTLED: _settled,
    Property.NOTHING_OPEN: _open,
}
