"""The input that makes a checkpoint fail, found by running halves of Kafka ranges."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.driver.narrowing import Failure, Narrowing, narrowed
from onceward.sources.kafka.driver.splitting import describe_ranges, halve_ranges


def split(partition: int, start: int, end: int) -> dict[str, Any]:
    return {"topic": "orders", "partition": partition, "start": start, "end": end}


def whole(splits: Sequence[Any]) -> Failure:
    return Failure(splits, RuntimeError(str(splits)))


class Spark:
    """A Spark that fails when one part holds all of ``poison``."""

    def __init__(self, *poison: tuple[int, int]) -> None:
        self.poison = poison
        self.runs: list[int] = []

    def run(self, splits: Sequence[Any]) -> Exception | None:
        self.runs.append(sum(each["end"] - each["start"] for each in splits))
        fails = bool(self.poison) and all(
            any(each["partition"] == partition and each["start"] <= offset < each["end"] for each in splits)
            for partition, offset in self.poison
        )
        return RuntimeError(str(splits)) if fails else None

    def find(self, splits: Sequence[Any], steps: int = 1000) -> Sequence[Any]:
        found = narrowed(whole(splits), halves=halve_ranges, run=self.run, may_go_on=lambda: len(self.runs) < steps)
        assert str(found.error) == str(found.splits), "the error of another part"
        return found.splits


@given(st.lists(st.integers(0, 500), min_size=1, max_size=5), st.data())
def test_the_record_at_fault_is_found_by_reading_the_input_twice_at_most(sizes: list[int], data: st.DataObject) -> None:
    splits = [split(number, 7, 7 + size) for number, size in enumerate(sizes)]
    records = [(each["partition"], offset) for each in splits for offset in range(each["start"], each["end"])]
    if not records:
        return
    partition, offset = data.draw(st.sampled_from(records))
    spark = Spark((partition, offset))
    assert list(spark.find(splits)) in ([split(partition, offset, offset + 1)], splits if len(records) == 1 else [])
    assert sum(spark.runs) <= 2 * len(records) + len(spark.runs), "where halves are not equal, a record more a run"


def test_a_failure_that_needs_records_of_both_halves_or_has_passed_names_all_that_failed() -> None:
    splits = [split(0, 0, 10), split(1, 0, 10)]
    assert Spark((0, 3), (1, 3)).find(splits) == splits
    assert Spark().find(splits) == splits
    assert list(Spark((0, 1), (0, 3)).find(splits)) == [split(0, 0, 5)]


def test_it_ends_when_asked_to_stop() -> None:
    assert list(Spark((0, 99)).find([split(0, 0, 100)], steps=4)) == [split(0, 75, 100)]


def test_known_problems_are_checked_first_the_next_time() -> None:
    narrowing, spark = Narrowing(), Spark((0, 99))
    for _ in range(3):
        found = narrowing.find(whole([split(0, 0, 100)]), halves=halve_ranges, run=spark.run, may_go_on=lambda: True)
        assert list(found.splits) == [split(0, 99, 100)]
        first, spark.runs = len(spark.runs), []
    assert first == 1


@pytest.mark.parametrize(
    "splits", [[], [split(0, 5, 5)], [split(0, 5, 6)], [{"ranges": [split(0, 5, 6), split(1, 3, 3)]}]]
)
def test_one_record_is_not_halved(splits: list[Any]) -> None:
    assert halve_ranges(splits) is None


def test_ranges_are_named_and_counted_where_they_are_many() -> None:
    assert describe_ranges([{"ranges": [split(0, 5, 6), split(1, 3, 3)]}]) == "orders-0 offsets [5, 6)"
    assert describe_ranges([split(n, 0, 1) for n in range(7)]).endswith("and 2 more ranges")
