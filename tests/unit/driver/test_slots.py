"""How a task hands its batches to a slot: in order, and every slot that was opened is finished or abandoned."""

from collections.abc import Iterator
from typing import Any

import pytest

from onceward.connectors.slots import OpenSlot, SlotContext
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.executor.slots import write_slot

CONTEXT = SlotContext(
    task=CheckpointTask(job="orders", generation=1, checkpoint=7, splits=(), columns=(), sink="out"), slot=2, attempt=9
)
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
    assert write_slot(slot, CONTEXT, batches(slot)) == VOTE
    assert slot.calls == ALL


def test_a_vote_is_announced_after_the_last_batch_if_the_slot_knows_it_and_the_task_wants_it() -> None:
    slot = Announcing()
    assert write_slot(slot, CONTEXT, batches(slot), lambda vote: slot.calls.append(vote)) == VOTE
    assert slot.calls == [*ALL[:-1], ("announce",), VOTE, ("finish",)]
    other = Slot()
    assert write_slot(other, CONTEXT, batches(other), lambda vote: slot.calls.append(vote)) == VOTE
    assert other.calls == ALL


def test_a_slot_with_nothing_to_announce_finishes() -> None:
    class Empty(Announcing):
        def announce(self) -> None:
            return None

    slot = Empty()
    assert write_slot(slot, CONTEXT, iter(()), lambda vote: slot.calls.append(vote)) == VOTE
    assert slot.calls == [("open", CONTEXT), ("finish",)]


@pytest.mark.parametrize("fails", ["read", "write", "announce", "announced", "finish"])
def test_a_slot_is_abandoned_once_whatever_fails(fails: str) -> None:
    slot = Announcing(fails)
    with pytest.raises(KeyboardInterrupt):
        write_slot(slot, CONTEXT, batches(slot), lambda _vote: slot._called("announced"))
    assert slot.calls[-2:] == [slot.calls[-2], ("abandon",)]
    assert slot.calls[-2][0] == fails
    assert slot.calls.count(("abandon",)) == 1


def test_a_slot_that_cannot_be_opened_is_not_abandoned() -> None:
    slot = Slot("open")
    with pytest.raises(KeyboardInterrupt):
        write_slot(slot, CONTEXT, batches(slot))
    assert slot.calls == [("open", CONTEXT)]
