"""A plan takes the available records within its limits, never goes backwards and never starves a partition forever."""

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.common.errors import CheckpointFailedError
from onceward.connectors.interfaces import Plan
from onceward.protocol.read_progress import PartitionLag
from onceward.sources.kafka.control import metadata
from onceward.sources.kafka.control.metadata import insist
from onceward.sources.kafka.driver.limits import level, share
from onceward.sources.kafka.driver.offsets import Limits, gone_backwards, plan_ranges
from onceward.sources.kafka.epochs import Lineage
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition, TopicPosition
from onceward.sources.kafka.rates import BURST_SECONDS, RateLimit
from tests.support.manual_time import ManualTime

P = [Partition("t", n) for n in range(6)]
backlogs = st.dictionaries(st.sampled_from(P), st.integers(0, 10**12))


def at(*cursors: Cursor) -> KafkaPositions:
    topic = TopicPosition(id="i", partitions=dict(enumerate(cursors)))
    return KafkaPositions(cluster="main", cluster_id="c", topics={"t": topic})


def plan(positions: KafkaPositions, available: dict[Partition, int], *, now: float = 0, **limits: Any) -> Plan:
    read = [partition for partition, _ in positions]
    return plan_ranges(positions, available, read=read, limits=Limits(**limits), now=now)


@given(backlogs, st.integers(1, 10**13), st.integers(0, 10**9))
def test_a_share_is_as_large_as_allowed_and_never_more_than_available(
    backlog: dict[Partition, int], limit: int, rotation: int
) -> None:
    taken = share(backlog, limit, rotation=rotation)
    assert taken.keys() == backlog.keys()
    assert all(0 <= taken[p] <= backlog[p] for p in backlog)
    assert sum(taken.values()) == min(limit, sum(backlog.values()))


@given(backlogs, st.integers(6, 10**6))
def test_no_partition_with_a_backlog_is_left_out_when_there_is_enough_for_each(
    backlog: dict[Partition, int], limit: int
) -> None:
    taken = share(backlog, limit)
    assert all(taken[p] > 0 for p in backlog if backlog[p])


@given(st.dictionaries(st.sampled_from(P), st.integers(0, 40)), st.integers(0, 250), st.integers(0, 20))
def test_a_level_takes_equal_shares_up_to_its_limit(backlog: dict[Partition, int], limit: int, rotation: int) -> None:
    taken = level(backlog, limit, rotation=rotation)
    assert taken.keys() == backlog.keys()
    assert sum(taken.values()) == min(limit, sum(backlog.values()))
    most = max(taken.values(), default=0)
    assert all(taken[p] == backlog[p] or most - 1 <= taken[p] < backlog[p] for p in backlog)


def test_a_level_that_is_too_low_for_all_serves_each_in_turn() -> None:
    backlog = dict.fromkeys(P, 5)
    served = [{p for p, n in level(backlog, 1, rotation=rotation).items() if n} for rotation in range(len(P))]
    assert all(len(each) == 1 for each in served)
    assert set.union(*served) == set(P)
    assert level(backlog, 1) == level(backlog, 1, rotation=0)


@given(st.dictionaries(st.sampled_from(P), st.integers(10**6, 10**9), min_size=1), st.integers(10**4, 10**5))
def test_a_share_is_in_proportion(backlog: dict[Partition, int], limit: int) -> None:
    taken = share(backlog, limit)
    for partition, waiting in backlog.items():
        assert abs(taken[partition] - limit * waiting / sum(backlog.values())) <= len(backlog) + 1


def test_with_fewer_offsets_than_partitions_each_gets_its_turn() -> None:
    backlog = dict.fromkeys(P, 1000)
    seen = set()
    for rotation in range(len(P)):
        seen |= {partition for partition, n in share(backlog, 1, rotation=rotation).items() if n}
    assert seen == set(P)


def test_positions_themselves_turn_the_turns() -> None:
    positions, available = at(*[Cursor(next=0)] * 3), dict.fromkeys(P[:3], 100)
    taken = []
    for _ in range(6):
        planned = plan(positions, available, offsets=1)
        taken.append(next(s["partition"] for s in planned.splits if s["end"] > s["start"]))
        positions = KafkaPositions.from_document(planned.positions)
    assert taken == [0, 1, 2, 0, 1, 2]


rounds = st.lists(
    st.tuples(
        st.lists(st.integers(0, 20), min_size=6, max_size=6), st.sets(st.integers(0, 5)), st.none() | st.integers(1, 40)
    ),
    max_size=12,
)
"""For each plan: the growth of every log, the partitions whose leaders do not answer, and the limit."""


@given(st.lists(st.tuples(st.integers(0, 50), st.none() | st.integers(0, 90)), min_size=1, max_size=6), rounds)
def test_every_offset_up_to_its_end_is_read_once_and_in_order_whatever_leaders_answer(
    partitions: list[tuple[int, int | None]], rounds: list[tuple[list[int], set[int], int | None]]
) -> None:
    """``partitions`` holds the position and the end, if any, of each. The last round has all answers and no limit."""
    positions = at(*[Cursor(next=n, end=end) for n, end in partitions])
    logs = {P[i]: n for i, (n, _) in enumerate(partitions)}
    read: dict[Partition, list[int]] = {partition: [] for partition in logs}
    for grown, silent, limit in [*rounds, ([0] * 6, set[int](), None)]:
        for partition in logs:
            logs[partition] += grown[partition.number]
        answers = {partition: log for partition, log in logs.items() if partition.number not in silent}
        planned = plan(positions, answers, offsets=limit)
        assert [Partition(split["topic"], split["partition"]) for split in planned.splits] == list(logs)
        now = {P[split["partition"]]: range(split["start"], split["end"]) for split in planned.splits}
        assert planned.records == sum(map(len, now.values())) <= (limit or 10**9)
        for partition, offsets in now.items():
            assert not (offsets and partition.number in silent)
            read[partition] += offsets
        wanted = {
            P[i]: list(range(n, logs[P[i]] if end is None else min(end, logs[P[i]])))
            for i, (n, end) in enumerate(partitions)
        }
        assert planned.lag == sum(len(wanted[p]) - len(read[p]) for p in answers)
        # the job ends here, so no record that it must read may come later
        assert planned.finished == all(
            end is not None and n + len(read[P[i]]) >= end for i, (n, end) in enumerate(partitions)
        )
        positions = KafkaPositions.from_document(planned.positions)
    assert read == wanted


def test_a_source_without_partitions_has_not_finished() -> None:
    """Partitions may still be added to its topics."""
    assert not plan(at(), {}).finished


def test_a_partition_without_a_leader_gets_an_empty_range() -> None:
    planned = plan(at(Cursor(next=5), Cursor(next=7)), {P[1]: 9})
    assert [(s["start"], s["end"]) for s in planned.splits] == [(5, 5), (7, 9)]


def test_partitions_that_are_not_read_keep_their_position() -> None:
    positions = at(Cursor(next=5), Cursor(next=7))
    planned = plan_ranges(positions, {P[0]: 9, P[1]: 9}, read=[P[1]], limits=Limits(), now=0)
    assert [s["partition"] for s in planned.splits] == [1]
    assert [c.next for _, c in KafkaPositions.from_document(planned.positions)] == [5, 9]


def test_an_unbounded_source_never_finishes() -> None:
    assert not plan(at(Cursor(next=5)), {P[0]: 5}).finished
    assert not plan(at(Cursor(next=5), Cursor(next=5, end=5)), {P[0]: 5, P[1]: 5}).finished


def test_a_plan_counts_against_the_rate_of_the_next_one() -> None:
    rate = RateLimit(10.0)
    taken = [plan(at(Cursor(next=0)), {P[0]: 1000}, rate=rate, now=now).records for now in (0.0, 0.0, 2.0)]
    assert taken == [10, 0, 20]


def test_a_plan_names_every_limit_that_has_cut_something_off() -> None:
    positions, available = at(Cursor(next=0), Cursor(next=0)), {P[0]: 1000, P[1]: 5}

    def sized_by(**limits: Any) -> Any:
        return plan(positions, available, **limits).sizing["sized_by"]

    assert sized_by(offsets=1005) == sized_by(rate=RateLimit(1000.0)) == "everything"
    assert sized_by(offsets=1004) == "max_offsets_per_checkpoint"
    assert sized_by(rate=RateLimit(999.0)) == "max_rate_per_partition"
    assert sized_by(rate=RateLimit(999.0), offsets=20) == "max_rate_per_partition+max_offsets_per_checkpoint"


def test_a_plan_keeps_the_bounds_and_the_epochs_of_unread_partitions() -> None:
    topic = TopicPosition(id="i", partitions={0: Cursor(next=5, end=9, epoch=3), 1: Cursor(next=5, end=5, epoch=4)})
    positions = KafkaPositions(cluster="main", cluster_id="c", topics={"t": topic}, bound="latest")
    planned = plan(positions, {P[0]: 7, P[1]: 7})
    after = KafkaPositions.from_document(planned.positions)
    assert after.bound == "latest"
    assert dict(after) == {P[0]: Cursor(next=7, end=9, epoch=None), P[1]: Cursor(next=5, end=5, epoch=4)}
    assert [split.get("epoch") for split in planned.splits] == [None, 4]


def test_a_plan_holds_the_leader_epoch_of_the_record_before_its_end() -> None:
    """Positions carry it so that a replaced log is detected; ranges carry it so that readers detect it."""
    positions = at(Cursor(next=5, epoch=3), Cursor(next=5, epoch=3), Cursor(next=5, epoch=3))
    lineages = {P[0]: Lineage(4, ((8, 4),)), P[1]: Lineage(4, ((8, 4),))}
    planned = plan_ranges(positions, {P[0]: 8, P[1]: 9, P[2]: 9}, read=P[:3], limits=Limits(), now=0, lineages=lineages)
    after = [cursor for _, cursor in KafkaPositions.from_document(planned.positions)]
    assert after == [Cursor(next=8, epoch=3), Cursor(next=9, epoch=4), Cursor(next=9, epoch=None)]
    assert [split.get("epoch") for split in planned.splits] == [3, 4, None]
    assert "epoch" not in planned.splits[2]


def test_a_log_that_ends_before_its_position_is_noticed() -> None:
    assert gone_backwards(at(Cursor(next=5), Cursor(next=7)), {P[0]: 5, P[1]: 6}) == {P[1]: (7, 6)}


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 500)), max_size=30))
def test_a_rate_is_never_exceeded_over_any_time(steps: list[tuple[float, int]]) -> None:
    limit, now, taken = RateLimit(10.0), 0.0, 0
    for seconds, wanted in steps:
        now += seconds
        allowed = min(limit.allowed(P[0], now), wanted)
        limit.took(P[0], allowed)
        taken += allowed
        assert 0 <= taken <= 10 * (now + 1) + 1e-6


def test_an_idle_partition_saves_up_only_so_much() -> None:
    limit = RateLimit(10.0)
    limit.allowed(P[0], 0.0)
    assert limit.allowed(P[0], 10_000.0) == 10 * BURST_SECONDS


def test_a_partition_with_a_rate_of_a_record_in_hours_gets_it() -> None:
    limit = RateLimit(0.001)
    assert limit.allowed(P[0], 0.0) == 0
    assert limit.wait(P[0]) == pytest.approx(999)
    assert limit.allowed(P[0], 1_000.0) == 1
    assert limit.wait(P[0]) == 0


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    passing = ManualTime()
    monkeypatch.setattr(metadata, "time", passing)
    return passing


def test_briefly_unavailable_leaders_are_retried(passing: ManualTime) -> None:
    answers: list[dict[Partition, int] | CheckpointFailedError] = [
        {P[0]: 1},
        CheckpointFailedError("no broker"),
        {},
        {P[1]: 2},
    ]
    asked: list[list[Partition]] = []

    def ask(partitions: Collection[Partition]) -> dict[Partition, int]:
        asked.append(list(partitions))
        answer = answers.pop(0)
        if isinstance(answer, CheckpointFailedError):
            raise answer
        return answer

    assert insist(ask, P[:2]) == {P[0]: 1, P[1]: 2}
    assert len(passing.slept) == 3
    assert asked == [P[:2], P[1:2], P[1:2], P[1:2]]


def test_leaders_that_stay_away_are_named_in_the_end(passing: ManualTime) -> None:
    with pytest.raises(CheckpointFailedError, match=str(P[1])):
        insist(lambda _: {P[0]: 1}, P[:2], patience=8)
    assert 8 <= passing.now < 12


def test_a_plan_says_where_it_leaves_each_partition_and_what_is_unknown() -> None:
    positions = at(Cursor(next=5), Cursor(next=9), Cursor(next=3), Cursor(next=4, end=4))
    made = plan(positions, {P[0]: 25, P[1]: 9}, offsets=8)
    assert list(made.partitions()) == [
        PartitionLag(partition="t-0", position=13, lag=12),
        PartitionLag(partition="t-1", position=9, lag=0),
        PartitionLag(partition="t-2", position=3, lag=None),
        PartitionLag(partition="t-3", position=4, lag=0),
    ]
    assert made.lag == 12
