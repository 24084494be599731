"""The demo's verdict: what was expected against what a read_committed reader sees. Pure; shares no code with the job.

Exactly once means, for every output topic: the same records the same number of times (multisets, byte for byte), and
within a key the order of the input. The run itself must also have been worth judging: kills happened as planned,
transactions were resumed and aborted, none is open, nothing holds a reader back.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from coordinator.dev.demo.expected import Expected, Record

__all__ = ["Facts", "Seen", "Verdict", "differences", "judge"]

_SHOWN = 5
"""Examples per kind of difference."""


class Seen(NamedTuple):
    """One record of an output topic as a read_committed reader got it. Readers get a partition's records in order."""

    partition: int
    offset: int
    record: Record


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What happened during the run, besides the records."""

    fed: int
    """Records that the feeder should have written."""
    arrived: int
    """Records in the input topic."""
    resumed: int
    """Transactions committed by another generation than the one that wrote them."""
    aborted: int
    """Transactions with records in an output topic that were aborted."""
    open: Sequence[str] = ()
    """Transactional ids of the job that are not at rest."""
    stalled: Mapping[str, int] = field(default_factory=dict)
    """Partition -> offsets that a read_committed reader cannot pass: high watermark - last stable offset, if not 0."""
    missing_kills: Sequence[str] = ()
    """Planned kills that did not happen."""
    troubles: Sequence[str] = ()
    """Everything else that makes the run void or wrong, in words."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`passed` only when there is no problem at all."""

    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.problems


def judge(expected: Expected, seen: Mapping[str, Iterable[Seen]], facts: Facts) -> Verdict:
    """Everything that is wrong, the worst first."""
    return Verdict(problems=(*differences(expected, seen), *_faults(facts)))


def differences(expected: Expected, seen: Mapping[str, Iterable[Seen]]) -> list[str]:
    """What differs between the expected and the seen records, in words, with the first examples of each kind."""
    problems: list[str] = []
    for topic in sorted({*expected, *seen}):
        problems += _topic_differences(topic, expected, list(seen.get(topic, ())))
    return problems


def _topic_differences(topic: str, expected: Expected, seen: list[Seen]) -> Iterator[str]:
    wanted = Counter(expected.get(topic, ()))
    got = Counter(one.record for one in seen)
    lost = wanted - got
    surplus = got - wanted
    if lost:
        yield f"{topic}: {lost.total()} records lost, for example {_examples(lost)}"
    doubled = Counter({record: count for record, count in surplus.items() if record in wanted})
    strangers = Counter({record: count for record, count in surplus.items() if record not in wanted})
    elsewhere = _homes(expected, strangers)
    misrouted = Counter({record: count for record, count in strangers.items() if record in elsewhere})
    unknown = strangers - misrouted
    if doubled:
        yield f"{topic}: {doubled.total()} records too many, for example {_examples(doubled)}"
    if misrouted:
        home = ", ".join(sorted({elsewhere[record] for record in misrouted}))
        yield f"{topic}: {misrouted.total()} records belong to {home}, for example {_examples(misrouted)}"
    if unknown:
        yield f"{topic}: {unknown.total()} records that nobody expects, for example {_examples(unknown)}"
    yield from _disorder(topic, expected.get(topic, ()), seen)


def _homes(expected: Expected, strangers: Counter[Record]) -> dict[Record, str]:
    """Where records belong that are not expected where they were found."""
    if not strangers:
        return {}
    return {record: topic for topic, records in expected.items() for record in records if record in strangers}


def _disorder(topic: str, expected: Sequence[Record], seen: Sequence[Seen]) -> Iterator[str]:
    """Within a key: one partition only, and each record after those that were before it in the input.

    Lost, doubled and unknown records are reported elsewhere: they are not disorder.
    """
    places: dict[Record, deque[int]] = defaultdict(deque)
    for place, record in enumerate(expected):
        places[record].append(place)
    partitions: dict[bytes | None, set[int]] = defaultdict(set)
    last: dict[bytes | None, tuple[int, Seen]] = {}
    inversions: list[str] = []
    for one in seen:
        key = one.record.key
        partitions[key].add(one.partition)
        if not (waiting := places.get(one.record)):
            continue
        place = waiting.popleft()
        if key in last and place < last[key][0]:
            before = last[key][1]
            inversions.append(
                f"key {_text(key)} partition {one.partition}: offset {one.offset} {_text(one.record.value)} "
                f"comes after offset {before.offset} {_text(before.record.value)}"
            )
        else:
            last[key] = (place, one)
    scattered = sorted(_text(key) for key, used in partitions.items() if len(used) > 1)
    if scattered:
        yield f"{topic}: keys in more than one partition, so they have no order: {', '.join(scattered[:_SHOWN])}"
    if inversions:
        yield f"{topic}: {len(inversions)} records out of order, for example {'; '.join(inversions[:_SHOWN])}"


def _faults(facts: Facts) -> Iterator[str]:
    yield from facts.troubles
    if facts.arrived != facts.fed:
        yield f"input: {facts.arrived} records arrived, {facts.fed} were to be fed"
    for kill in facts.missing_kills:
        yield f"planned kill did not happen: {kill}"
    if facts.resumed == 0:
        yield "no transaction was resumed: no completed checkpoint had to be committed by another generation"
    if facts.aborted == 0:
        yield "no transaction was aborted: no kill hit records that were written and not decided"
    if facts.open:
        yield f"{len(facts.open)} transactions are still open: {', '.join(facts.open[:_SHOWN])}"
    for partition, offsets in facts.stalled.items():
        yield f"{partition}: the last {offsets} offsets are held back from read_committed readers"


def _examples(records: Counter[Record]) -> str:
    return "; ".join(f"{_text(key)} {_text(value)}" for key, value in islice(records, _SHOWN))


def _text(part: bytes | None) -> str:
    return "null" if part is None else part.decode("utf-8", "backslashreplace")
