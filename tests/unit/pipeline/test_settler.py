from typing import Any

from coordinator.pipeline.journal import Journal
from coordinator.pipeline.settler import Settler
from coordinator.protocol.values import CheckpointId, Committable, Document

HELD = (Committable(slot=0, document=Document(kind="test", version=1, body={})),)


def settler() -> Settler:
    """Without anything to settle through: only what it remembers is asked for."""
    nothing: Any = None
    return Settler(
        session=nothing,
        source=nothing,
        sink=nothing,
        committer=nothing,
        journal=Journal("orders"),
        on_settled=lambda _: None,
        on_lost=lambda: None,
        on_error=lambda _: None,
    )


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
    kept.settle(CheckpointId(5))
    assert kept.settled == 5
    assert kept.unsettled() == HELD
