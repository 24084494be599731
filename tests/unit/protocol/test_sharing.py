"""Documents that share members survive a round trip, value by value."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.protocol.sharing import MAX_SHARED, merged, split

scalars = st.none() | st.booleans() | st.integers(0, 1) | st.sampled_from([0.0, -0.0, 1.0, "", "1"])
bodies = st.lists(st.dictionaries(st.sampled_from("abcd"), scalars | st.lists(scalars, max_size=2)), max_size=4)


def texts(found: list[Any]) -> list[str]:
    return [json.dumps(one, sort_keys=True) for one in found]


@given(bodies)
def test_split_documents_merge_to_the_same_json(found: list[dict[str, Any]]) -> None:
    shared, own = split(found)
    assert texts([merged(shared, one) for one in own]) == texts(found)


def test_one_object_in_all_bodies_is_shared_and_an_equal_one_is_not() -> None:
    ranges = [{"start": 0}]
    assert split([{"r": ranges, "n": 1}, {"r": ranges, "n": 2}]) == ({"r": ranges}, [{"n": 1}, {"n": 2}])
    assert split([{"r": ranges}, {"r": [{"start": 0}]}])[0] == {}


def test_a_member_that_is_missing_somewhere_is_not_shared() -> None:
    assert split([{"a": None}, {}]) == ({}, [{"a": None}, {}])


def test_members_are_shared_in_bounded_number_and_only_outside_the_documents() -> None:
    many = {str(number): number for number in range(MAX_SHARED + 10)}
    assert len(split([many, many])[0]) == MAX_SHARED
    with pytest.raises(ValueError, match="at most"):
        merged(many, {})
    with pytest.raises(ValueError, match="'a' is shared and in one"):
        merged({"a": 1}, {"a": 1})
