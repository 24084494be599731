"""A log that differs from the one that was read is detected, and no other log is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.common.errors import HaltedError
from onceward.sources.kafka.epochs import Asked, Difference, EpochEnd, Unknown, difference, lineages, refuse_differences
from onceward.sources.kafka.positions import Cursor, Partition

P = Partition("orders", 0)


@dataclass
class Replicas:
    """The logs of one partition; the first is the leader's. A record is its epoch and a unique number."""

    logs: list[list[tuple[int, int]]] = field(default_factory=lambda: [[], []])
    epoch: int = 0
    start: int = 0
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def log(self) -> list[tuple[int, int]]:
        return self.logs[0]

    def write(self, records: int, *, copied: bool) -> None:
        self.log.extend((self.epoch, next(self.numbers)) for _ in range(records))
        if copied:
            self.logs[1] = list(self.log)

    def elect(self, *, other: bool, kept: int) -> None:
        """Begin a new epoch: its leader (the other replica if ``other``) keeps only the oldest ``kept`` percent."""
        if other:
            self.logs.reverse()
        del self.log[max(self.start, len(self.log) * kept // 100) :]
        self.epoch += 1

    def ends(self, asked: Mapping[Partition, Asked]) -> dict[Partition, EpochEnd]:
        """As Kafka's LeaderEpochFileCache does it."""
        assert asked.keys() <= {P}
        if not asked or asked[P].leader != self.epoch:
            return {}
        wanted = asked[P].epoch
        assert 0 <= wanted < self.epoch
        begins = [(e, next(group)[0]) for e, group in groupby(enumerate(self.log), lambda one: one[1][0])]
        begins = [(e, max(at, self.start)) for e, at in begins]
        # drop epochs without any remaining record
        begins = [one for n, one in enumerate(begins) if n + 1 == len(begins) or begins[n + 1][1] > self.start]
        if not begins or begins[-1][0] != self.epoch:
            begins.append((self.epoch, len(self.log)))
        higher = min(at for e, at in begins if e > wanted)
        return {P: EpochEnd(max((e for e, _ in begins if e <= wanted), default=wanted), higher)}


actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("elect"), st.booleans(), st.integers(0, 100)),
    ),
    max_size=12,
)


def run(replicas: Replicas, steps: list[tuple[str, int, int]]) -> None:
    for what, first, second in steps:
        if what == "write":
            replicas.write(first, copied=bool(second))
        else:
            replicas.elect(other=bool(first), kept=second)


def look(replicas: Replicas, cursor: Cursor) -> Difference | None:
    assert cursor.epoch is not None
    if cursor.epoch == replicas.epoch:
        return None  # no question is sent while the leader is the same
    return difference(P, cursor, replicas.ends({P: Asked(replicas.epoch, cursor.epoch)})[P])


@given(actions, st.floats(0, 1), actions)
def test_a_position_continues_only_if_the_log_still_holds_the_records_read(
    before: list[tuple[str, int, int]], part: float, later: list[tuple[str, int, int]]
) -> None:
    replicas = Replicas()
    run(replicas, before)
    read = replicas.log[: round(part * len(replicas.log))]
    if not read:
        return
    run(replicas, later)
    if len(replicas.log) < len(read):
        return  # a shorter log is detected without epochs
    differs = look(replicas, Cursor(next=len(read), epoch=read[-1][0]))
    assert (differs is None) == (replicas.log[: len(read)] == read)
    if differs is not None:
        first = next(n for n, one in enumerate(read) if replicas.log[n] != one)
        assert differs.offset == first if differs.exact else first <= differs.offset < len(read)


@given(actions, st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_the_epoch_of_every_record_behind_a_position_is_found(
    steps: list[tuple[str, int, int]], at: float, deleted: float, known: bool
) -> None:
    replicas = Replicas()
    run(replicas, steps)
    log = replicas.log
    position = round(at * len(log))
    replicas.start = round(deleted * position)
    older = log[position - 1][0] if position else None
    unknown = Unknown(replicas.epoch, position, older if known else None)
    lineage = lineages({P: unknown}, replicas.ends)[P]
    for end in range(position + 1, len(log) + 1):
        assert lineage.before(end, older) == log[end - 1][0]
    if known:
        assert lineage.before(position, older) == older


@given(actions, st.floats(0, 1))
def test_the_epoch_before_a_start_is_found(steps: list[tuple[str, int, int]], at: float) -> None:
    replicas = Replicas()
    run(replicas, steps)
    offset = round(at * len(replicas.log))
    if offset:
        lineage = lineages({P: Unknown(replicas.epoch, offset - 1)}, replicas.ends)[P]
        assert lineage.before(offset, None) == replicas.log[offset - 1][0]


def test_epochs_are_requested_only_for_records_behind_the_position() -> None:
    replicas, asked = Replicas(), list[Mapping[Partition, Asked]]()
    run(replicas, [("write", 5, 1), ("elect", 0, 100)] * 20 + [("write", 5, 1)])

    def ends(wanted: Mapping[Partition, Asked]) -> dict[Partition, EpochEnd]:
        if wanted:
            asked.append(wanted)
        return replicas.ends(wanted)

    assert lineages({P: Unknown(20, 90)}, ends)[P].starts == ((90, 18), (95, 19), (100, 20))
    assert len(asked) == 3
    replicas.start = 103  # retention deleted every record of the older epochs
    asked.clear()
    assert lineages({P: Unknown(20, 102)}, ends)[P].starts == ((103, 20),)
    assert len(asked) == 2


def test_another_leader_by_now_leaves_the_partition_out() -> None:
    replicas = Replicas()
    run(replicas, [("write", 5, 1), ("elect", 0, 100), ("write", 5, 1)])
    assert lineages({P: Unknown(replicas.epoch + 1, 0)}, replicas.ends) == {}


def test_a_position_without_an_epoch_is_never_refused() -> None:
    assert difference(P, Cursor(next=9), EpochEnd(0, 0)) is None


def test_the_halt_names_each_partition_its_offsets_and_what_to_do() -> None:
    first = difference(P, Cursor(next=200, epoch=4), EpochEnd(4, 150))
    second = difference(Partition("orders", 3), Cursor(next=70, epoch=4), EpochEnd(2, 90))
    assert first is not None
    assert second is not None
    refuse_differences([])
    with pytest.raises(HaltedError) as halted:
        refuse_differences([second, first])
    said = str(halted.value)
    assert "orders-0 was read up to offset 200 (leader epoch 4)" in said
    assert "from offset 150 on: 50 offsets [150, 200)" in said
    assert "orders-3" in said
    assert "from offset 69, or an earlier one, on" in said
    assert "--skip-input orders:0 --to 200" in said
