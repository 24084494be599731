"""The check must be able to fail: histories with one error, and the message that names it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.dev.demo.expected import Expected, Record, expected_output
from onceward.dev.demo.flights import messages
from onceward.dev.demo.judge import Facts, Seen, differences, judge
from onceward.dev.demo.topics import DELAYED, REJECTED

GOOD = Facts(fed=5000, arrived=5000, resumed=6, aborted=6)

History = dict[str, list[Seen]]


@pytest.fixture(scope="module")
def expected() -> Expected:
    """Expected output of the first 5,000 real flights: 4,800-odd delays, 60-odd rejections, 16 carriers."""
    return expected_output(messages(5000))


@pytest.fixture
def history(expected: Expected) -> History:
    """What a reader sees when everything is correct."""
    return {topic: as_read(records) for topic, records in expected.items()}


def as_read(records: Sequence[Record]) -> list[Seen]:
    """Return the records partition by partition, as a reader gets them; offsets leave room for control records."""
    placed = [(sum(record.key or b"") % 6, record) for record in records]
    return [
        Seen(partition, 3 * offset, record)
        for partition in range(6)
        for offset, (own, record) in enumerate(placed)
        if own == partition
    ]


def rows_of(expected: Expected) -> list[Record]:
    """The rows of a right table, in an order of its own."""
    return [Record(None, record.value) for record in reversed(expected[DELAYED])]


def test_a_right_history_passes(expected: Expected, history: History) -> None:
    verdict = judge(expected, history, rows_of(expected), GOOD)
    assert verdict.passed, verdict.problems


def test_the_interleaving_of_partitions_does_not_matter(expected: Expected, history: History) -> None:
    history[DELAYED].sort(key=lambda one: one.offset)
    assert judge(expected, history, rows_of(expected), GOOD).passed


def test_a_row_that_is_lost_or_there_twice_is_found(expected: Expected, history: History) -> None:
    first, second, *others = rows_of(expected)
    (problem,) = judge(expected, history, [second, *others], GOOD).problems
    assert "delays: 1 records lost" in problem
    assert (first.value or b"").decode() in problem
    (problem,) = judge(expected, history, [first, first, second, *others], GOOD).problems
    assert "delays: 1 records too" in problem


def test_a_lost_record_is_found(expected: Expected, history: History) -> None:
    lost = history[DELAYED].pop(1234)
    (problem,) = differences(expected, history)
    assert "flights-delayed: 1 records lost" in problem
    assert (lost.record.value or b"").decode() in problem


def test_a_doubled_record_is_found(expected: Expected, history: History) -> None:
    history[DELAYED].insert(1235, history[DELAYED][1234])
    (problem,) = differences(expected, history)
    assert "flights-delayed: 1 records too many" in problem


def test_a_record_doubled_much_later_is_found(expected: Expected, history: History) -> None:
    history[REJECTED].append(history[REJECTED][0])
    assert any("flights-rejected: 1 records too many" in problem for problem in differences(expected, history))


def test_two_records_of_a_key_in_the_wrong_order_are_found(expected: Expected, history: History) -> None:
    records = history[DELAYED]
    first = next(i for i, one in enumerate(records[:-1]) if one.record.key == records[i + 1].record.key)
    a, b = records[first], records[first + 1]
    records[first], records[first + 1] = a._replace(record=b.record), b._replace(record=a.record)
    (problem,) = differences(expected, history)
    assert "flights-delayed: 1 records out of order" in problem


def test_a_whole_transaction_that_became_visible_late_is_found(expected: Expected, history: History) -> None:
    records = history[DELAYED]
    history[DELAYED] = records[:1000] + records[1200:2200] + records[1000:1200] + records[2200:]
    assert any("out of order" in problem for problem in differences(expected, history))


def test_a_record_in_the_wrong_topic_is_found(expected: Expected, history: History) -> None:
    history[DELAYED].append(history[REJECTED].pop())
    problems = differences(expected, history)
    assert any("flights-delayed: 1 records belong to flights-rejected" in problem for problem in problems)
    assert any("flights-rejected: 1 records lost" in problem for problem in problems)


def test_a_changed_byte_is_found(expected: Expected, history: History) -> None:
    one = history[DELAYED][7]
    changed = (one.record.value or b"").replace(b'"delay":', b'"delay":1')
    history[DELAYED][7] = one._replace(record=one.record._replace(value=changed))
    problems = differences(expected, history)
    assert any("1 records lost" in problem for problem in problems)
    assert any("1 unexpected records" in problem for problem in problems)


def test_a_changed_key_is_found(expected: Expected, history: History) -> None:
    one = history[DELAYED][7]
    history[DELAYED][7] = one._replace(record=one.record._replace(key=b"XX"))
    assert any("unexpected records" in problem for problem in differences(expected, history))


def test_a_key_in_two_partitions_is_found(expected: Expected, history: History) -> None:
    one = history[DELAYED][-1]
    history[DELAYED][-1] = one._replace(partition=(one.partition + 1) % 6)
    (problem,) = differences(expected, history)
    assert "keys in more than one partition" in problem


def test_an_empty_output_is_found(expected: Expected) -> None:
    assert len(differences(expected, {})) == 2


def test_an_unexpected_topic_is_found(expected: Expected, history: History) -> None:
    history["other"] = [Seen(0, 0, Record(b"k", b"v"))]
    assert any(problem.startswith("other: ") for problem in differences(expected, history))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda good: replace(good, resumed=0), "no transaction was resumed"),
        (lambda good: replace(good, aborted=0), "no transaction was aborted"),
        (lambda good: replace(good, arrived=4999), "4999 records arrived, 5000 were to be fed"),
        (lambda good: replace(good, open=["flights.kafka.1.w.1 (Ongoing)"]), "1 transactions are still open"),
        (lambda good: replace(good, stalled={"flights-delayed-0": 17}), "the last 17 offsets are held back"),
        (lambda good: replace(good, left_behind=["part-1.parquet"]), "1 files of no checkpoint are left: part-1"),
        (lambda good: replace(good, missing_kills=["driver.after_decision:8"]), "kill did not happen: driver.after_d"),
        (lambda good: replace(good, troubles=["driver-2 ended with exit code 1"]), "driver-2 ended with exit code 1"),
    ],
)
def test_a_run_that_proves_nothing_does_not_pass(
    expected: Expected, history: History, change: Callable[[Facts], Facts], words: str
) -> None:
    (problem,) = judge(expected, history, rows_of(expected), change(GOOD)).problems
    assert words in problem


_KEYS = st.sampled_from([b"UA", b"B6", None])
_VALUES = st.sampled_from([b"1", b"2", b"3", None])
_RECORDS = st.lists(st.builds(Record, _KEYS, _VALUES), max_size=12)


def _one_partition(records: Sequence[Record]) -> list[Seen]:
    return [Seen(0, offset, record) for offset, record in enumerate(records)]


def _per_key(records: Sequence[Record]) -> dict[bytes | None, list[bytes | None]]:
    keys = {record.key for record in records}
    return {key: [record.value for record in records if record.key == key] for key in keys}


@given(wanted=_RECORDS, got=_RECORDS)
def test_histories_pass_exactly_when_every_key_has_its_values_in_order(wanted: list[Record], got: list[Record]) -> None:
    right = _per_key(wanted) == _per_key(got)
    assert (not differences({"t": wanted}, {"t": _one_partition(got)})) == right


@given(data=st.data(), wanted=_RECORDS)
def test_a_permutation_passes_exactly_when_it_keeps_the_order_per_key(
    data: st.DataObject, wanted: list[Record]
) -> None:
    got = data.draw(st.permutations(wanted))
    right = _per_key(wanted) == _per_key(got)
    assert (not differences({"t": wanted}, {"t": _one_partition(got)})) == right
