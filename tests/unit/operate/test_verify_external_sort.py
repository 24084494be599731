"""The files behind ``onceward verify``: groups differ exactly where multisets or orders per key do."""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.operate.verify.external_sort import COVERED, ExternalSort, Record, Side
from tests.conftest import examples

_RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["out", "other"]), st.sampled_from([b"a", b"b", b"", None]), st.sampled_from([b"1", b"2", None])
    ),
    max_size=8,
)


def differing(
    expected: Sequence[Record], visible: Sequence[Record], lanes: Sequence[int] = ()
) -> tuple[int, ExternalSort]:
    """Return the number of differing groups, and the sort. ``lanes``: those of the expected records, 0 by default."""
    with tempfile.TemporaryDirectory() as directory:
        sort = ExternalSort(Path(directory), ["out"], files=3)
        for offset, record in enumerate(expected):
            sort.add(Side.EXPECTED, record, lane=lanes[offset] if lanes else 0, offset=offset)
        for offset, record in enumerate(visible):
            sort.add(Side.VISIBLE, record, lane=0, offset=offset)
        found = list(sort.compare())
        assert len(found) == sort.differing
        assert list(Path(directory).iterdir()) == [], "no file is left"
    return len(found), sort


def groups(records: Sequence[Record]) -> dict[object, object]:
    """Return values per key in order, and records without a key as a multiset."""
    keyed: dict[object, list[bytes | None]] = defaultdict(list)
    for topic, key, value in records:
        if key is not None:
            keyed[topic, key].append(value)
    return {**keyed, **Counter((topic, None, value) for topic, key, value in records if key is None)}


@settings(max_examples=examples(60))
@given(expected=_RECORDS, visible=_RECORDS)
def test_groups_differ_exactly_where_the_values_of_a_key_do(expected: list[Record], visible: list[Record]) -> None:
    wanted, got = groups(expected), groups(visible)
    assert differing(expected, visible)[0] == sum(wanted.get(each) != got.get(each) for each in {**wanted, **got})


def test_null_and_empty_are_not_the_same() -> None:
    assert differing([("out", b"k", None)], [("out", b"k", b"")])[0] == 1
    assert differing([("out", None, b"v")], [("out", b"", b"v")])[0] == 2


def test_the_order_of_a_key_from_two_partitions_is_not_compared_and_counted() -> None:
    records: list[Record] = [("out", b"k", b"1"), ("out", b"k", b"2")]
    found, sort = differing(records, records[::-1], lanes=[0, 1])
    assert (found, sort.unordered) == (0, 1)
    found, sort = differing(records, records[::-1])
    assert (found, sort.unordered) == (1, 0)


def test_a_key_in_two_output_partitions_differs() -> None:
    with tempfile.TemporaryDirectory() as directory:
        sort = ExternalSort(Path(directory), ["out"], files=3)
        for offset in range(2):
            sort.add(Side.EXPECTED, ("out", b"k", b"%d" % offset), lane=0, offset=offset)
            sort.add(Side.VISIBLE, ("out", b"k", b"%d" % offset), lane=offset, offset=0)
        (each,) = sort.compare()
    assert (len(each.expected), len(each.visible)) == (2, 2)


def test_uncovered_input_is_not_expected_and_shown_beside_the_differences() -> None:
    with tempfile.TemporaryDirectory() as directory:
        sort = ExternalSort(Path(directory), ["out"], files=3)
        sort.add(Side.EXPECTED, ("out", b"k", b"1"), lane=3, offset=7, flags=0)
        sort.add(Side.EXPECTED, ("out", b"quiet", b"1"), lane=3, offset=8, flags=0)
        sort.add(Side.VISIBLE, ("out", b"k", b"1"), lane=1, offset=9)
        (each,) = sort.compare()
    assert [(one.lane, one.offset, one.flags & COVERED) for one in each.expected] == [(3, 7, 0)]
    assert sort.counts == {Side.VISIBLE: 1}


def test_records_are_counted_on_both_sides_and_named_by_topic_and_key() -> None:
    with tempfile.TemporaryDirectory() as directory:
        sort = ExternalSort(Path(directory), ["first", "second"], files=3)
        records: list[Record] = [
            ("first", b"k", b"1"),
            ("second", b"k", b"1"),
            ("third", b"k", b"1"),
            ("first", None, b"1"),
        ]
        for offset, record in enumerate(records):
            sort.add(Side.EXPECTED, record, lane=0, offset=offset)
        sort.add(Side.VISIBLE, ("first", b"other", b"1"), lane=0, offset=0)
        found = list(sort.compare())
        expected = [sort.content(one) for each in found for one in each.expected]
        visible = [sort.content(one) for each in found for one in each.visible]
    assert sort.counts == {Side.EXPECTED: 4, Side.VISIBLE: 1}
    assert sorted(each.topic for each in expected) == ["another topic", "first", "first", "second"]
    assert sum(each.key is None for each in expected) == 1
    assert all((each.key or "#").startswith("#") and (each.value or "").startswith("#") for each in expected)
    assert len({(each.key, each.value) for each in [*expected, *visible]}) == 5, "no two of them are the same record"


def test_every_key_whose_order_cannot_be_known_is_counted() -> None:
    records: list[Record] = [("out", key, value) for key in (b"a", b"b", b"c") for value in (b"1", b"2")]
    _, sort = differing(records, records, lanes=[0, 1, 0, 1, 0, 0])
    assert sort.unordered == 2


def test_a_record_without_a_key_has_no_order() -> None:
    records: list[Record] = [("out", None, b"1"), ("out", None, b"1")]
    found, sort = differing(records, records, lanes=[0, 1])
    assert (found, sort.unordered) == (0, 0)
