"""Where a job starts and ends reading, in logs without their first records and with open transactions at their ends."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceward.common.errors import ConfigurationError, HaltedError
from onceward.sources.kafka.driver.resolution import resolve_ends, resolve_starts
from onceward.sources.kafka.driver.starts import End, Reset, Start
from onceward.sources.kafka.positions import Partition

A, B, C = Partition("orders", 0), Partition("orders", 1), Partition("bills", 0)
ALL = [A, B, C]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Log:
    """Records [first, high). Those from ``stable`` on are in open transactions."""

    first: int
    stable: int
    high: int
    times: Mapping[int, datetime] = field(default_factory=dict)
    """Times of records, by offset; the log may have deleted the first ones."""
    committed: int | None = None
    """The offset that the group ``readers`` committed."""


@dataclass
class Logs:
    """The brokers' answers."""

    logs: dict[Partition, Log]
    late: Partition | None = None
    """The partition that the first answer to each question leaves out."""
    answered: set[str] = field(default_factory=set)
    growing: bool = False
    """Whether each log gains a record after every answer."""

    def committed_ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return self._answer("committed_ends", {p: self.logs[p].stable for p in partitions})

    def log_starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return self._answer("log_starts", {p: self.logs[p].first for p in partitions})

    def high_watermarks(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return self._answer("high_watermarks", {p: self.logs[p].high for p in partitions})

    def first_at(self, partitions: Collection[Partition], instant: int) -> dict[Partition, int | None]:
        def first(log: Log) -> int | None:
            at = datetime.fromtimestamp(instant / 1000, UTC)
            return min((offset for offset, time in log.times.items() if time >= at), default=None)

        return self._answer("first_at", {p: first(self.logs[p]) for p in partitions})

    def committed(self, group: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        assert group == "readers"
        said = {p: self.logs[p].committed for p in partitions}
        return {p: offset for p, offset in said.items() if offset is not None}

    def _answer(self, question: str, found: dict[Partition, Any]) -> dict[Partition, Any]:
        if self.growing:
            self.logs = {p: replace(log, stable=log.stable + 1, high=log.high + 1) for p, log in self.logs.items()}
        first = question not in self.answered
        self.answered.add(question)
        return {p: answer for p, answer in found.items() if not (first and p == self.late)}


@pytest.fixture
def logs() -> Any:
    return Logs(
        {
            A: Log(first=10, stable=80, high=90, times={5: NOON, 20: NOON + timedelta(hours=1)}, committed=40),
            B: Log(first=0, stable=30, high=30, times={7: NOON, 8: NOON + timedelta(hours=1)}, committed=0),
            C: Log(first=4, stable=6, high=9, times={5: NOON - timedelta(hours=1)}),
        }
    )


def starts(logs: Any, start: Start, reset: Reset = Reset.ERROR, of: Collection[Partition] = ALL) -> list[int]:
    found = resolve_starts(logs, of, start=start, reset=reset, group="readers")
    assert found.keys() == set(of)
    return [found[each] for each in of]


def ends(logs: Any, end: End, of: Collection[Partition] = ALL) -> list[int]:
    found = resolve_ends(logs, of, end=end)
    assert found is not None
    assert found.keys() == set(of)
    return [found[each] for each in of]


# -- starts


def test_earliest_is_the_first_record_that_each_log_still_has(logs: Any) -> None:
    assert starts(logs, "earliest") == [10, 0, 4]


def test_latest_is_before_the_records_of_open_transactions(logs: Any) -> None:
    """They are committed later, so they count as new."""
    assert starts(logs, "latest") == [80, 30, 6]


@pytest.mark.parametrize(
    ("instant", "offsets"),
    [
        (NOON - timedelta(days=1), [10, 7, 5]),
        (NOON, [10, 7, 6]),
        (NOON + timedelta(microseconds=1), [20, 8, 6]),
        (NOON + timedelta(hours=1), [20, 8, 6]),
        (NOON + timedelta(days=1), [80, 30, 6]),
    ],
)
def test_an_instant_is_the_first_record_that_is_not_older_and_still_there_else_the_end(
    logs: Any, instant: datetime, offsets: list[int]
) -> None:
    assert starts(logs, instant) == offsets


@pytest.mark.parametrize("start", ["latest", NOON + timedelta(days=1)])
def test_records_that_arrive_during_the_resolution_are_not_skipped(logs: Any, start: Start) -> None:
    logs.growing = True
    assert starts(logs, start) == [80, 30, 6]


@pytest.mark.parametrize(("reset", "unnamed"), [(Reset.EARLIEST, [0, 4]), (Reset.LATEST, [30, 6])])
def test_named_offsets_win_and_reset_sets_the_others(logs: Any, reset: Reset, unnamed: list[int]) -> None:
    assert starts(logs, {"orders": {0: 33}}, reset) == [33, *unnamed]
    assert starts(logs, {"orders": {0: 33, 1: 5}, "bills": {0: 9}}, reset) == [33, 5, 9]


@pytest.mark.parametrize(("reset", "others"), [(Reset.EARLIEST, 4), (Reset.LATEST, 6)])
def test_a_groups_offsets_win_and_reset_sets_the_others(logs: Any, reset: Reset, others: int) -> None:
    assert starts(logs, "group", reset) == [40, 0, others]


def test_nothing_is_chosen_where_reset_forbids_it_and_all_partitions_without_an_offset_are_named(logs: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"group 'readers' .* for bills-0, and"):
        starts(logs, "group")
    with pytest.raises(ConfigurationError, match=r"start= .* for bills-0, orders-1, and"):
        starts(logs, {"orders": {0: 33}})
    assert starts(logs, "group", of=[A, B]) == [40, 0]
    assert starts(logs, {"orders": {0: 33, 1: 5}}, of=[A, B]) == [33, 5]


@pytest.mark.parametrize(("count", "said"), [(10, "many-9, and"), (11, "many-9 and 1 more"), (13, "many-9 and 3 more")])
def test_a_long_list_of_partitions_is_cut_and_counted(count: int, said: str) -> None:
    of = [Partition("many", number) for number in range(count)]
    logs: Any = Logs(dict.fromkeys(of, Log(first=0, stable=1, high=1)))
    with pytest.raises(ConfigurationError) as refused:
        starts(logs, "group", of=of)
    assert said in str(refused.value).replace("many-10, many-11, many-12", "")


@pytest.mark.parametrize(("offset", "held"), [(9, False), (10, True), (85, True), (90, True), (91, False)])
def test_an_offset_to_start_from_must_be_in_its_log_or_at_its_end(logs: Any, offset: int, held: bool) -> None:
    """A program may have read and committed beyond open transactions."""
    logs.logs[A] = replace(logs.logs[A], committed=offset)
    if held:
        assert starts(logs, {"orders": {0: offset, 1: 0}}, of=[A, B]) == [offset, 0]
        assert starts(logs, "group", of=[A, B]) == [offset, 0]
        return
    where = rf"orders-0 at {offset} \(its log is \[10, 90\)\)"
    with pytest.raises(ConfigurationError, match=f"^start= .*: {where}\\."):
        starts(logs, {"orders": {0: offset, 1: 0}}, of=[A, B])
    with pytest.raises(HaltedError, match=f"^Group 'readers' .*: {where}\\."):
        starts(logs, "group", of=[A, B])


def test_all_offsets_that_are_outside_their_logs_are_named(logs: Any) -> None:
    logs.logs |= {A: replace(logs.logs[A], committed=3), B: replace(logs.logs[B], committed=31)}
    both = r"orders-0 at 3 \(.*\[10, 90\)\); orders-1 at 31 \(.*\[0, 30\)\)\."
    with pytest.raises(ConfigurationError, match=both):
        starts(logs, {"orders": {1: 31, 0: 3}}, Reset.LATEST)
    with pytest.raises(HaltedError, match=both):
        starts(logs, "group", Reset.LATEST)


def test_partitions_that_do_not_exist_are_refused_by_name(logs: Any) -> None:
    named = {"orders": {0: 33, 7: 1}, "other": {0: 1}}
    with pytest.raises(ConfigurationError, match=r"^start= names partitions .*: orders-7, other-0\."):
        starts(logs, named, Reset.LATEST)
    with pytest.raises(ConfigurationError, match=r"^end= names partitions .*: orders-7, other-0\."):
        ends(logs, named)


# -- ends


def test_an_unbounded_source_sends_no_request() -> None:
    unasked: Any = None
    assert resolve_ends(unasked, ALL, end=None) is None


def test_the_latest_end_is_before_the_records_of_open_transactions(logs: Any) -> None:
    assert ends(logs, "latest") == [80, 30, 6]


@pytest.mark.parametrize(
    ("instant", "offsets"),
    [
        (NOON, [5, 7, 6]),
        (NOON + timedelta(microseconds=1), [20, 8, 6]),
        (NOON + timedelta(days=1), [80, 30, 6]),
    ],
)
def test_an_instant_ends_before_the_first_record_that_is_not_older(
    logs: Any, instant: datetime, offsets: list[int]
) -> None:
    assert ends(logs, instant) == offsets


def test_named_ends_are_taken_as_they_are_and_must_name_every_partition(logs: Any) -> None:
    """An end may lie before the first remaining record, or beyond the last one."""
    assert ends(logs, {"orders": {0: 3, 1: 900}, "bills": {0: 5}}) == [3, 900, 5]
    with pytest.raises(ConfigurationError, match="for bills-0, orders-1, so"):
        ends(logs, {"orders": {0: 3}})


# -- brokers that answer late


@pytest.mark.parametrize("start", ["earliest", "latest", "group", NOON, {"orders": {0: 33}}], ids=str)
def test_a_partition_missing_from_the_answer_is_requested_again(
    logs: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.sources.kafka.control.metadata._ASK_AGAIN_SECONDS", 1e-6)
    expected = starts(logs, start, Reset.EARLIEST)
    logs.late = A
    logs.answered.clear()
    assert starts(logs, start, Reset.EARLIEST) == expected
    if isinstance(start, datetime):
        logs.answered.clear()
        assert ends(logs, start) == [5, 7, 6]
