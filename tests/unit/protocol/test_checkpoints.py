"""Rules of one checkpoint that no scenario plays."""

from dataclasses import replace

import pytest

from onceward.protocol.answers import Verdict
from onceward.protocol.core import step
from onceward.protocol.events import Acknowledge
from onceward.protocol.facts import (
    AbortReason,
    CheckpointAborted,
    CheckpointTriggered,
    LossSkipped,
    StatusChanged,
)
from onceward.protocol.settings import CheckpointSettings
from tests.support.player import Player
from tests.unit.protocol.lives import BEGUN, UNSETTLED, after, one, said


@pytest.mark.parametrize(
    ("first", "second"), [("good 5", "good 50"), ("good 50", "good 5"), ("good 5", ""), ("", "good 5")]
)
def test_the_transactions_that_may_be_committed_for_the_shortest_time_count(first: str, second: str) -> None:
    """The base is not settled, so the checkpoint waits."""
    player = after(*UNSETTLED, "request s checkpoint")
    player.play(f"ack 3 source on 2 at 3 {first}")
    player.play(f"ack 3 sink on 2 slots 0 {second}")
    assert said(player, "after 4.9")[1] == ()
    aborted = one(said(player, "after 0.1")[1], CheckpointAborted)
    assert (aborted.checkpoint, aborted.reason) == (3, AbortReason.TOO_OLD)
    assert aborted.detail.startswith("5 s after its trigger")


def test_an_unchanged_checkpoint_is_over_and_is_never_withdrawn() -> None:
    player = after(
        *BEGUN, "request r checkpoint", "ack 2 source on 1 at 1 unchanged good 5", "ack 2 sink on 1 unchanged"
    )
    assert said(player, "after 9")[1] == ()


def test_the_first_checkpoint_is_tried_again_at_once_where_there_is_no_interval() -> None:
    player = after("open d1", "watch", settings=CheckpointSettings(interval=None, tolerable_failed_checkpoints=9))
    facts = said(player, "decline 1 sink")[1]
    assert one(facts, CheckpointTriggered).checkpoint == 2


def test_a_checkpoint_that_follows_an_aborted_one_has_waited_only_since_then() -> None:
    player = after("open d1", "watch", settings=CheckpointSettings(interval="1s", tolerable_failed_checkpoints=9))
    player.now += 7
    facts = said(player, "decline 1 sink")[1]
    assert one(facts, CheckpointTriggered).waited_s == 0.0


@pytest.mark.parametrize(("records", "size"), [(-1, 0), (0, -1)])
def test_a_negative_count_is_refused(records: int, size: int) -> None:
    player = after("open d1", "watch")
    event = player.event("ack 1 source on 0 at 1")
    assert isinstance(event, Acknowledge)
    answer = step(player.state, replace(event, snapshot=replace(event.snapshot, records=records, bytes=size)))[1].answer
    assert (answer.verdict, answer.detail) == (Verdict.INVALID, "source acknowledged a negative count")


@pytest.mark.parametrize(
    ("command", "verdict", "words"),
    [
        ("ack 2 source on 0 at 2", Verdict.WRONG_BASE, "checkpoint 2 builds on 1, the acknowledgement on 0"),
        ("ack 2 source on 1", Verdict.INVALID, "source source acknowledged without positions"),
        ("ack 2 source on 1 at 2", Verdict.DUPLICATE, ""),
        ("ack 2 source on 1 at 3", Verdict.CONFLICT, "source acknowledged checkpoint 2 twice with different content"),
        ("ack 2 stranger on 1 at 2", Verdict.UNKNOWN_PARTICIPANT, "stranger is no participant"),
        ("decline 2 stranger", Verdict.UNKNOWN_PARTICIPANT, "stranger is no participant"),
        ("ack 3 source on 1 at 2", Verdict.UNKNOWN_CHECKPOINT, "checkpoint 3 was never triggered"),
        ("ack 0 source on 1 at 2", Verdict.UNKNOWN_CHECKPOINT, "checkpoint 0 was never triggered"),
        ("settle 3 sink 0=committed", Verdict.UNKNOWN_CHECKPOINT, "checkpoint 3 was never triggered"),
    ],
)
def test_a_rejected_acknowledgement_is_answered_with_the_reason(command: str, verdict: Verdict, words: str) -> None:
    player = after(*BEGUN, "request r checkpoint", "ack 2 source on 1 at 2")
    answer, _ = said(player, command)
    assert answer.verdict is verdict
    assert words in answer.detail


@pytest.mark.parametrize(
    ("command", "verdict", "words"),
    [
        ("settle 1 sink 0=committed", Verdict.TOO_LATE, "checkpoint 1 is not the newest completed one"),
        ("settle 2 source 0=committed", Verdict.UNKNOWN_PARTICIPANT, "source has nothing to settle in checkpoint 2"),
        ("settle 2 sink 7=committed", Verdict.INVALID, "settlements must name slots of checkpoint 2 once each"),
        ("settle 2 sink amendment 1 0=committed", Verdict.FENCED, "amendment 1 of checkpoint 2, this store only 0"),
        ("amend 2 sink 0 amendment 1", Verdict.FENCED, "amendment 1 of checkpoint 2, this store only 0"),
        ("amend 2 sink 0", Verdict.INVALID, "only lost slots can be written again; lost are []"),
        ("settle 2 sink 0=lost", Verdict.ACCEPTED, "checkpoint 2: slot 0 is lost"),
        ("settle 2 sink 0=in_doubt", Verdict.ACCEPTED, "checkpoint 2: slot 0 is in_doubt"),
    ],
)
def test_a_settle_report_is_answered_with_its_consequence(command: str, verdict: Verdict, words: str) -> None:
    answer, _ = said(after(*UNSETTLED), command)
    assert answer.verdict is verdict
    assert words in answer.detail


def replaying(how: str) -> Player:
    return after(f"open d1 {how}", *UNSETTLED[1:-1], "ack 2 sink on 1 slots 0,1,2")


def test_a_replay_learns_that_its_slots_are_lost_again() -> None:
    player = replaying("replaying")
    answer, _ = said(player, "settle 2 sink 0=committed 1=lost 2=lost")
    assert answer.detail == "checkpoint 2: slot 1 is lost; slot 2 is lost"
    assert said(player, "amend 2 sink 1,2 slots 1,3")[0].detail.startswith("committables must be of the slots written")


def test_a_skipped_loss_is_kept_with_its_committables() -> None:
    answer, facts = said(replaying("skipping"), "settle 2 sink 0=committed 1=lost")
    assert answer.detail == "checkpoint 2: slot 1 is lost"
    assert [committable.slot for committable in one(facts, LossSkipped).committables] == [1]


def test_a_lost_slot_stays_lost_even_if_reported_committed() -> None:
    player = after(*UNSETTLED, "settle 2 sink 0=lost")
    said(player, "settle 2 sink 0=committed")
    assert player.state.durable.unresolved
    assert not player.state.settled


def test_a_ruling_is_recorded_with_its_reason() -> None:
    player = after(*BEGUN, "request r checkpoint", "decline 2 sink")
    assert said(player, "ack 2 source on 1 at 2")[0].detail == "checkpoint 2 is aborted: a participant declined it"


def test_a_failure_that_is_one_too_many_is_the_reason_why_the_job_restarts() -> None:
    player = after("open d1", "watch", settings=CheckpointSettings(interval="1h"))
    changed = one(said(player, "decline 1 sink")[1], StatusChanged)
    assert changed.detail == "checkpoint 1 was aborted: a participant declined it: sink: no"


def test_a_stop_with_savepoint_names_the_savepoint() -> None:
    player = after(*BEGUN, "request r savepoint stop", "ack 2 source on 1 at 2")
    changed = one(said(player, "ack 2 sink on 1")[1], StatusChanged)
    assert changed.detail == "stopping with savepoint 2"
