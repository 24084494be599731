"""A lost slot is written again only from a split that made this slot and no other."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock, call

import pytest

from onceward.connectors.interfaces import Origin, ReplayRefusedError
from onceward.driver.origins import lost_splits, require_records, require_slots, slot_origins
from onceward.protocol.values import Committable, JsonObject
from tests.support.documents import committable

A, B = ({"topic": "in", "partition": number, "start": 0, "end": 5} for number in (0, 1))


def describe(splits: Sequence[JsonObject]) -> str:
    return " and ".join(str(split["partition"]) for split in splits)


@pytest.mark.parametrize(
    ("inputs", "slots"),
    [
        ([[A], [B]], {0, 1}),
        ([[A, B], [A, B]], set()),
        ([[A], [A], [B]], {2}),
        ([[A], [A, B]], set()),
        ([[A, B]], set()),
        ([[A]], {0}),
    ],
    ids=["copy", "shuffle", "one split in two slots", "one split in a shared slot", "coalesced", "one slot"],
)
def test_only_a_split_that_made_one_slot_and_that_alone_gives_the_slot_again(
    inputs: list[list[JsonObject]], slots: set[int]
) -> None:
    origins = slot_origins(inputs, describe)
    assert [origin.inputs for origin in origins] == inputs
    assert {slot for slot, origin in enumerate(origins) if origin.replayable} == slots


def test_the_slots_of_a_shuffle_share_their_list_of_splits() -> None:
    """It is then sent and stored once."""
    splits: Sequence[JsonObject] = [A, B]
    described = Mock(side_effect=describe)
    first, second, third = slot_origins([splits, splits, [B]], described)
    assert first.inputs is second.inputs
    assert described.mock_calls == [call(splits), call([B])], "the source describes it once, too"
    assert [first.text, second.text, third.text] == ["0 and 1", "0 and 1", "1"]


class Sink:
    """A sink that remembers the origins of slots 0, 1, … and what it checked."""

    def __init__(self, *origins: Origin) -> None:
        self.origins = origins
        self.checked: list[int] = []

    def origin(self, committable: Committable) -> Origin:
        return self.origins[committable.slot]

    def check_destination(self, lost: Sequence[Committable]) -> None:
        self.checked += [one.slot for one in lost]


def lost(sink: Sink, *slots: int) -> tuple[JsonObject, ...]:
    written: Any = sink
    return lost_splits(written, [committable(slot) for slot in slots])


def test_each_lost_slot_is_written_again_from_its_own_split_if_its_place_is_unchanged() -> None:
    sink = Sink(*slot_origins([[A], [B]], describe))
    assert lost(sink, 1, 0) == (B, A)
    assert sink.checked == [1, 0]


def test_a_checkpoint_that_one_committable_holds_is_written_again_from_all_its_splits() -> None:
    """Also after a shuffle: all slots are written again, however many there are."""
    shared = [A, B]
    whole = Origin.of_all(slot_origins([shared, shared, [B]], describe))
    assert (list(whole.inputs), whole.replayable, whole.text) == ([A, B], True, "0 and 1; 1")
    sink: Any = Sink(whole)
    assert lost(sink, 0) == (A, B)
    require_slots(sink, [committable(0)], [[A, B], [A, B]])


def test_what_an_older_release_has_pre_committed_without_its_input_is_refused() -> None:
    with pytest.raises(ReplayRefusedError, match="did not store its input"):
        lost(Sink(Origin(inputs=(), replayable=False, whole=True)), 0)


def test_a_slot_that_another_split_makes_now_is_refused() -> None:
    sink: Any = Sink(*slot_origins([[A], [B]], describe))
    lost = [committable(0), committable(1)]
    require_slots(sink, lost, [[A], [B]])
    with pytest.raises(ReplayRefusedError, match="3 slots came of 2 ranges"):
        require_slots(sink, lost, [[A, B]] * 3)


def test_a_slot_of_a_shuffle_is_refused_with_the_reason() -> None:
    with pytest.raises(ReplayRefusedError, match=r"slot 1 .* the plan moved rows between partitions"):
        lost(Sink(*slot_origins([[A], [A, B]], describe)), 1)


def test_slots_are_written_again_with_as_many_records_as_they_had() -> None:
    lost = [committable(0, records=7), committable(1, records=3)]
    require_records(lost, 10)
    for written in (9, 11):
        with pytest.raises(ReplayRefusedError, match=f"had 10 records, and {written} would be written"):
            require_records(lost, written)
    with pytest.raises(ReplayRefusedError, match="does not store how many"):
        require_records([*lost, committable(2)], 10)
