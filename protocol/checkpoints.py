"""One checkpoint from its trigger to its decision."""

import math
from dataclasses import replace

from onceward.protocol.answers import Answer, Decision, Ready, Verdict
from onceward.protocol.events import Acknowledge, Decline
from onceward.protocol.facts import (
    AbortReason,
    CheckpointCompleted,
    CheckpointTriggered,
    CheckpointUnchanged,
    EndingRequested,
    Fact,
    GenerationFailed,
    RequestEnded,
)
from onceward.protocol.generations import Step, abort_fact, fail_requests, fenced, may_drive, moved
from onceward.protocol.requests import Ending, Request, RequestState
from onceward.protocol.state import JobState, PendingCheckpoint, record
from onceward.protocol.status import JobStatus, Transition
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    CheckpointKind,
    Participant,
    ParticipantName,
    Role,
    Snapshot,
)


def due(state: JobState) -> float | None:
    """When the next checkpoint may be triggered: 0 when a person waits for one, None while none can be triggered."""
    session, durable = state.session, state.durable
    if (
        session is None
        or session.stream_lost_at is not None
        or durable.pending is not None
        or durable.replaying
        or durable.status is not JobStatus.RUNNING
    ):
        return None
    if durable.next_request is not None:
        return 0.0
    if durable.settings.interval is None and durable.base != NO_CHECKPOINT:
        return None  # the first checkpoint holds the start positions, so it is always taken
    paused_until = 0.0
    if state.completed_at is not None:
        paused_until = state.completed_at + durable.settings.seconds("min_pause")
    return max(state.next_trigger, paused_until)


def trigger(state: JobState, now: float) -> Step:
    """Burn the next id when a checkpoint is due and a driver is connected to run it."""
    since = due(state)
    if since is None or now < since:
        return state, ()
    durable, request = state.durable, state.durable.next_request
    if request is not None:
        since = state.asked.get(request.id, now)
    fact = CheckpointTriggered(
        checkpoint=CheckpointId(durable.last_id + 1),
        base=durable.base,
        generation=durable.generation,
        kind=request.kind if request is not None else CheckpointKind.CHECKPOINT,
        request=request.id if request is not None else None,
        waited_s=now - since,
    )
    interval = durable.settings.seconds("interval") if durable.settings.interval is not None else 0.0
    state = replace(state, pending=PendingCheckpoint(started=now), next_trigger=now + interval)
    return record(state, (fact,)), (fact,)


def acknowledge(state: JobState, event: Acknowledge) -> tuple[JobState, Ready]:
    if not may_drive(state, event.generation):
        return state, fenced(state, event.generation)
    participant = _participant(state, event.participant)
    if participant is None:
        return state, _unknown_participant(event.participant)
    pending, known = state.durable.pending, state.pending
    if pending is None or known is None or pending.id != event.checkpoint:
        return state, _decided(state, event.checkpoint, event.participant, event.snapshot)
    if event.base != pending.base:
        detail = f"checkpoint {pending.id} builds on {pending.base}, the acknowledgement on {event.base}"
        return state, Ready(answer=Answer(verdict=Verdict.WRONG_BASE, detail=detail))
    problem = _contradiction(participant, event.snapshot)
    if problem:
        return state, Ready(answer=Answer(verdict=Verdict.INVALID, detail=problem))
    recorded = known.answers.get(event.participant)
    if recorded is not None:
        if recorded == event.snapshot:
            return state, Ready(answer=Answer(verdict=Verdict.DUPLICATE))
        detail = f"{event.participant} acknowledged checkpoint {pending.id} twice with different content"
        state, facts = abort(state, event.now, AbortReason.CONFLICT, detail)
        answer = Answer(verdict=Verdict.CONFLICT, detail=detail, decision=Decision.ABORTED)
        return state, Ready(answer=answer, facts=facts)
    answers = {**known.answers, event.participant: event.snapshot}
    good_until = known.good_until
    if event.good_for_s is not None:
        good_until = min(event.now + event.good_for_s, math.inf if good_until is None else good_until)
    phases = event.phases or known.phases
    pending_now = replace(known, answers=answers, answered=event.now, good_until=good_until, phases=phases)
    state = replace(state, pending=pending_now)
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED))


def decline(state: JobState, event: Decline) -> tuple[JobState, Ready]:
    """Abort the pending checkpoint because a participant declines it."""
    if not may_drive(state, event.generation):
        return state, fenced(state, event.generation)
    if _participant(state, event.participant) is None:
        return state, _unknown_participant(event.participant)
    if state.durable.pending is None or state.durable.pending.id != event.checkpoint:
        return state, _decided(state, event.checkpoint, event.participant, None)
    if state.pending is not None and event.phases:
        state = replace(state, pending=replace(state.pending, phases=event.phases))
    state, facts = abort(state, event.now, AbortReason.DECLINED, f"{event.participant}: {event.reason}")
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED, decision=Decision.ABORTED), facts=facts)


def withdraw(state: JobState, now: float) -> Step:
    """Abort a checkpoint that has waited too long for its base: its transactions may time out before they are
    committed. Its records are read again. If it were completed, its transactions would be lost."""
    pending = state.pending
    if pending is None or not state.all_answered or pending.good_until is None or now < pending.good_until:
        return state, ()
    completed = state.durable.completed
    why = "they were too old when it was acknowledged"
    if completed is not None and not completed.settled:
        why = f"{now - pending.started:.0f} s after its trigger its base was not settled"
    return abort(state, now, AbortReason.TOO_OLD, why)


def decide(state: JobState, now: float) -> Step:
    """Complete the pending checkpoint once all participants have answered and its base is settled."""
    pending, known = state.durable.pending, state.pending
    if pending is None or known is None or not state.all_answered:
        return state, ()
    facts: list[Fact] = []
    unchanged = all(snapshot.unchanged for snapshot in known.answers.values())
    if unchanged and pending.kind is CheckpointKind.CHECKPOINT:
        facts.append(CheckpointUnchanged(checkpoint=pending.id))
        facts += _request_done(state, state.base)
        return replace(record(state, facts), pending=None), tuple(facts)
    # Output stays in order. Meanwhile only the age of the checkpoint's transactions counts.
    if not state.settled:
        return state, ()
    settled = not any(snapshot.committables for snapshot in known.answers.values())
    facts.append(
        CheckpointCompleted(
            checkpoint=pending.id,
            snapshots=dict(known.answers),
            settled=settled,
            ran_s=known.answered - known.started,
            decided_s=now - known.answered,
            phases=known.phases,
        )
    )
    facts += _request_done(state, pending.id)
    if any(snapshot.next_at_once for snapshot in known.answers.values()):
        state = replace(state, next_trigger=now)
    state = replace(record(state, facts), pending=None, settled_slots={}, completed_at=now)
    return state, tuple(facts)


def expire(state: JobState, now: float) -> Step:
    """Abort a checkpoint that was not acknowledged in time."""
    timeout = state.durable.settings.seconds("timeout")
    if state.pending is None or state.all_answered or now - state.pending.started <= timeout:
        return state, ()
    missing = [p.name for p in state.durable.participants if p.name not in state.pending.answers]
    return abort(state, now, AbortReason.EXPIRED, f"no answer from {', '.join(missing)} within {timeout:g} s")


def abort(state: JobState, now: float, reason: AbortReason, detail: str) -> Step:
    """Abort the pending checkpoint. Too many counted failures in a row end the generation.

    A failed stop-with-savepoint also ends it: its participants have already stopped for it (Flink: a synchronous
    savepoint).
    """
    durable = state.durable
    fact = abort_fact(state, reason, detail, now)
    facts: list[Fact] = [fact]
    request = _request_of(state)
    if request is not None:
        ended = replace(
            request, state=RequestState.FAILED, detail=f"{reason.value}: {detail}" if detail else reason.value
        )
        facts.append(RequestEnded(request=ended))
    too_many = durable.failures + fact.counted > durable.settings.tolerable_failed_checkpoints
    stops = request is not None and request.stop and reason.counted
    if (fact.counted and too_many) or stops:
        facts.append(GenerationFailed(generation=durable.generation, reason=fact.why))
        if durable.status is not JobStatus.HALTED:
            facts.append(moved(durable, Transition.FAILED, fact.why))
    state = replace(record(state, facts), pending=None, next_trigger=max(state.next_trigger, now))
    return state, tuple(facts)


def _request_of(state: JobState) -> Request | None:
    """The person's request that the pending checkpoint serves."""
    pending = state.durable.pending
    if pending is None or pending.request is None:
        return None
    return next((request for request in state.durable.requests if request.id == pending.request), None)


def _request_done(state: JobState, checkpoint: CheckpointId) -> list[Fact]:
    """Complete the pending checkpoint's request with ``checkpoint``; if it includes a stop, end the job."""
    request = _request_of(state)
    if request is None:
        return []
    done: list[Fact] = [RequestEnded(request=replace(request, state=RequestState.COMPLETED, checkpoint=checkpoint))]
    if request.stop and state.durable.ending is None:
        done += fail_requests(state.durable, "the job is stopping", but=request.id)
        done.append(EndingRequested(ending=Ending.STOP))
        done.append(moved(state.durable, Transition.ENDING, f"stopping with savepoint {checkpoint}"))
    return done


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
    # Burnt, not pending, and newer than the newest completed one: aborted, or unchanged with nothing to commit.
    decision = Decision.ABORTED if completed is None or checkpoint > completed.id else None
    verdict, detail, aborted = Verdict.TOO_LATE, f"checkpoint {checkpoint} is decided", state.durable.aborted
    if aborted is not None and aborted.id == checkpoint:
        detail = f"checkpoint {checkpoint} is aborted: {aborted.reason.value}"
        if aborted.reason is AbortReason.EXPIRED:
            verdict = Verdict.EXPIRED
    return Ready(answer=Answer(verdict=verdict, detail=detail, decision=decision))


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
