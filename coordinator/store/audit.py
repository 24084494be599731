"""History entries for facts and for calls that were not accepted."""

from typing import Any, assert_never

from onceward.protocol import facts
from onceward.protocol.answers import Note
from onceward.protocol.requests import Request
from onceward.protocol.values import COORDINATOR, Claim, Generation

__all__ = ["MAX_DETAIL", "entry_of_fact", "entry_of_note"]

MAX_DETAIL = 1_000
"""Characters per entry. When a sink loses ten thousand slots, the stored evidence has the details, not the history."""


def entry_of_fact(fact: facts.Fact, generation: Generation) -> dict[str, Any] | None:
    """The history row for a fact; None for facts that an idle job produces constantly.

    :param generation: the job's generation after the step.
    """
    said = _said(fact)
    if said is None:
        return None
    named = getattr(fact, "generation", generation)
    return _row(type(fact).__name__, generation=named, verdict=None, count=1, **said)


def entry_of_note(note: Note, count: int) -> dict[str, Any]:
    """The history row for a call that was not accepted and came ``count`` times."""
    return _row(
        note.what,
        generation=note.generation,
        verdict=note.verdict.value,
        count=count,
        checkpoint=note.checkpoint,
        participant=note.participant,
        detail=note.detail,
    )


def _said(fact: facts.Fact) -> dict[str, Any] | None:
    match fact:
        case facts.CheckpointTriggered() | facts.CheckpointUnchanged():
            return None
        case facts.GenerationGranted():
            adopting = f", adopting {_claim(fact.adopted)}" if fact.adopted is not None else ""
            whom = fact.driver if fact.driver == COORDINATOR else f"driver {fact.driver}"
            return {"detail": f"to {whom} with {', '.join(one.name for one in fact.participants)}{adopting}"}
        case facts.GenerationFailed():
            return {"detail": fact.reason}
        case facts.GenerationEnded():
            return {"detail": fact.detail}
        case facts.StatusChanged():
            return {"detail": ": ".join(filter(None, (fact.status.value, fact.transition.value, fact.detail)))}
        case facts.CheckpointCompleted():
            slots = sum(len(snapshot.committables) for snapshot in fact.snapshots.values())
            return {"checkpoint": fact.checkpoint, "detail": f"{slots} committables"}
        case facts.CheckpointAborted():
            why = ": ".join(filter(None, (fact.reason.value, fact.detail)))
            return {"checkpoint": fact.checkpoint, "detail": f"{why}{', a counted failure' if fact.counted else ''}"}
        case facts.CheckpointSettled():
            return {"checkpoint": fact.checkpoint, "detail": ""}
        case facts.LossRecorded():
            lost = "; ".join(f"slot {one.slot}: {one.evidence}" for one in fact.settlements)
            return {"checkpoint": fact.checkpoint, "participant": fact.participant, "detail": lost}
        case facts.LossSkipped():
            lost = "; ".join(f"slot {one.slot}: {one.evidence}" for one in fact.settlements)
            detail = f"given up ({fact.reason}): {lost}"
            return {"checkpoint": fact.checkpoint, "participant": fact.participant, "detail": detail}
        case facts.LossAcknowledged():
            detail = f"loss of slots {', '.join(map(str, sorted(fact.slots)))} acknowledged: {fact.reason}"
            return {"checkpoint": fact.checkpoint, "participant": fact.participant, "detail": detail}
        case facts.CheckpointAmended():
            again = f"amendment {fact.amendment}, slots {', '.join(map(str, sorted(fact.slots)))} written again"
            return {"checkpoint": fact.checkpoint, "participant": fact.participant, "detail": again}
        case facts.JobHalted():
            return {"checkpoint": fact.checkpoint, "participant": fact.participant, "detail": fact.reason}
        case facts.RequestQueued() | facts.RequestEnded():
            return {"checkpoint": fact.request.checkpoint, "detail": _request(fact.request)}
        case facts.EndingRequested():
            return {"detail": f"asked to {fact.ending.value}"}
        case facts.RestoreRequested():
            return {"checkpoint": fact.source.id, "detail": fact.reason}
        case facts.TakeoverPermitted():
            return {"detail": f"the next driver may replace the one of generation {fact.generation}: {fact.reason}"}
        case facts.AdoptionPermitted():
            return {"detail": f"the next driver may adopt {_claim(fact.claim)}: {fact.reason}"}
        case facts.CheckpointRestored():
            left = f"checkpoint {fact.former}" if fact.former else "one that could not be read"
            detail = f"begins again after checkpoint {fact.source} instead of {left}: {fact.reason}"
            return {"checkpoint": fact.checkpoint, "detail": detail}
        case facts.SavepointReleased():
            return {"checkpoint": fact.checkpoint, "detail": ""}
        case facts.SlotsResolved():
            return {"checkpoint": fact.checkpoint, "participant": fact.participant, "detail": _resolved(fact)}
        case facts.OutputClosed():
            return {"participant": fact.participant, "detail": fact.reason}
        case facts.JobForgotten():
            return {"detail": fact.reason}
        case facts.InputSkipped():
            detail = f"without {fact.skipped}: {fact.reason}"
            return {"checkpoint": fact.checkpoint, "participant": fact.participant, "detail": detail}
        case _:
            assert_never(fact)


def _claim(claim: Claim) -> str:
    return f"the claim of store {claim.store_id} (generation {claim.generation}, through checkpoint {claim.completed})"


def _resolved(fact: facts.SlotsResolved) -> str:
    forced = ", against the evidence" if fact.forced else ""
    slots = ", ".join(map(str, sorted(fact.slots)))
    seen = "; ".join(f"slot {one.slot} {one.outcome.value}: {one.evidence}" for one in fact.evidence)
    return f"slots {slots} count as {fact.ruling.value}{forced}: {fact.reason}. Seen: {seen or 'no broker was asked'}"


def _request(request: Request) -> str:
    asked = f"{request.kind.value}{' ' + request.name if request.name else ''}{' and stop' if request.stop else ''}"
    return ": ".join(filter(None, (f"{asked}, request {request.id}, {request.state.value}", request.detail)))


def _row(
    event: str,
    *,
    generation: int,
    verdict: str | None,
    count: int,
    checkpoint: int = 0,
    participant: str = "",
    detail: str,
) -> dict[str, Any]:
    return {
        "event": event,
        "verdict": verdict,
        "generation": generation,
        "checkpoint": checkpoint,
        "participant": participant,
        "detail": detail if len(detail) <= MAX_DETAIL else f"{detail[: MAX_DETAIL - 2]} …",
        "count": count,
    }
