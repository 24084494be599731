"""Correct histories, made without a broker: the history of one job if nothing goes wrong."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from onceward.operate.verify import CheckpointReport, Content, Fed, History, Lane, PartitionEnd, Visible

__all__ = ["GOOD", "Shape", "good_histories", "made", "record"]

_BEGUN = 1_700_000_000.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a run. Checkpoint ids have gaps where a checkpoint was aborted."""

    reads: Sequence[Sequence[int]]
    """Per completed checkpoint: the number of records that it reads from each input partition."""
    left: Sequence[int]
    """Per input partition: the number of records that are fed but not read."""
    keys: int = 3
    """Number of keys per input partition."""
    outputs: int = 2
    """Number of partitions of the output topic."""
    fanout: int = 1
    """Output records per input record; 0 filters out every record."""
    aborted: frozenset[int] = frozenset()
    """Indexes of completed checkpoints that have an aborted one before them."""
    restored: bool = False
    """At the end an operator restores the first checkpoint with records, and the job runs to the same end again."""
    equal: bool = False
    """All values are equal: only the key distinguishes records."""


def record(partition: int, offset: int, shape: Shape) -> tuple[str, str]:
    """Key and value, in the judge's notation."""
    return f"=key-{partition}-{offset % shape.keys}", "=same" if shape.equal else f"={partition}-{offset}"


def made(shape: Shape) -> History:
    """The history of a run of this shape."""
    inputs = [Lane("in", number) for number in range(len(shape.left))]
    reports: list[CheckpointReport] = []
    log: dict[Lane, list[tuple[Content, float]]] = defaultdict(list)
    clock, number, base = _BEGUN, 1, 0
    ends = dict.fromkeys(inputs, 0)
    reports += _decided(number, base, dict(ends), clock)
    base = number

    def complete(reads: Mapping[Lane, int]) -> None:
        nonlocal clock, number, base
        clock, number = clock + 1, number + 1
        for lane, count in reads.items():
            for offset in range(ends[lane], ends[lane] + count):
                for content in _effects(lane, offset, shape):
                    # a reader sees it between this decision and the next
                    partition = sum(map(ord, content.key or "")) % shape.outputs
                    log[Lane("out", partition)].append((content, clock + 0.2 + partition / 10))
            ends[lane] += count
        reports.extend(_decided(number, base, dict(ends), clock))
        base = number

    for place, reads in enumerate(shape.reads):
        if place in shape.aborted:
            number += 1
            reports.append(CheckpointReport(number, base, 1, "checkpoint", "triggered"))
            reports.append(CheckpointReport(number, base, 1, "checkpoint", "aborted", None, clock + 0.5))
        complete(dict(zip(inputs, reads, strict=True)))
    if shape.restored:
        source = next(one for one in reports if one.checkpoint == 1 and one.ends is not None)
        final, number, clock = dict(ends), number + 1, clock + 1
        reports += _decided(number, source.checkpoint, dict(source.ends or {}), clock, kind="restore", generation=2)
        ends.update(source.ends or {})
        base = number
        complete({lane: final[lane] - ends[lane] for lane in inputs})
    rest, seen = _read(log)
    return History(
        job="job",
        fed=[
            Fed(lane, offset, tuple(_effects(lane, offset, shape)))
            for lane, left in zip(inputs, shape.left, strict=True)
            for offset in range(ends[lane] + left)
        ],
        rest=rest,
        seen=seen,
        reports=[*reports, *_finally(reports)],
        ends=[_end(Lane("out", partition), rest) for partition in range(shape.outputs)],
        whole_input=not any(shape.left),
    )


def _effects(lane: Lane, offset: int, shape: Shape) -> list[Content]:
    key, value = record(lane.partition, offset, shape)
    return [Content("out", key, value + "'" * copy) for copy in range(shape.fanout)]


def _decided(
    number: int, base: int, ends: dict[Lane, int], at: float, *, kind: str = "checkpoint", generation: int = 1
) -> list[CheckpointReport]:
    return [
        CheckpointReport(number, base, generation, kind, "triggered"),
        CheckpointReport(number, base, generation, kind, "completed", ends, at),
        CheckpointReport(number, base, generation, kind, "settled", ends, at),
    ]


def _finally(reports: Sequence[CheckpointReport]) -> list[CheckpointReport]:
    newest = {one.checkpoint: one for one in reports}
    return [one._replace(last=True) for one in newest.values()]


def _read(log: Mapping[Lane, Sequence[tuple[Content, float]]]) -> tuple[list[Visible], list[Visible]]:
    """The log at rest, by partition, and as the reader saw it, by time. Every third offset is a control record."""
    rest = [
        Visible(lane, place + place // 2, content)
        for lane, records in sorted(log.items())
        for place, (content, _) in enumerate(records)
    ]
    times = [at for _, records in sorted(log.items()) for _, at in records]
    seen = [one._replace(at=at) for one, at in zip(rest, times, strict=True)]
    return rest, sorted(seen, key=lambda one: (one.at, one.lane, one.offset))


def _end(lane: Lane, rest: Sequence[Visible]) -> PartitionEnd:
    end = max((one.offset + 2 for one in rest if one.lane == lane), default=0)
    return PartitionEnd(lane, end, end)


GOOD = made(Shape(reads=[[4, 3], [2, 5], [3, 1], [4, 4]], left=[0, 0], aborted=frozenset({2})))
"""Two input partitions of three keys each, two output partitions, four checkpoints with records, one aborted."""

_SHAPES = st.builds(
    lambda lanes, reads, left, **rest: Shape(reads=[row[:lanes] for row in reads], left=left[:lanes], **rest),
    lanes=st.integers(1, 3),
    reads=st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), max_size=6),
    left=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    keys=st.integers(1, 4),
    outputs=st.integers(1, 3),
    fanout=st.integers(0, 2),
    aborted=st.frozensets(st.integers(0, 5)),
    restored=st.booleans(),
    equal=st.booleans(),
)


def good_histories() -> st.SearchStrategy[History]:
    return _SHAPES.map(made)


def with_seen_as_at_rest(history: History) -> History:
    """Let the concurrent reader see the log as it is at rest, for histories whose log was changed."""
    times = {(one.lane, one.offset): one.at for one in history.seen}
    late = max(times.values(), default=_BEGUN)
    seen = [one._replace(at=times.get((one.lane, one.offset), late)) for one in history.rest]
    return replace(history, seen=sorted(seen, key=lambda one: (one.at, one.lane, one.offset)))
