"""One checkpoint from its trigger to its decision."""

from dataclasses import replace

from coordinator.protocol.answers import Answer, Decision, Ready, Verdict
from coordinator.protocol.events import Acknowledge, Decline
from coordinator.protocol.facts import (
    AbortReason,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointTriggered,
    CheckpointUnchanged,
    Fact,
    JobStatus,
)
from coordinator.protocol.opening import fenced, owns
from coordinator.protocol.state import JobState, PendingCheckpoint
from coordinator.protocol.values import CheckpointId, CompletedCheckpoint, Participant, ParticipantName, Role, Snapshot

Step = tuple[JobState, tuple[Fact, ...]]


def trigger(state: JobState, now: float) -> Step:
    """Burn the next id when a checkpoint is due and there is somebody to run it."""
    session = state.session
    if (
        session is None
        or session.stream_lost_at is not None
        or state.pending is not None
        or state.failed is not None
        or state.durable.status is not JobStatus.RUNNING
        or state.durable.stop_requested
        or now < state.next_trigger
    ):
        return state, ()
    checkpoint = CheckpointId(state.durable.last_id + 1)
    state = replace(
        state,
        pending=PendingCheckpoint(id=checkpoint, base=state.base, started=now),
        next_trigger=now + state.durable.settings.seconds("interval"),
    ).remember(last_id=checkpoint, pending=(checkpoint, state.base))
    fact = CheckpointTriggered(checkpoint=checkpoint, base=state.base, generation=state.durable.generation)
    return state, (fact,)


def acknowledge(state: JobState, event: Acknowledge) -> tuple[JobState, Ready]:
    if not owns(state, event.generation):
        return state, fenced()
    participant = _participant(state, event.participant)
    if participant is None:
        return state, _unknown_participant(event.participant)
    pending = state.pending
    if pending is None or pending.id != event.checkpoint:
        return state, _decided(state, event.checkpoint, event.participant, event.snapshot)
    if event.base != pending.base:
        detail = f"checkpoint {pending.id} builds on {pending.base}, the acknowledgement on {event.base}"
        return state, Ready(answer=Answer(verdict=Verdict.WRONG_BASE, detail=detail))
    problem = _contradiction(participant, event.snapshot)
    if problem:
        return state, Ready(answer=Answer(verdict=Verdict.INVALID, detail=problem))
    recorded = pending.answers.get(event.participant)
    if recorded is not None:
        if recorded == event.snapshot:
            return state, Ready(answer=Answer(verdict=Verdict.DUPLICATE))
        detail = f"{event.participant} acknowledged checkpoint {pending.id} twice with different content"
        state, facts = abort(state, event.now, AbortReason.CONFLICT, detail)
        answer = Answer(verdict=Verdict.CONFLICT, detail=detail, decision=Decision.ABORTED)
        return state, Ready(answer=answer, facts=facts)
    answers = {**pending.answers, event.participant: event.snapshot}
    state = replace(state, pending=replace(pending, answers=answers))
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED))


def decline(state: JobState, event: Decline) -> tuple[JobState, Ready]:
    if not owns(state, event.generation):
        return state, fenced()
    if _participant(state, event.participant) is None:
        return state, _unknown_participant(event.participant)
    if state.pending is None or state.pending.id != event.checkpoint:
        return state, _decided(state, event.checkpoint, event.participant, None)
    state, facts = abort(state, event.now, AbortReason.DECLINED, f"{event.participant}: {event.reason}")
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED, decision=Decision.ABORTED), facts=facts)


def decide(state: JobState, now: float) -> Step:
    """Complete the pending checkpoint once everybody has answered and its predecessor is settled."""
    pending = state.pending
    if pending is None or not state.all_answered:
        return state, ()
    if all(snapshot.unchanged for snapshot in pending.answers.values()):
        state = replace(state, pending=None).remember(pending=None)
        return state, (CheckpointUnchanged(checkpoint=pending.id),)
    if not state.settled:
        return state, ()  # visibility stays in order; this checkpoint's timeout stands still meanwhile
    settings = state.durable.settings
    settled = not any(snapshot.committables for snapshot in pending.answers.values())
    completed = CompletedCheckpoint(
        id=pending.id,
        base=pending.base,
        generation=state.durable.generation,
        snapshots=dict(pending.answers),
        settled=settled,
    )
    state = replace(
        state,
        pending=None,
        settled_slots={},
        aborted=None,
        failures=0,
        next_trigger=max(state.next_trigger, now + settings.seconds("min_pause")),
    ).remember(pending=None, completed=completed)
    fact = CheckpointCompleted(
        checkpoint=completed.id, snapshots=completed.snapshots, settled=settled, keep=settings.num_retained
    )
    return state, (fact,)


def expire(state: JobState, now: float) -> Step:
    """Abort a checkpoint that was not acknowledged in time."""
    pending = state.pending
    timeout = state.durable.settings.seconds("timeout")
    if pending is None or state.all_answered or now - pending.started <= timeout:
        return state, ()
    missing = [p.name for p in state.durable.participants if p.name not in pending.answers]
    return abort(state, now, AbortReason.EXPIRED, f"no answer from {', '.join(missing)} within {timeout:g} s")


def abort(state: JobState, now: float, reason: AbortReason, detail: str) -> Step:
    """Decide against the pending checkpoint; too many counted failures in a row end the generation."""
    pending = state.pending
    assert pending is not None
    failures = state.failures + (1 if reason.counted else 0)
    failed = state.failed
    if failures > state.durable.settings.tolerable_failed_checkpoints:
        failed = failed or f"checkpoint {pending.id} was aborted: {reason.value}: {detail}"
    state = replace(
        state,
        pending=None,
        aborted=(pending.id, reason, detail),
        failures=failures,
        failed=failed,
        next_trigger=max(state.next_trigger, now),
    ).remember(pending=None)
    return state, (CheckpointAborted(checkpoint=pending.id, reason=reason, detail=detail),)


def _decided(
    state: JobState, checkpoint: CheckpointId, participant: ParticipantName, snapshot: Snapshot | None
) -> Ready:
    """The answer for a checkpoint that is not pending."""
    completed = state.durable.completed
    if checkpoint > state.durable.last_id or checkpoint < 1:
        detail = f"checkpoint {checkpoint} was never triggered"
        return Ready(answer=Answer(verdict=Verdict.UNKNOWN_CHECKPOINT, detail=detail))
    if completed is not None and checkpoint == completed.id:
        same = snapshot is not None and completed.snapshots.get(participant) == snapshot
        verdict = Verdict.DUPLICATE if same else Verdict.TOO_LATE
        return Ready(answer=Answer(verdict=verdict, decision=Decision.COMPLETED))
    # Burnt, not pending, and nothing after it is completed: aborted, or unchanged with nothing to commit.
    decision = Decision.ABORTED if completed is None or checkpoint > completed.id else None
    detail = f"checkpoint {checkpoint} is decided"
    return Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=detail, decision=decision))


def _participant(state: JobState, name: ParticipantName) -> Participant | None:
    return next((p for p in state.durable.participants if p.name == name), None)


def _unknown_participant(name: ParticipantName) -> Ready:
    detail = f"{name} is no participant of this generation"
    return Ready(answer=Answer(verdict=Verdict.UNKNOWN_PARTICIPANT, detail=detail))


def _contradiction(participant: Participant, snapshot: Snapshot) -> str | None:
    if participant.role is Role.SOURCE:
        if snapshot.positions is None:
            return f"source {participant.name} acknowledged without positions"
        if snapshot.committables:
            return f"source {participant.name} acknowledged with committables"
    else:
        if snapshot.positions is not None:
            return f"sink {participant.name} acknowledged with positions"
        slots = [committable.slot for committable in snapshot.committables]
        if len(set(slots)) != len(slots) or any(slot < 0 for slot in slots):
            return f"sink {participant.name} acknowledged a slot twice or a negative slot"
        if snapshot.unchanged and snapshot.committables:
            return f"sink {participant.name} acknowledged committables as unchanged"
    if snapshot.records < 0 or snapshot.bytes < 0:
        return f"{participant.name} acknowledged a negative count"
    return None
