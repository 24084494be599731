"""The core's answers to operators, and the records of their decisions, beyond what the scenarios play."""

from dataclasses import replace

import pytest

from onceward.protocol.answers import Verdict
from onceward.protocol.facts import (
    CheckpointTriggered,
    InputSkipped,
    JobForgotten,
    LossRecorded,
    LossSkipped,
    StatusChanged,
)
from onceward.protocol.values import MAX_ID, CheckpointId, ParticipantName, Snapshot
from tests.support.documents import document
from tests.unit.protocol.lives import BEGUN, UNSETTLED, after, one, said

LEFT = (*BEGUN, "close failed")
HALTED = (*UNSETTLED[:-1], "ack 2 sink on 1 slots 0,1,2", "settle 2 sink 0=committed 1=lost 2=in_doubt", "close failed")
SKIP = "skip source of 1 to 20"


@pytest.mark.parametrize(
    ("life", "command", "verdict", "words"),
    [
        ((), "request r checkpoint", Verdict.TOO_LATE, "job orders is not running: created"),
        ((), "stop", Verdict.TOO_LATE, "job orders is not running: created"),
        (
            ("open d1", *(f"request r{number} checkpoint" for number in range(16))),
            "request r checkpoint",
            Verdict.QUEUE_FULL,
            "16 requests wait for job orders",
        ),
        (("open d1",), "request r checkpoint before", Verdict.REFUSED, "only savepoints have names"),
        (("open d1",), "forget", Verdict.REFUSED, "job orders has a driver (running)"),
        (("open d1", "close restarting back 60"), "forget", Verdict.REFUSED, "has a driver (restarting)"),
        ((*UNSETTLED, "close failed"), "forget", Verdict.REFUSED, "checkpoint 2 is completed and not settled"),
        ((*UNSETTLED, "close failed"), "cancel", Verdict.REFUSED, "checkpoint 2 is completed and not settled"),
        ((*LEFT, "damage"), "forget", Verdict.REFUSED, "is not known: its record was changed"),
        ((), SKIP, Verdict.REFUSED, "job orders has no completed checkpoint, so no positions to move"),
        ((*LEFT, "damage"), SKIP, Verdict.REFUSED, "its record was changed"),
        (LEFT, "resolve 1 sink 0 committed", Verdict.REFUSED, "everything that was decided for job orders is settled"),
        ((), "resolve 1 sink 0 committed", Verdict.REFUSED, "job orders has no completed checkpoint"),
        ((*LEFT, "damage"), "resolve 1 sink 0 committed", Verdict.REFUSED, "its record was changed"),
        (HALTED, "resolve 2 sink 7 given_up", Verdict.REFUSED, "sink has no committables of slots [7] in checkpoint 2"),
        (HALTED, "resolve 2 sink 1 committed", Verdict.REFUSED, "slot 1 is proved lost: checkpoint 2: slot 1 is lost"),
        (HALTED, "resolve 2 sink 1 committed 1=lost", Verdict.REFUSED, "slot 1 is proved lost: slot 1 is lost"),
        (HALTED, "resolve 2 sink 2 replay", Verdict.REFUSED, "slot 2 is not proved either way: checkpoint 2: "),
    ],
)
def test_a_refused_operator_gets_the_reason(life: tuple[str, ...], command: str, verdict: Verdict, words: str) -> None:
    player = after(*life)
    answer, facts = said(player, command)
    assert (answer.verdict, facts) == (verdict, ())
    assert words in answer.detail


def test_an_operators_reason_is_recorded_with_the_transition() -> None:
    assert one(said(after("open d1"), "stop")[1], StatusChanged).detail == "asked to stop"
    _, forgotten = said(after(*LEFT), "forget")
    assert one(forgotten, StatusChanged).detail == one(forgotten, JobForgotten).reason == "Ada wants it"
    _, resolved = said(after(*HALTED, "resolve 2 sink 2 given_up"), "resolve 2 sink 1 given_up")
    assert one(resolved, StatusChanged).detail == "a person's reason"


def test_a_request_reports_how_long_it_has_waited() -> None:
    player = after("open d1", "watch", "request r checkpoint")
    player.now += 7
    facts = said(player, "decline 1 sink")[1]
    assert (one(facts, CheckpointTriggered).request, one(facts, CheckpointTriggered).waited_s) == ("r", 7.0)


def test_a_loss_records_who_decided_it_and_the_evidence() -> None:
    settlements = one(said(after(*HALTED), "resolve 2 sink 1 replay 1=lost 0=lost")[1], LossRecorded).settlements
    assert [one.evidence for one in settlements] == ["an operator decided (a person's reason): slot 1 is lost"]
    unseen = one(said(after(*HALTED), "resolve 2 sink 1 replay")[1], LossRecorded).settlements
    assert [one.evidence for one in unseen] == ["an operator decided (a person's reason)"]


def test_a_skipped_loss_is_kept_with_its_committables_and_evidence() -> None:
    loss = one(said(after(*HALTED), "resolve 2 sink 1,2 given_up 2=lost")[1], LossSkipped)
    assert [committable.slot for committable in loss.committables] == [1, 2]
    assert [(one.slot, one.outcome.value, one.evidence) for one in loss.settlements] == [
        (1, "lost", "no broker was asked again"),
        (2, "lost", "slot 2 is lost"),
    ]


def test_input_that_is_skipped_moves_nothing_else_and_is_reported_as_a_loss() -> None:
    player = after(*LEFT)
    other = Snapshot(positions=document(at="elsewhere"))
    completed = player.state.durable.completed
    assert completed is not None
    snapshots = {**completed.snapshots, ParticipantName("another"): other}
    durable = replace(player.state.durable, completed=replace(completed, snapshots=snapshots))
    player.state = replace(player.state, durable=durable)
    _, facts = said(player, SKIP)
    skipped = one(facts, InputSkipped).snapshots
    assert skipped[ParticipantName("another")] == other
    positions = skipped[ParticipantName("source")].positions
    assert positions is not None
    assert positions.body == {"text": "position 20"}
    (committable,) = one(facts, LossSkipped).committables
    assert (committable.slot, committable.document.body) == (0, {"text": "position 1"})


def test_halted_input_that_is_skipped_frees_the_job_for_the_reason_given() -> None:
    player = after(*BEGUN, "close halted")
    assert one(said(player, SKIP)[1], StatusChanged).detail == "a person's reason"


@pytest.mark.parametrize(("last_id", "verdict"), [(MAX_ID - 2, Verdict.ACCEPTED), (MAX_ID - 1, Verdict.REFUSED)])
def test_input_is_skipped_only_where_an_id_is_left(last_id: int, verdict: Verdict) -> None:
    player = after(*LEFT)
    durable = replace(player.state.durable, last_id=CheckpointId(last_id))
    player.state = replace(player.state, durable=durable)
    assert said(player, SKIP)[0].verdict is verdict


@pytest.mark.parametrize("kind", ["restore", "skip"])
def test_a_kind_reserved_for_the_coordinator_cannot_be_requested(kind: str) -> None:
    answer, facts = said(after(*BEGUN), f"request r {kind}")
    assert (answer.verdict, facts) == (Verdict.REFUSED, ())
    assert "only checkpoints and savepoints" in answer.detail
