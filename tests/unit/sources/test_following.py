"""What staying tasks read: how partitions are dealt to them, and what their reports mean."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import KafkaSource
from onceward.common.errors import ConfigurationError
from onceward.sources.kafka.driver.following import Shares, assign, reached, shares, suspects
from onceward.sources.kafka.executor.following import KafkaFollowing
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition, TopicPosition

ORDERS = [Partition("orders", number) for number in range(5)]


def positions(cursors: Mapping[int, Cursor]) -> KafkaPositions:
    topics = {"orders": TopicPosition(id="id-1", partitions=dict(cursors))}
    return KafkaPositions(cluster="main", cluster_id="c-1", topics=topics)


def split(number: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"topic": "orders", "partition": number, "start": start, "end": end, **more}


def test_partitions_are_dealt_to_as_many_slots_as_there_is_room_for() -> None:
    given = assign(positions({n: Cursor(next=10 * n) for n in range(5)}), ORDERS, 2)
    assert [[each["partition"] for each in one["ranges"]] for one in given.splits] == [[0, 2, 4], [1, 3]]
    assert given.splits[1]["ranges"][1] == {"topic": "orders", "partition": 3, "start": 30}
    assert not given.finished


def test_no_slot_is_without_a_partition() -> None:
    assert len(assign(positions({0: Cursor(next=0), 1: Cursor(next=0)}), ORDERS, 8).splits) == 2


def test_a_bounded_partition_keeps_its_end_and_needs_no_task_once_it_is_done() -> None:
    given = assign(positions({0: Cursor(next=5, end=9), 1: Cursor(next=9, end=9)}), ORDERS, 8)
    assert [dict(one) for one in given.splits] == [{"ranges": [split(0, 5, 9)]}]
    done = assign(positions({0: Cursor(next=9, end=9)}), ORDERS, 8)
    assert (done.splits, done.finished) == ((), True)


def test_reports_move_the_positions_and_become_the_splits_of_a_replay() -> None:
    before = positions({0: Cursor(next=5, epoch=1), 1: Cursor(next=7, epoch=1), 2: Cursor(next=0)})
    plan = reached(
        before,
        ORDERS,
        [
            {"ranges": [split(0, 5, 8, epoch=2), split(2, 0, 0)], "lags": [4, 0]},
            {"ranges": [split(1, 7, 7)], "lags": [0]},
        ],
    )
    after = dict(KafkaPositions.from_document(plan.positions))
    assert after[ORDERS[0]] == Cursor(next=8, epoch=2)
    assert after[ORDERS[1]] == Cursor(next=7, epoch=1)
    assert plan.splits == (split(0, 5, 8, epoch=2), split(1, 7, 7))
    assert (plan.records, plan.lag, plan.finished) == (3, 4, False)
    assert [(one.position, one.lag) for one in plan.partitions()] == [(8, 4), (7, 0), (0, 0)]


def test_a_slot_with_several_partitions_is_one_split() -> None:
    before = positions({0: Cursor(next=0), 1: Cursor(next=0)})
    plan = reached(before, ORDERS, [{"ranges": [split(0, 0, 2), split(1, 0, 3)], "lags": [0, None]}])
    assert plan.splits == ({"ranges": [split(0, 0, 2), split(1, 0, 3)]},)
    assert plan.lag is None


def test_a_bounded_source_is_finished_when_every_partition_is_at_its_end() -> None:
    before = positions({0: Cursor(next=5, end=8), 1: Cursor(next=9, end=9)})
    assert reached(before, ORDERS, [{"ranges": [split(0, 5, 8)], "lags": [0]}]).finished
    assert not reached(before, ORDERS, [{"ranges": [split(0, 5, 7)], "lags": [1]}]).finished


def test_a_position_without_records_before_it_has_no_epoch() -> None:
    """The end of a bounded range may lie before the position of the client, which knows the epoch of that alone."""
    plan = reached(positions({0: Cursor(next=5, end=9, epoch=3)}), ORDERS, [{"ranges": [split(0, 5, 9)], "lags": [0]}])
    assert dict(KafkaPositions.from_document(plan.positions))[ORDERS[0]].epoch is None


def test_only_logs_with_a_new_leader_are_suspected() -> None:
    before = positions({0: Cursor(next=5, epoch=1), 1: Cursor(next=5, epoch=1), 2: Cursor(next=5)})
    reports = [{"ranges": [split(0, 5, 8, epoch=1), split(1, 5, 8, epoch=2), split(2, 5, 8, epoch=2)], "lags": [0] * 3}]
    assert suspects(before, reports) == {ORDERS[1]: Cursor(next=5, epoch=1)}


def test_min_partitions_is_refused_because_no_task_reads_a_part_of_a_partition() -> None:
    source = KafkaSource("localhost:9092", topics=["orders"], max_rate_per_partition=5, min_partitions=3)
    with pytest.raises(ConfigurationError, match="min_partitions cuts the ranges"):
        source.follow()


def test_the_rate_travels_to_the_tasks() -> None:
    following = KafkaSource("localhost:9092", topics=["orders"], max_rate_per_partition=5).follow()
    assert isinstance(following, KafkaFollowing)
    assert following.rate == 5


@given(
    lags=st.dictionaries(st.sampled_from(ORDERS), st.integers(0, 10**9), min_size=1),
    limit=st.integers(1, 10**6),
    rotation=st.integers(0, 10**6),
)
def test_shares_are_all_of_the_limit_and_follow_the_lags(lags: dict[Partition, int], limit: int, rotation: int) -> None:
    given_ = shares(lags, limit, rotation=rotation)
    assert given_.keys() == lags.keys()
    assert min(given_.values()) >= 0
    assert sum(given_.values()) == limit
    if sum(lags.values()) <= limit // 2:
        assert all(given_[partition] >= lag for partition, lag in lags.items())


def test_a_long_lag_leaves_the_others_what_they_need_for_their_next_record() -> None:
    assert shares({ORDERS[0]: 10**9, ORDERS[1]: 0}, 100) == {ORDERS[0]: 99, ORDERS[1]: 1}
    assert shares({ORDERS[0]: 10**9, ORDERS[1]: 0}, 10) == {ORDERS[0]: 10, ORDERS[1]: 0}
    assert shares({ORDERS[0]: 30, ORDERS[1]: 0}, 100) == {ORDERS[0]: 65, ORDERS[1]: 35}


@pytest.mark.parametrize("lags", [[0] * 5, [7] * 5, [0, 9, 0, 0, 9]])
def test_partitions_take_turns_if_there_is_less_than_one_for_each(lags: list[int]) -> None:
    turns = [shares(dict(zip(ORDERS, lags, strict=True)), 1, rotation=cut) for cut in range(5)]
    served = {partition for turn in turns for partition, count in turn.items() if count}
    assert served == {partition for partition, lag in zip(ORDERS, lags, strict=True) if lag or not any(lags)}


def test_each_cut_gives_the_slots_what_their_ranges_may_read_by_the_last_reports() -> None:
    assignment = assign(positions({n: Cursor(next=10) for n in range(3)}), ORDERS, 2)
    divided = Shares(40, assignment, {ORDERS[0]: 10**6, ORDERS[2]: 10**6}, most=None)
    assert divided.next() == [[20, 19], [1]]
    reports = [
        {"ranges": [split(0, 10, 30), split(2, 10, 29)], "lags": [0, None]},
        {"ranges": [split(1, 10, 11)], "lags": [0]},
    ]
    divided.reached(reports)
    assert divided.next() == [[1, 38], [1]]


def test_a_rate_keeps_a_partition_from_taking_the_share_of_others() -> None:
    assignment = assign(positions({n: Cursor(next=0) for n in range(2)}), ORDERS, 1)
    divided = Shares(100, assignment, {ORDERS[0]: 10**9, ORDERS[1]: 90}, most=10)
    assert divided.next() == [[50, 50]]
