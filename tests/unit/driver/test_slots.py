"""How a task hands its batches to a slot: in order, and every slot that was opened is finished or abandoned."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from onceward.connectors.slots import OpenSlot, SlotContext
from onceward.connectors.tasks import Ballot, CheckpointTask, Vote
from onceward.executor.slots import Attempt, TaskSlots
from tests.support.slots import write_slot

ATTEMPT = Attempt(
    task=CheckpointTask(job="orders", generation=1, checkpoint=7, splits=(), columns=(), sinks={"out": {"ids": 3}}),
    slot=2,
    number=9,
)
CONTEXT = ATTEMPT.at("out")
VOTE = Vote(slot=2, attempt=9, records=2, bytes=2)


class Slot:
    """A writer of one slot, and the slot. It raises in the call that ``fails`` names."""

    def __init__(self, fails: str = "") -> None:
        self._fails = fails
        self.calls: list[Any] = []

    def _called(self, name: str, *given: Any) -> None:
        self.calls.append((name, *given))
        if name == self._fails:
            raise KeyboardInterrupt

    def open(self, context: SlotContext) -> OpenSlot:
        self._called("open", context)
        return self

    def write(self, batch: Any) -> None:
        self._called("write", batch)

    def finish(self) -> Vote:
        self._called("finish")
        return VOTE

    def abandon(self) -> None:
        self._called("abandon")


class Announcing(Slot):
    def announce(self) -> Vote | None:
        self._called("announce")
        return VOTE


def batches(slot: Slot) -> Iterator[Any]:
    for batch in ("a", "b"):
        slot._called("read", batch)
        yield batch


ALL = [("open", CONTEXT), ("read", "a"), ("write", "a"), ("read", "b"), ("write", "b"), ("finish",)]


@pytest.mark.parametrize("slot", [Slot(), Announcing()])
def test_each_batch_is_written_before_the_next_is_read_and_then_the_slot_finishes(slot: Slot) -> None:
    assert write_slot(slot, ATTEMPT, batches(slot)) == VOTE
    assert slot.calls == ALL


def test_a_vote_is_announced_after_the_last_batch_if_the_slot_knows_it_and_the_task_wants_it() -> None:
    slot = Announcing()
    assert write_slot(slot, ATTEMPT, batches(slot), lambda vote: slot.calls.append(vote)) == VOTE
    assert slot.calls == [*ALL[:-1], ("announce",), VOTE, ("finish",)]
    other = Slot()
    assert write_slot(other, ATTEMPT, batches(other), lambda vote: slot.calls.append(vote)) == VOTE
    assert other.calls == ALL


def test_a_slot_with_nothing_to_announce_finishes() -> None:
    class Empty(Announcing):
        def announce(self) -> None:
            return None

    slot = Empty()
    assert write_slot(slot, ATTEMPT, iter(()), lambda vote: slot.calls.append(vote)) == VOTE
    assert slot.calls == [("open", CONTEXT), ("finish",)]


@pytest.mark.parametrize("fails", ["read", "write", "announce", "announced", "finish"])
def test_a_slot_is_abandoned_once_whatever_fails(fails: str) -> None:
    slot = Announcing(fails)
    with pytest.raises(KeyboardInterrupt):
        write_slot(slot, ATTEMPT, batches(slot), lambda _vote: slot._called("announced"))
    assert slot.calls[-2:] == [slot.calls[-2], ("abandon",)]
    assert slot.calls[-2][0] == fails
    assert slot.calls.count(("abandon",)) == 1


def test_a_slot_that_cannot_be_opened_is_not_abandoned() -> None:
    slot = Slot("open")
    with pytest.raises(KeyboardInterrupt):
        write_slot(slot, ATTEMPT, batches(slot))
    assert slot.calls == [("open", CONTEXT)]


# -- several sinks


class Shared(Slot):
    """One of several slots, which all note their calls in one list."""

    def __init__(self, name: str, calls: list[Any], fails: str = "") -> None:
        super().__init__(fails)
        self._name, self.calls = name, calls

    def _called(self, name: str, *given: Any) -> None:
        super()._called(f"{self._name} {name}", *given)


class SharedAnnouncing(Shared):
    def announce(self) -> Vote | None:
        self._called("announce")
        return VOTE


TWO = replace(ATTEMPT, task=replace(ATTEMPT.task, sinks={"a": {}, "b": {}}))
ROUTED = [("b", 1), ("a", 2), ("other", 3), ("b", 4)]
BOTH = Ballot({"a": VOTE, "b": VOTE})


def names(calls: list[Any]) -> list[str]:
    return [call[0] for call in calls]


def test_each_batch_goes_to_the_sink_that_it_names_and_those_of_sinks_not_written_now_are_dropped() -> None:
    calls: list[Any] = []
    assert TaskSlots({name: Shared(name, calls) for name in "abc"}, TWO).write(iter(ROUTED)) == BOTH
    opened = [("a open", TWO.at("a")), ("b open", TWO.at("b"))]
    assert calls == [*opened, ("b write", 1), ("a write", 2), ("b write", 4), ("a finish",), ("b finish",)]


def test_a_ballot_is_announced_once_what_announces_nothing_has_finished() -> None:
    calls: list[Any] = []
    writers = {"a": SharedAnnouncing("a", calls), "b": Shared("b", calls)}
    assert TaskSlots(writers, TWO).write(iter(()), lambda ballot: calls.append(("announced", ballot))) == BOTH
    assert calls[2:] == [("a announce",), ("b finish",), ("announced", BOTH), ("a finish",)]


@pytest.mark.parametrize(
    ("fails", "abandoned"),
    [
        ("a write", ["a abandon", "b abandon"]),
        ("b write", ["a abandon", "b abandon"]),
        ("a finish", ["a abandon", "b abandon"]),
        ("b finish", ["b abandon"]),  # the driver sweeps what has finished
        ("b open", ["a abandon"]),
        ("a open", []),
    ],
)
def test_whatever_fails_every_slot_that_has_not_finished_is_abandoned(fails: str, abandoned: list[str]) -> None:
    calls: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        TaskSlots({name: Shared(name, calls, fails) for name in "ab"}, TWO).write(iter(ROUTED))
    assert [name for name in names(calls) if name.endswith("abandon")] == abandoned
