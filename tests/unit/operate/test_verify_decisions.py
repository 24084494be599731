"""A coordinator's reports about its decisions, in order, and the contradictions among them."""

import pytest

from onceward.operate.verify.decisions import broken_decisions, unsettled
from onceward.operate.verify.history import CheckpointReport, Lane
from onceward.operate.verify.verdict import Breach

LANE = Lane("in", 0)


def report(
    checkpoint: int, base: int, state: str, *, kind: str = "checkpoint", end: int | None = None, last: bool = False
) -> CheckpointReport:
    return CheckpointReport(checkpoint, base, 1, kind, state, None if end is None else {LANE: end}, last=last)


BEFORE = (report(1, 0, "completed", end=3), report(1, 0, "settled", end=3))


@pytest.mark.parametrize(
    "more",
    [
        (),
        (report(1, 0, "settled"),),
        (
            report(2, 1, "triggered"),
            report(2, 1, "aborted"),
            report(3, 1, "triggered"),
            report(3, 1, "completed", end=5),
        ),
        # An operator restored 1, and the history forks there.
        (report(2, 1, "completed"), report(3, 1, "settled", kind="restore"), report(4, 3, "completed")),
        (report(2, 1, "completed"), report(3, 1, "settled", kind="restore"), report(4, 1, "completed")),
        (report(2, 7, "completed"),),
    ],
)
def test_one_decision_for_each_checkpoint_is_right(more: tuple[CheckpointReport, ...]) -> None:
    assert list(broken_decisions((*BEFORE, *more))) == []


@pytest.mark.parametrize(
    ("more", "kind", "what"),
    [
        ((report(1, 0, "aborted"),), "decisions changed", "checkpoint 1 was settled and is aborted"),
        ((report(1, 0, "completed"),), "decisions changed", "checkpoint 1 was settled and is completed"),
        (
            (report(2, 1, "triggered"), report(2, 0, "triggered")),
            "decisions changed",
            "checkpoint 2 was of generation 1 on 1 and is of generation 1 on 0",
        ),
        # A report without positions in between makes no difference.
        (
            (report(1, 0, "settled"), report(1, 0, "settled", end=4)),
            "decisions changed",
            "checkpoint 1 ended in-0 at 3",
        ),
        (
            (report(2, 1, "completed"), report(3, 1, "completed")),
            "two checkpoints completed on one base",
            "2 and 3, both on 1",
        ),
        (
            (report(2, 1, "completed"), report(9, 8, "settled", kind="restore"), report(3, 1, "completed")),
            "two checkpoints completed on one base",
            "2 and 3, both on 1",
        ),
        (
            (report(2, 1, "aborted"), report(3, 2, "completed")),
            "checkpoints completed on one that is not",
            "3 on 2, which is aborted",
        ),
        # An unreadable row is no decision; the reports after it are still checked.
        ((report(9, 1, "unreadable"), report(1, 0, "aborted")), "decisions changed", "checkpoint 1 was settled"),
    ],
)
def test_a_decision_that_was_changed_or_made_twice_is_named(
    more: tuple[CheckpointReport, ...], kind: str, what: str
) -> None:
    (breach,) = broken_decisions((*BEFORE, *more))
    assert (breach.topic, breach.kind) == ("", kind)
    assert breach.what.startswith(what)


def test_leftovers_at_the_end_are_named() -> None:
    said = (report(1, 0, "completed"), report(1, 0, "completed", last=True), report(2, 1, "triggered", last=True))
    assert list(unsettled((*said, report(3, 2, "aborted", last=True), report(4, 2, "settled", last=True)))) == [
        Breach("", "checkpoints are not settled", "1 of generation 1"),
        Breach("", "checkpoints are not decided", "2 of generation 1"),
    ]
