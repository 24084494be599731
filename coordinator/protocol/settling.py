"""After the decision: commits are reported, proved, or halt the job."""

from dataclasses import replace

from coordinator.protocol.answers import Answer, Ready, Verdict
from coordinator.protocol.checkpoints import abort
from coordinator.protocol.events import Settle
from coordinator.protocol.facts import AbortReason, CheckpointSettled, Fact, JobHalted, JobStatus
from coordinator.protocol.opening import fenced, owns
from coordinator.protocol.state import JobState
from coordinator.protocol.values import Outcome


def settle(state: JobState, event: Settle) -> tuple[JobState, Ready]:
    """Record what became of committables. Settled when every slot of every sink is proved committed."""
    if not owns(state, event.generation):
        return state, fenced()
    completed = state.durable.completed
    if event.checkpoint > state.durable.last_id or event.checkpoint < 1:
        detail = f"checkpoint {event.checkpoint} was never triggered"
        return state, Ready(answer=Answer(verdict=Verdict.UNKNOWN_CHECKPOINT, detail=detail))
    if completed is None or completed.id != event.checkpoint:
        detail = f"checkpoint {event.checkpoint} is not the newest completed one"
        return state, Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=detail))
    if completed.settled:
        return state, Ready(answer=Answer(verdict=Verdict.DUPLICATE))
    snapshot = completed.snapshots.get(event.participant)
    if snapshot is None or not snapshot.committables:
        detail = f"{event.participant} has nothing to settle in checkpoint {completed.id}"
        return state, Ready(answer=Answer(verdict=Verdict.UNKNOWN_PARTICIPANT, detail=detail))
    slots = frozenset(committable.slot for committable in snapshot.committables)
    named = [settlement.slot for settlement in event.settlements]
    if not slots.issuperset(named) or len(set(named)) != len(named) or not named:
        detail = f"settlements must name slots of checkpoint {completed.id} once each"
        return state, Ready(answer=Answer(verdict=Verdict.INVALID, detail=detail))

    bad = tuple(s for s in event.settlements if s.outcome is not Outcome.COMMITTED)
    good = frozenset(s.slot for s in event.settlements if s.outcome is Outcome.COMMITTED)
    known = state.settled_slots.get(event.participant, frozenset())
    if not bad and good <= known:
        return state, Ready(answer=Answer(verdict=Verdict.DUPLICATE))
    state = replace(state, settled_slots={**state.settled_slots, event.participant: known | good})
    if bad:
        return _halt(state, event, f"checkpoint {completed.id}: " + "; ".join(s.evidence for s in bad))
    waiting = [
        name
        for name, other in completed.snapshots.items()
        if not {c.slot for c in other.committables} <= state.settled_slots.get(name, frozenset())
    ]
    if waiting:
        return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED))
    state = state.remember(completed=replace(completed, settled=True))
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED), facts=(CheckpointSettled(checkpoint=completed.id),))


def _halt(state: JobState, event: Settle, reason: str) -> tuple[JobState, Ready]:
    """Keep the proof and stop everything that would build on the checkpoint."""
    facts: list[Fact] = []
    if state.pending is not None:
        state, facts_of_abort = abort(state, event.now, AbortReason.HALTED, reason)
        facts += facts_of_abort
    lost = any(s.outcome is Outcome.LOST for s in event.settlements)
    facts.append(
        JobHalted(
            checkpoint=event.checkpoint,
            participant=event.participant,
            settlements=event.settlements,
            reason=reason,
        )
    )
    state = state.remember(status=JobStatus.HALTED, status_detail=reason, lost=lost or state.durable.lost)
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED, detail=reason), facts=tuple(facts))
