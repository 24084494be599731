"""The reasons, durations and deadlines in answers to drivers and operators; scenarios play the outcomes."""

from dataclasses import replace
from datetime import timedelta

import pytest

from onceward.protocol.answers import Verdict
from onceward.protocol.core import step
from onceward.protocol.events import Acknowledge, Decline
from onceward.protocol.facts import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointRestored,
    CheckpointSettled,
    CheckpointTriggered,
    Fact,
    GenerationEnded,
    StatusChanged,
)
from onceward.protocol.generations import claim_refusal
from onceward.protocol.phases import Phase
from onceward.protocol.values import CheckpointId, Claim, Generation, ParticipantName
from tests.support.player import Player
from tests.unit.protocol.lives import BEGUN, UNSETTLED, after, one, said


def test_a_waiting_driver_learns_who_blocks_it_and_for_how_long() -> None:
    answer, _ = said(after("open d1", "watch", "after 5"), "open d2")
    assert (answer.verdict, answer.generation, answer.retry_after_s) == (Verdict.BUSY, 1, 15.0)
    assert "generation 1 of orders has a living driver" in answer.detail


def test_a_driver_that_may_return_gets_the_reason() -> None:
    answer, _ = said(after("open d1", "close failed"), "renew")
    assert answer.may_return
    assert "no other driver has the job" in answer.detail


def test_a_driver_of_a_halted_job_gets_the_cause_of_the_halt() -> None:
    answer, _ = said(after(*UNSETTLED, "settle 2 sink 0=lost"), "open d2")
    assert answer.verdict is Verdict.HALTED
    assert "job orders is halted: checkpoint 2: slot 0 is lost" in answer.detail


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Claim(store_id="b", generation=Generation(1), completed=CheckpointId(1)), "belongs to store b"),
        (Claim(store_id="store-a", generation=Generation(1), completed=CheckpointId(1), holder="d9"), "another copy"),
        (Claim(store_id="store-a", generation=Generation(2), completed=CheckpointId(1), holder="d9"), "an old copy"),
        (Claim(store_id="store-a", generation=Generation(1), completed=CheckpointId(2)), "only generation 1 and check"),
        (
            Claim(store_id="store-a", generation=Generation(1), completed=CheckpointId(1), amendment=1),
            "replaced 1 times",
        ),
        (Claim(store_id="store-a", generation=Generation(1), completed=CheckpointId(0), amendment=1), ""),
        (Claim(store_id="store-a", generation=Generation(1), completed=CheckpointId(1), holder="d1"), ""),
        (Claim(store_id="store-a", generation=Generation(1), completed=CheckpointId(0)), ""),
    ],
)
def test_a_claim_against_this_store_is_refused_with_the_reason(claim: Claim, words: str) -> None:
    assert words in (claim_refusal(after(*BEGUN).state.durable, claim) or "")
    assert (claim_refusal(after(*BEGUN).state.durable, claim) is None) is (words == "")


def test_with_an_unreadable_newest_checkpoint_a_claim_of_a_known_id_is_no_newer_store() -> None:
    durable = after(*BEGUN, "damage").state.durable
    claim = Claim(store_id="store-a", generation=Generation(1), completed=CheckpointId(1))
    assert claim_refusal(durable, claim) is None
    assert claim_refusal(durable, replace(claim, amendment=1)) is None, "its amendment cannot be read either"
    assert claim_refusal(durable, replace(claim, completed=CheckpointId(2))) is not None


def test_a_checkpoint_reports_the_duration_of_each_step() -> None:
    player = after(*BEGUN, "request r checkpoint")
    assert one(said(after("open d1", "after 3"), "watch")[1], CheckpointTriggered).waited_s == 3.0
    player.play("after 4")
    player.play("ack 2 source on 1 at 2")
    player.play("after 2")
    completed = one(said(player, "ack 2 sink on 1 slots 0")[1], CheckpointCompleted)
    assert (completed.ran_s, completed.decided_s, completed.settled) == (6.0, 0.0, False)
    player.play("after 7")
    assert one(said(player, "settle 2 sink 0=committed")[1], CheckpointSettled).took_s == 7.0


def test_a_checkpoint_that_waits_for_its_base_reports_how_long() -> None:
    player = after(*UNSETTLED)
    for command in ("request s checkpoint", "after 1", "ack 3 source on 2 at 3", "ack 3 sink on 2", "after 8"):
        player.play(command)
    completed = one(said(player, "settle 2 sink 0=committed")[1], CheckpointCompleted)
    assert (completed.checkpoint, completed.ran_s, completed.decided_s) == (3, 1.0, 8.0)


def test_an_aborted_checkpoint_reports_its_duration_and_cause() -> None:
    aborted = one(said(after("open d1", "watch", "after 6"), "decline 1 sink")[1], CheckpointAborted)
    assert (aborted.ran_s, aborted.detail) == (6.0, "sink: no")
    replaced = one(said(after("open d1", "watch"), "open d2 takeover")[1], CheckpointAborted)
    assert replaced.detail == ""


PHASES = {Phase.PLAN: timedelta(seconds=1), Phase.PRODUCE: timedelta(seconds=2)}


def reported(player: Player, command: str) -> tuple[Fact, ...]:
    """What follows from an acknowledgement or a decline that has the driver's phases."""
    event = player.event(command)
    assert isinstance(event, Acknowledge | Decline)
    player.state, ready = step(player.state, replace(event, phases=PHASES))
    return ready.facts


def test_a_completed_checkpoint_reports_the_phases_that_its_driver_acknowledged_it_with() -> None:
    player = after(*BEGUN, "request r checkpoint")
    reported(player, "ack 2 source on 1 at 2")
    assert one(reported(player, "ack 2 sink on 1 slots 0"), CheckpointCompleted).phases == PHASES
    unmeasured = after(*BEGUN, "request r checkpoint", "ack 2 source on 1 at 2")
    assert one(said(unmeasured, "ack 2 sink on 1 slots 0")[1], CheckpointCompleted).phases == {}


def test_phases_are_no_content_that_could_differ() -> None:
    player = after(*BEGUN, "request r checkpoint", "ack 2 source on 1 at 2")
    assert reported(player, "ack 2 source on 1 at 2") == ()
    assert player.state.durable.pending is not None, "no conflict"


def test_an_aborted_checkpoint_has_the_phases_until_then_that_its_driver_reported() -> None:
    declined = after("open d1", "watch")
    assert one(reported(declined, "decline 1 sink"), CheckpointAborted).phases == PHASES
    replaced = after("open d1", "watch")
    reported(replaced, "ack 1 source on 0 at 1")
    assert one(said(replaced, "open d2 takeover")[1], CheckpointAborted).phases == PHASES
    silent = after("open d1", "watch")
    assert one(said(silent, "open d2 takeover")[1], CheckpointAborted).phases == {}


def test_a_restored_checkpoint_has_the_positions_of_the_older_one_and_nothing_to_commit() -> None:
    player = after(*UNSETTLED, "settle 2 sink 0=committed", "request s checkpoint")
    for command in ("ack 3 source on 2 at 3", "ack 3 sink on 2", "close failed", "restore 2"):
        player.play(command)
    snapshots = one(said(player, "open d2")[1], CheckpointRestored).snapshots
    positions = snapshots[ParticipantName("source")].positions
    assert positions is not None
    assert positions.body == {"text": "position 2"}
    assert snapshots[ParticipantName("sink")].committables == ()


def test_the_end_of_a_generation_is_logged_with_its_cause() -> None:
    _, facts = said(after("open d1"), "close failed")
    assert (one(facts, GenerationEnded).detail, one(facts, StatusChanged).detail) == ("the driver left", "")
    gone = after("open d1")
    gone.now += 30
    _, facts = said(gone, "after 0")
    assert "no renewal" in one(facts, GenerationEnded).detail
    assert one(facts, StatusChanged).detail == one(facts, GenerationEnded).detail


def test_a_transition_is_logged_with_details_only_where_there_are_some() -> None:
    assert one(said(after(), "open d1")[1], StatusChanged).detail == ""
    left = after("open d1", "close restarting back 5")
    left.now += 30
    assert "did not come back after" in one(said(left, "after 0")[1], StatusChanged).detail


def test_a_driver_that_opens_an_ending_job_sees_the_request() -> None:
    player = after("open d1", "watch", "stop", "close restarting back 60")
    _, facts = said(player, "open d2")
    assert one(facts, StatusChanged).detail == "asked to stop"


@pytest.mark.parametrize(
    ("command", "noted"),
    [
        ("renew as g7", ("Renew", 7, 0, "")),
        ("ack 5 source on 1 at 2", ("Acknowledge", 1, 5, "source")),
        ("restore 1", ("RequestRestore", 0, 0, "")),
    ],
)
def test_a_refused_call_is_in_the_history(command: str, noted: tuple[str, int, int, str]) -> None:
    player = after(*BEGUN)
    _, ready = step(player.state, player.event(command))
    assert (note := ready.note) is not None
    assert (note.what, note.generation, note.checkpoint, note.participant) == noted
    assert (note.verdict, note.detail) == (ready.answer.verdict, ready.answer.detail)
