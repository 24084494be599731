"""The demo's verdict: expected output against what a read_committed reader sees. Pure; shares no code with the job.

Exactly once means, for every output topic: the same records the same number of times (multisets, byte for byte), and
input order within a key; the judge of ``onceward verify`` decides that. The run must also be meaningful: kills happened
as planned, transactions were resumed and aborted, none is open, and no offset is held back from readers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onceward.dev.demo.expected import Expected, Record
from onceward.dev.demo.topics import DELAYED, JOB, TABLE
from onceward.operate.verify import Content, Fed, Grade, History, Lane, Property, Visible, digest
from onceward.operate.verify import judge as judged

__all__ = ["DemoResult", "Facts", "Seen", "differences", "judge"]

_SHOWN = 5
"""Number of examples per kind of fault."""
_READABLE = 1_000
"""Bytes of a flight that are shown verbatim."""
_RECORDS = (Property.NOTHING_LOST, Property.NOTHING_TWICE, Property.NOTHING_FOREIGN)


class Seen(NamedTuple):
    """One record of an output topic as a read_committed reader received it; partitions are read in order."""

    partition: int
    offset: int
    record: Record


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the run, besides the records."""

    fed: int
    """Records that the feeder was to write."""
    arrived: int
    """Records in the input topic."""
    resumed: int
    """Transactions committed by another generation than the one that wrote them."""
    aborted: int
    """Transactions with records in an output topic that were aborted."""
    open: Sequence[str] = ()
    """Transactional ids of the job whose transaction has not ended."""
    stalled: Mapping[str, int] = field(default_factory=dict)
    """Partition -> offsets that a read_committed reader cannot pass: high watermark - last stable offset, if not 0."""
    left_behind: Sequence[str] = ()
    """Data files in the table's directory that the table does not have."""
    missing_kills: Sequence[str] = ()
    """Planned kills that did not happen."""
    troubles: Sequence[str] = ()
    """Other reasons why the run is void or wrong, as text."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """`passed` only if there is no problem."""

    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.problems


def judge(expected: Expected, seen: Mapping[str, Iterable[Seen]], rows: Sequence[Record], facts: Facts) -> DemoResult:
    """Return all problems, the worst first. ``rows``: of the table, which must be the records of the topic of delays
    without their keys, in any order."""
    wanted = {TABLE: [Record(None, record.value) for record in expected[DELAYED]]}
    found = {TABLE: [Seen(0, place, row) for place, row in enumerate(rows)]}
    return DemoResult(
        problems=(*differences(expected, seen), *differences(wanted, found, ordered=False), *_faults(facts))
    )


def differences(expected: Expected, seen: Mapping[str, Iterable[Seen]], *, ordered: bool = True) -> list[str]:
    """Describe how expected and seen records differ, with the first examples of each kind."""
    verdict = judged(_history(expected, seen), (*_RECORDS, Property.ORDER) if ordered else _RECORDS)
    results = (result for result in verdict.results.values() if result.grade is not Grade.PASS)
    return [problem for result in results for problem in result.evidence]


def _history(expected: Expected, seen: Mapping[str, Iterable[Seen]]) -> History:
    """Build the input of ``onceward verify``'s judge. Order is promised per key, so each key has its own lane."""
    contents: dict[tuple[str, Record], Content] = {}

    def content(topic: str, record: Record) -> Content:
        known = contents.get((topic, record))
        if known is None:
            key, value = digest(record.key, readable=_READABLE), digest(record.value, readable=_READABLE)
            known = contents[topic, record] = Content(topic, key, value)
        return known

    lanes: dict[tuple[str, bytes | None], Lane] = {}
    fed = []
    for topic, records in expected.items():
        for place, record in enumerate(records):
            of_key = Lane(f"the data set for {topic}, key {_text(record.key)}", 0)
            lane = lanes.setdefault((topic, record.key), of_key)
            fed.append(Fed(lane, place, (content(topic, record),)))
    rest = [
        Visible(Lane(topic, one.partition), one.offset, content(topic, one.record))
        for topic, records in seen.items()
        for one in records
    ]
    return History(job=JOB, fed=fed, rest=rest, whole_input=True)


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
    if facts.left_behind:
        yield f"{len(facts.left_behind)} files of no checkpoint are left: {', '.join(facts.left_behind[:_SHOWN])}"
    for partition, offsets in facts.stalled.items():
        yield f"{partition}: the last {offsets} offsets are held back from read_committed readers"


def _text(part: bytes | None) -> str:
    return "null" if part is None else part.decode("utf-8", "backslashreplace")
