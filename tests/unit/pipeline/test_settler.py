from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from coordinator.errors import OncewardError
from coordinator.pipeline.journal import Journal
from coordinator.pipeline.runtime import THREADS, Runtime, Threads
from coordinator.pipeline.settler import Settler
from coordinator.protocol.values import CheckpointId, Claim, Committable, Document, Outcome, Settlement

HELD = (Committable(slot=0, document=Document(kind="test", version=1, body={})),)


def settler(runtime: Runtime = THREADS, *, session: Any = None, sink: Any = None) -> Settler:
    """Without anything to commit through: only what it remembers is asked for."""
    nothing: Any = None
    return Settler(
        session=session,
        source=nothing,
        sink=sink,
        committer=nothing,
        journal=Journal("orders"),
        on_settled=lambda _: None,
        on_lost=lambda: None,
        on_error=raise_,
        runtime=runtime,
    )


def raise_(error: OncewardError) -> None:
    raise error


class Queue(Threads):
    """A runtime whose workers make no call before they are told to."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def worker(self, name: str) -> "Queue":
        return self

    def submit(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def close(self, *, wait: bool) -> None:
        self.calls.clear()


def test_an_unsettled_checkpoint_is_kept_however_many_unchanged_ones_follow() -> None:
    """Else the idle job's sweep would take its transactions for leftovers and abort decided records."""
    kept = settler()
    kept.expect(CheckpointId(5), HELD, None)
    for unchanged in range(6, 500):
        kept.expect(CheckpointId(unchanged), (), None)
    assert kept.unsettled() == HELD


def test_what_was_decided_against_is_no_longer_kept_from_the_sweep() -> None:
    kept = settler()
    kept.expect(CheckpointId(5), HELD, None)
    kept.forget(CheckpointId(5))
    assert kept.unsettled() == ()


def test_a_repeated_instruction_that_waited_until_its_checkpoint_was_settled_and_followed_changes_nothing() -> None:
    kept = settler()
    kept.expect(CheckpointId(5), HELD, None)
    kept.settled = CheckpointId(5)
    kept.expect(CheckpointId(6), HELD, None)
    kept.settle(CheckpointId(5), 0)
    assert kept.settled == 5
    assert kept.unsettled() == HELD


def test_a_repeated_instruction_that_waited_while_lost_slots_were_written_again_commits_nothing_of_them() -> None:
    """Only the coordinator's word about the amendment may: if it never hears of it, it has them written once more."""
    queue = Queue()
    kept = settler(queue)
    kept.expect(CheckpointId(5), HELD, None)
    kept.complete(CheckpointId(5))
    kept._settlements[CheckpointId(5), 0] = (Settlement(slot=0, outcome=Outcome.LOST, evidence="timed out"),)
    queue.calls.clear()  # it was made: the loss was reported
    kept.complete(CheckpointId(5))
    (told_again,) = queue.calls
    written = (replace(HELD[0], document=Document(kind="test", version=1, body={"again": True})),)
    kept.amend(CheckpointId(5), frozenset({0}), written)
    told_again()  # with a committer or a session it would commit and report
    assert kept.unsettled() == written


class Unclaimed:
    """A sink and a session whose claim is not written until the driver leaves."""

    grant = SimpleNamespace(store_id="store")
    generation, driver = 1, "driver"

    def renew_claim(self, claim: Claim, *, give_up: Callable[[], bool]) -> bool:
        return False


def test_a_driver_that_leaves_before_its_claim_is_written_commits_nothing() -> None:
    leaving = settler(session=Unclaimed(), sink=Unclaimed())
    leaving.expect(CheckpointId(5), HELD, None)
    leaving.settle(CheckpointId(5), 0)  # there is no committer to commit with
    assert leaving.unsettled() == HELD
