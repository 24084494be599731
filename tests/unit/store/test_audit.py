"""What the history says about each event that can happen to a job."""

from typing import Any

import pytest

from onceward.coordinator.store.audit import MAX_DETAIL, entry_of_fact
from onceward.protocol import facts
from onceward.protocol.requests import Request, RequestState, Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus, Transition
from onceward.protocol.values import (
    COORDINATOR,
    CheckpointId,
    CheckpointKind,
    Claim,
    Generation,
    Outcome,
    RequestId,
    Settlement,
)
from tests.support.events import SINK, SOURCE

CURRENT = Generation(9)
FIVE = CheckpointId(5)
FORMER = Claim(store_id="former", generation=Generation(4), completed=CheckpointId(17))
LOST = (
    Settlement(slot=1, outcome=Outcome.LOST, evidence="CompleteAbort"),
    Settlement(slot=3, outcome=Outcome.IN_DOUBT, evidence="no answer"),
)


def entry(fact: facts.Fact) -> dict[str, Any]:
    reported = entry_of_fact(fact, CURRENT)
    assert reported is not None
    assert (reported["event"], reported["verdict"], reported["count"]) == (type(fact).__name__, None, 1)
    return reported


def resolved(*, evidence: tuple[Settlement, ...] = LOST, forced: bool = False) -> facts.SlotsResolved:
    return facts.SlotsResolved(
        checkpoint=FIVE,
        participant=SINK.name,
        slots=frozenset({3, 1}),
        ruling=Ruling.GIVEN_UP,
        settled=frozenset({1, 3}),
        reason="ann: test data",
        evidence=evidence,
        forced=forced,
    )


def granted(adopted: Claim | None, driver: str = "d1") -> facts.GenerationGranted:
    return facts.GenerationGranted(
        generation=Generation(7),
        driver=driver,
        participants=(SOURCE, SINK),
        settings=CheckpointSettings(),
        first_id=FIVE,
        adopted=adopted,
    )


def restored(former: int) -> facts.CheckpointRestored:
    return facts.CheckpointRestored(
        checkpoint=FIVE,
        source=CheckpointId(2),
        former=CheckpointId(former),
        generation=Generation(7),
        snapshots={},
        reason="ann: bad input",
    )


def aborted(*, counted: bool) -> facts.CheckpointAborted:
    return facts.CheckpointAborted(
        checkpoint=FIVE,
        generation=Generation(7),
        reason=facts.AbortReason.DECLINED,
        detail="no",
        counted=counted,
        ran_s=1.0,
    )


@pytest.mark.parametrize(
    ("fact", "detail"),
    [
        (
            resolved(),
            "slots 1, 3 count as given_up: ann: test data. "
            "Seen: slot 1 lost: CompleteAbort; slot 3 in_doubt: no answer",
        ),
        (
            resolved(forced=True, evidence=()),
            "slots 1, 3 count as given_up, against the evidence: ann: test data. Seen: no broker was asked",
        ),
        (
            facts.LossRecorded(checkpoint=FIVE, participant=SINK.name, settlements=LOST),
            "slot 1: CompleteAbort; slot 3: no answer",
        ),
        (
            facts.LossSkipped(
                checkpoint=FIVE, participant=SINK.name, settlements=LOST, committables=(), reason="on_lost=skip"
            ),
            "given up (on_lost=skip): slot 1: CompleteAbort; slot 3: no answer",
        ),
        (
            facts.LossAcknowledged(
                checkpoint=FIVE, participant=SINK.name, slots=frozenset({3, 1}), reason="ann: known"
            ),
            "loss of slots 1, 3 acknowledged: ann: known",
        ),
        (
            facts.CheckpointAmended(
                checkpoint=FIVE, participant=SINK.name, amendment=2, slots=frozenset({3, 1}), committables=()
            ),
            "amendment 2, slots 1, 3 written again",
        ),
        (facts.JobHalted(checkpoint=FIVE, participant=SINK.name, settlements=(), reason="it is lost"), "it is lost"),
        (
            facts.InputSkipped(
                checkpoint=FIVE,
                base=CheckpointId(4),
                generation=Generation(7),
                participant=SINK.name,
                snapshots={},
                skipped="in-0 [3, 10)",
                reason="ann: gone",
            ),
            "without in-0 [3, 10): ann: gone",
        ),
    ],
)
def test_slot_facts_name_checkpoint_participant_slots_and_reason(fact: facts.Fact, detail: str) -> None:
    reported = entry(fact)
    assert (reported["checkpoint"], reported["participant"], reported["detail"]) == (5, SINK.name, detail)


@pytest.mark.parametrize(
    ("fact", "checkpoint", "detail"),
    [
        (facts.GenerationFailed(generation=Generation(7), reason="too many failures"), 0, "too many failures"),
        (
            facts.TakeoverPermitted(generation=Generation(7), reason="ann: it hangs"),
            0,
            "the next driver may replace the one of generation 7: ann: it hangs",
        ),
        (
            facts.AdoptionPermitted(claim=FORMER, reason="ann: its disk is gone"),
            0,
            "the next driver may adopt the claim of store former (generation 4, through checkpoint 17): "
            "ann: its disk is gone",
        ),
        (granted(None), 0, "to driver d1 with source, sink"),
        (granted(None, COORDINATOR), 0, "to the coordinator with source, sink"),
        (
            granted(FORMER),
            0,
            "to driver d1 with source, sink, adopting the claim of store former (generation 4, through checkpoint 17)",
        ),
        (facts.JobForgotten(reason="ann: over"), 0, "ann: over"),
        (
            facts.StatusChanged(transition=Transition.HALTED, status=JobStatus.HALTED, detail="it is lost"),
            0,
            "halted: a person must decide: it is lost",
        ),
        (
            facts.StatusChanged(transition=Transition.LEFT, status=JobStatus.SUSPENDED, detail=""),
            0,
            "suspended: the driver left",
        ),
        (aborted(counted=True), 5, "a participant declined it: no, a counted failure"),
        (aborted(counted=False), 5, "a participant declined it: no"),
        (facts.CheckpointSettled(checkpoint=FIVE, took_s=1.0), 5, ""),
        (facts.SavepointReleased(checkpoint=FIVE), 5, ""),
        (restored(4), 5, "begins again after checkpoint 2 instead of checkpoint 4: ann: bad input"),
        (restored(0), 5, "begins again after checkpoint 2 instead of one that could not be read: ann: bad input"),
    ],
)
def test_job_facts_name_no_participant(fact: facts.Fact, checkpoint: int, detail: str) -> None:
    reported = entry(fact)
    assert (reported["checkpoint"], reported["participant"], reported["detail"]) == (checkpoint, "", detail)


def test_a_request_shows_its_content_and_outcome() -> None:
    plain = Request(id=RequestId("r1"), kind=CheckpointKind.CHECKPOINT)
    failed = Request(
        id=RequestId("r2"),
        kind=CheckpointKind.SAVEPOINT,
        name="before-upgrade",
        stop=True,
        state=RequestState.FAILED,
        checkpoint=FIVE,
        detail="declined",
    )
    queued, ended = entry(facts.RequestQueued(request=plain)), entry(facts.RequestEnded(request=failed))
    assert (queued["checkpoint"], queued["detail"]) == (0, "checkpoint, request r1, queued")
    assert (ended["checkpoint"], ended["detail"]) == (
        5, "savepoint before-upgrade and stop, request r2, failed: declined"
    )  # fmt: skip


def test_an_entry_is_of_the_generation_that_it_happened_to() -> None:
    assert entry(restored(4))["generation"] == 7
    assert entry(facts.SavepointReleased(checkpoint=FIVE))["generation"] == CURRENT, "where the fact names none"


@pytest.mark.parametrize("over", [0, 1])
def test_a_detail_is_cut_visibly_when_it_is_longer_than_the_bound(over: int) -> None:
    reason = "x" * (MAX_DETAIL + over)
    reported = entry(facts.JobHalted(checkpoint=FIVE, participant=SOURCE.name, settlements=(), reason=reason))["detail"]
    assert len(reported) == MAX_DETAIL
    assert reported.endswith("…") == bool(over)
