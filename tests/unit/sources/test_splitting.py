"""Ranges that are cut into more, or joined in fewer splits: no record is lost, duplicated or out of order."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward import KafkaSource
from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import ReplayRefusedError
from onceward.connectors.tasks import ranges_of
from onceward.driver.origins import slot_origins
from onceward.sources.kafka.control.metadata import TopicState
from onceward.sources.kafka.driver.replays import refuse_incomplete
from onceward.sources.kafka.driver.splitting import describe_ranges, halve_ranges, join_ranges, split_ranges
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition, TopicPosition


def split(partition: int, start: int, size: int) -> dict[str, Any]:
    return {"topic": "t", "partition": partition, "start": start, "end": start + size}


ranges = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)), max_size=6).map(
    lambda sizes: [split(number, start, size) for number, (start, size) in enumerate(sizes)]
)


@settings(deadline=None)  # only the machine is slow here
@given(ranges, st.integers(1, 40))
def test_the_parts_are_the_ranges_in_order_and_at_least_as_many_as_wanted(
    whole: list[dict[str, Any]], least: int
) -> None:
    parts = split_ranges(whole, least)
    assert len(parts) == (max(len(whole), least) if whole else 0)
    for given_range in whole:
        mine = [part for part in parts if part["partition"] == given_range["partition"]]
        cuts = [mine[0]["start"], *(part["end"] for part in mine)]
        assert cuts == sorted(cuts)
        assert [part["start"] for part in mine] == cuts[:-1]
        assert (cuts[0], cuts[-1]) == (given_range["start"], given_range["end"])
        sizes = [part["end"] - part["start"] for part in mine]
        assert max(sizes) - min(sizes) <= 1
    assert [part["partition"] for part in parts] == sorted(part["partition"] for part in parts)


def test_long_ranges_get_the_parts() -> None:
    parts = split_ranges([split(0, 7000, 10), split(1, 5, 1000), split(2, 9000, 500)], 6)
    assert [part["partition"] for part in parts] == [0, 1, 1, 1, 2, 2]
    assert [(part["start"], part["end"]) for part in parts[1:4]] == [(5, 338), (338, 671), (671, 1005)]


def test_without_a_wish_one_partition_stays_one_range() -> None:
    whole = [split(0, 0, 10), split(1, 0, 0)]
    assert split_ranges(whole, None) == tuple(whole)
    assert split_ranges([], 8) == ()


def test_each_part_made_its_slot_alone_so_that_it_can_be_replayed() -> None:
    parts = split_ranges([split(0, 0, 10), split(1, 7, 0)], 6)
    origins = slot_origins([[part] for part in parts], describe_ranges)
    assert all(origin.replayable for origin, part in zip(origins, parts, strict=True) if part["end"] > part["start"])


@settings(deadline=None)
@given(ranges, st.integers(1, 8))
def test_joined_ranges_stay_whole_and_are_spread_evenly(whole: list[dict[str, Any]], most: int) -> None:
    joined = join_ranges(whole, most)
    assert len(joined) == min(len(whole), most)
    assert sorted((part["partition"], part["start"]) for each in joined for part in ranges_of(each)) == [
        (part["partition"], part["start"]) for part in whole
    ]
    assert all(part in whole for each in joined for part in ranges_of(each))
    assert all(each in whole for each in joined if len(ranges_of(each)) == 1)
    sizes = [[max(1, part["end"] - part["start"]) for part in ranges_of(each)] for each in joined]
    for mine in sizes:
        assert sum(mine) - min(mine) <= min(map(sum, sizes)), "another split had more room for the smallest of them"


def test_a_joined_split_is_its_slot_s_alone_so_that_it_can_be_replayed() -> None:
    joined = join_ranges([split(number, 0, 10) for number in range(5)], 2)
    assert [[part["partition"] for part in ranges_of(each)] for each in joined] == [[0, 2, 4], [1, 3]]
    assert all(origin.replayable for origin in slot_origins([[each] for each in joined], describe_ranges))


def test_ranges_that_are_few_enough_stay_as_they_are() -> None:
    whole = [split(0, 0, 0), split(1, 0, 10)]
    assert join_ranges(whole, 2) == tuple(whole)
    assert join_ranges([], 2) == ()


@given(ranges)
def test_halves_are_the_whole_in_order_without_anything_empty(whole: list[dict[str, Any]]) -> None:
    filled = [each for each in whole if each["end"] > each["start"]]
    size = sum(each["end"] - each["start"] for each in filled)
    halves = halve_ranges([{"ranges": whole}])
    assert (halves is None) is (size < 2)
    if halves is None:
        return
    parts = [part for half in halves for part in half]
    assert all(part["end"] > part["start"] for part in parts)
    assert sum(part["end"] - part["start"] for part in halves[0]) == size // 2
    joined: list[dict[str, Any]] = []
    for part in parts:
        if joined and (joined[-1]["partition"], joined[-1]["end"]) == (part["partition"], part["start"]):
            joined[-1] = {**joined[-1], "end": part["end"]}
        else:
            joined.append(dict(part))
    assert joined == filled


@pytest.mark.parametrize(("count", "more"), [(1, ""), (5, ""), (6, " and 1 more ranges"), (8, " and 3 more ranges")])
def test_a_message_names_the_first_ranges_and_counts_the_others(count: int, more: str) -> None:
    named = ", ".join(f"t-{number} offsets [3, 7)" for number in range(min(count, 5)))
    assert describe_ranges([split(9, 4, 0), *(split(number, 3, 4) for number in range(count))]) == named + more


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, 10_001, "4"])
def test_a_number_that_cannot_be_meant_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="min_partitions"):
        KafkaSource("localhost:9092", topics=["t"], min_partitions=wrong)


class View:
    """The brokers' answers about a topic whose log begins at 6."""

    def topics(self, names: Any) -> dict[str, TopicState]:
        return {name: TopicState(id="i", partitions=(0,), operations=frozenset(), replication=3) for name in names}

    def topic_settings(self, names: Any, keys: Any) -> dict[str, dict[str, str]]:
        return {name: dict.fromkeys(keys, "delete") for name in names}

    def log_starts(self, partitions: Any) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 6)

    def high_watermarks(self, partitions: Any) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 100)


class Same:
    """Leaders whose logs are the ones that were read."""

    def differences(self, cursors: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("gone_first", [True, False])
def test_a_replay_looks_at_every_part_of_a_partition(gone_first: bool) -> None:
    topics = {"t": TopicPosition(id="i", partitions={0: Cursor(next=50)})}
    positions = KafkaPositions(cluster="main", cluster_id="c", topics=topics)
    parts = [split(0, 5, 5), split(0, 10, 5)]
    view: Any = View()
    leaders: Any = Same()
    refuse_incomplete(view, leaders, "c", positions, parts[1:])
    with pytest.raises(ReplayRefusedError, match=r"\[5, 10\)"):
        refuse_incomplete(view, leaders, "c", positions, parts if gone_first else parts[::-1])
