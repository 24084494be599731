"""Retired ids are reported once and never reused, whatever workers, failures and threads do."""

from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceward.sinks.kafka.control.hanging import LAST_EPOCH
from onceward.sinks.kafka.driver import reuse
from onceward.sinks.kafka.driver.reuse import ROOM, ReusableIds


@dataclass
class Worker:
    """A process with its own ids, as in `onceward.sinks.kafka.executor.producers`."""

    name: int
    made: int = 0
    voted: dict[str, int] = field(default_factory=dict)

    def take(self, committed: dict[str, int]) -> str:
        free = [one for one, checkpoint in self.voted.items() if committed.get(one) == checkpoint]
        if free:
            del self.voted[free[0]]
            return free[0]
        self.made += 1
        return f"{self.name}.{self.made}"


@dataclass
class Job:
    """Run each checkpoint while the previous one settles, as the driver does."""

    ids: ReusableIds = field(default_factory=ReusableIds)
    checkpoint: int = 0
    settling: list[tuple[int, list[str]]] = field(default_factory=list)
    """Completed checkpoints, oldest first. The next run may begin before the settling thread reports one as settled."""
    gone: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    """Ids with a receipt."""

    def run(self, workers: list[Worker], *, fails: bool = False, settle_first: int = 2) -> None:
        self.checkpoint += 1
        offered = self.ids.offered()
        self.settle(settle_first)
        used = [worker.take(offered) for worker in workers]
        assert not self.gone & set(used), "the receipt of an id in use was deleted"
        if fails:
            return
        for worker, one in zip(workers, used, strict=True):
            worker.voted[one] = self.checkpoint
        self.ids.written(self.checkpoint)
        self.settle(len(self.settling) - 1)
        self.settling.append((self.checkpoint, used))

    def settle(self, count: int) -> None:
        for _ in range(min(count, len(self.settling))):
            checkpoint, used = self.settling.pop(0)
            self.kept |= set(used)
            unused = self.ids.settled(checkpoint, dict.fromkeys(used, (1, checkpoint)))
            assert len(set(unused)) == len(unused)
            assert not self.gone & set(unused)
            self.gone |= set(unused)
            self.kept -= set(unused)


@example([({0}, False, 2), ({3}, False, 2), ({1}, False, 2), ({2}, False, 0), ({0}, False, 2)])
@given(st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.booleans(), st.integers(0, 2)), max_size=40))
def test_an_id_whose_receipt_may_go_is_never_used_again(steps: list[tuple[set[int], bool, int]]) -> None:
    """Some workers stay idle for a while, so the job stops offering their ids."""
    with patch.object(reuse, "_KEPT_AT_LEAST", 2), patch.object(reuse, "_KEPT_PER_SLOT", 1):
        job, workers = Job(), [Worker(name=name) for name in range(6)]
        for chosen, fails, settle_first in steps:
            job.run([workers[name] for name in sorted(chosen)], fails=fails, settle_first=settle_first)
            assert not job.gone & job.ids.offered().keys()


@pytest.mark.parametrize("slots", [1, 16, 200])
def test_receipts_stay_few_when_every_checkpoint_has_new_workers(slots: int) -> None:
    job = Job()
    for checkpoint in range(100):
        job.run([Worker(name=checkpoint * slots + slot) for slot in range(slots)])
    assert len(job.kept) <= max(16, 4 * slots) + 2 * slots


@pytest.mark.parametrize("slots", [1, 16, 2_000])
def test_workers_that_stay_use_their_ids_again(slots: int) -> None:
    job, workers = Job(), [Worker(name=slot) for slot in range(slots)]
    for _ in range(10):
        job.run(workers)
    assert sum(worker.made for worker in workers) <= 3 * slots


@pytest.mark.parametrize(
    ("epoch", "offered"), [(LAST_EPOCH - ROOM - 1, True), (LAST_EPOCH - ROOM, False), (LAST_EPOCH, False)]
)
def test_an_id_is_not_used_again_near_its_producers_last_epoch(epoch: int, offered: bool) -> None:
    """Brokers may then end it with another producer id, and markers that they skip could never be written."""
    ids = ReusableIds()
    ids.offered()
    ids.written(1)
    assert ids.settled(1, {"worker.0": (7, epoch)}) == []
    assert ("worker.0" in ids.offered()) is offered
    ids.written(2)
    assert ids.settled(2, {}) == ([] if offered else ["worker.0"]), "its receipt is not needed any more"


def test_an_offer_that_is_used_later_is_over_later() -> None:
    """As staying tasks use it: they hear of it at a cut, and use it for what they write from then on."""
    with patch.object(reuse, "_KEPT_AT_LEAST", 1), patch.object(reuse, "_KEPT_PER_SLOT", 0):
        ids = ReusableIds()
        ids.offered()
        ids.offered(after=1)
        ids.written(1)
        ids.offered(after=2)
        ids.written(2)
        assert ids.settled(1, {"a": (1, 0), "b": (1, 0)}) == []
        assert ids.settled(2, {"b": (1, 1)}) == [], "the tasks that write 3 may have been offered a"
        ids.offered(after=3)
        ids.written(3)
        assert ids.settled(3, {"b": (1, 2)}) == ["a"]
