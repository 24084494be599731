"""After the decision: record proved commits, replay or give up lost slots, or halt the job."""

from dataclasses import replace
from typing import assert_never

from onceward.protocol.answers import Answer, Ready, Verdict
from onceward.protocol.checkpoints import abort
from onceward.protocol.events import Amend, Decline, Settle
from onceward.protocol.facts import (
    AbortReason,
    CheckpointAmended,
    CheckpointSettled,
    Fact,
    JobHalted,
    LossRecorded,
    LossSkipped,
)
from onceward.protocol.generations import Step, fail_requests, fenced_answer, may_drive, may_report, moved
from onceward.protocol.state import JobState, record
from onceward.protocol.status import Transition
from onceward.protocol.values import (
    CheckpointId,
    CompletedCheckpoint,
    OnLost,
    Outcome,
    ParticipantName,
    Settlement,
)

_ACCEPTED = Answer(verdict=Verdict.ACCEPTED)


def settle(state: JobState, event: Settle) -> tuple[JobState, Ready]:
    """Record the outcomes of committables. The checkpoint is settled when every slot of every sink is proved
    committed."""
    completed, refusal = _unsettled(state, event)
    if completed is None:
        return state, Ready(answer=refusal)
    if event.amendment < completed.amendment:
        detail = f"lost committables of checkpoint {completed.id} were replaced since (amendment {completed.amendment})"
        return state, Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=detail))
    given_up = _given_up(state, completed.id, event.participant)
    slots = {committable.slot for committable in completed.snapshots[event.participant].committables} | given_up
    named = [settlement.slot for settlement in event.settlements]
    if not slots.issuperset(named) or len(set(named)) != len(named) or not named:
        detail = f"settlements must name slots of checkpoint {completed.id} once each"
        return state, Ready(answer=Answer(verdict=Verdict.INVALID, detail=detail))

    replaying = state.durable.replaying.get(event.participant, frozenset())
    # A loss that is already recorded is not handled again, unless the policy is now to give it up.
    heard = given_up | (replaying if _policy(state, event.participant) is not OnLost.SKIP else frozenset())
    bad = tuple(s for s in event.settlements if s.outcome is not Outcome.COMMITTED and s.slot not in heard)
    known_of = state.durable.outcomes.get(event.participant, {})
    lost = replaying | {slot for slot, outcome in known_of.items() if outcome is Outcome.LOST}  # a proof is final
    good = frozenset(s.slot for s in event.settlements if s.outcome is Outcome.COMMITTED) - lost
    known = state.settled_slots.get(event.participant, frozenset())
    if not bad and good <= known:
        return state, Ready(answer=Answer(verdict=Verdict.DUPLICATE))
    proved = (known | good) - {s.slot for s in bad}  # a contradicted proof no longer counts
    state = replace(state, settled_slots={**state.settled_slots, event.participant: proved})
    if bad:
        return _go_by_policy(state, event, bad)
    state, facts = settled_if_proved(state, event.now)
    return state, Ready(answer=_ACCEPTED, facts=facts)


def amend(state: JobState, event: Amend) -> tuple[JobState, Ready]:
    """Replace lost slots by their replay: the new committables must be committed now."""
    completed, refusal = _unsettled(state, event)
    if completed is None:
        return state, Ready(answer=refusal)
    recorded = tuple(c for c in completed.snapshots[event.participant].committables if c.slot in event.slots)
    if event.amendment < completed.amendment:
        if event.amendment == completed.amendment - 1 and recorded == event.committables:
            return state, Ready(answer=Answer(verdict=Verdict.DUPLICATE))
        detail = f"checkpoint {completed.id} was amended since (amendment {completed.amendment})"
        return state, Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=detail))
    written = [committable.slot for committable in event.committables]
    lost = state.durable.replaying.get(event.participant, frozenset())
    if not event.slots or not event.slots <= lost:
        detail = f"only lost slots can be written again; lost are {sorted(lost)}"
        return state, Ready(answer=Answer(verdict=Verdict.INVALID, detail=detail))
    if not event.slots.issuperset(written) or written != sorted(set(written)):
        detail = "committables must be of the slots written again, once each and in their order"
        return state, Ready(answer=Answer(verdict=Verdict.INVALID, detail=detail))
    fact = CheckpointAmended(
        checkpoint=completed.id,
        participant=event.participant,
        amendment=completed.amendment + 1,
        slots=event.slots,
        committables=event.committables,
    )
    state, facts = settled_if_proved(record(state, (fact,)), event.now)
    return state, Ready(answer=_ACCEPTED, facts=(fact, *facts))


def decline_replay(state: JobState, event: Decline) -> tuple[JobState, Ready] | None:
    """Halt the job because a replay cannot be done. None when ``event`` declines something else."""
    completed, lost = state.durable.completed, state.durable.replaying.get(event.participant)
    if not may_drive(state, event.generation) or completed is None or completed.id != event.checkpoint or not lost:
        return None
    reason = f"checkpoint {completed.id}: lost slots {sorted(lost)} cannot be written again: {event.reason}"
    return _halt(state, event.now, completed.id, event.participant, (), reason)


def _unsettled(state: JobState, event: Settle | Amend) -> tuple[CompletedCheckpoint | None, Answer]:
    """The completed checkpoint that the call names, or the answer why it cannot be settled now."""
    checkpoint, participant = event.checkpoint, event.participant
    if not may_report(state, event.generation):
        return None, fenced_answer(state.durable, event.generation)
    completed = state.durable.completed
    if checkpoint > state.durable.last_id or checkpoint < 1:
        detail = f"checkpoint {checkpoint} was never triggered"
        return None, Answer(verdict=Verdict.UNKNOWN_CHECKPOINT, detail=detail)
    if completed is None or completed.id != checkpoint:
        detail = f"checkpoint {checkpoint} is not the newest completed one"
        return None, Answer(verdict=Verdict.TOO_LATE, detail=detail)
    if completed.settled:
        return None, Answer(verdict=Verdict.DUPLICATE)
    snapshot = completed.snapshots.get(participant)
    if snapshot is None or not snapshot.committables:
        detail = f"{participant} has nothing to settle in checkpoint {completed.id}"
        return None, Answer(verdict=Verdict.UNKNOWN_PARTICIPANT, detail=detail)
    if event.amendment > completed.amendment:
        detail = (
            f"its driver knows amendment {event.amendment} of checkpoint {completed.id}, this store only "
            f"{completed.amendment}: an older copy was put back. Change nothing more and stop"
        )
        return None, Answer(verdict=Verdict.FENCED, detail=detail)
    return completed, _ACCEPTED


def settled_if_proved(state: JobState, now: float) -> Step:
    """Settle the checkpoint once every committable is proved committed and none waits to be written again."""
    completed = state.durable.completed
    assert completed is not None
    waiting = state.durable.replaying or any(
        not {c.slot for c in snapshot.committables} <= state.settled_slots.get(name, frozenset())
        for name, snapshot in completed.snapshots.items()
    )
    if waiting:
        return state, ()
    took = now - state.completed_at if state.completed_at is not None else 0.0
    facts = (CheckpointSettled(checkpoint=completed.id, took_s=took),)
    return record(state, facts), facts


def _given_up(state: JobState, checkpoint: CheckpointId, participant: ParticipantName) -> frozenset[int]:
    """Slots that were given up and need no outcome any more."""
    losses = state.durable.losses
    return next(
        (one.slots for one in losses if (one.checkpoint, one.participant) == (checkpoint, participant)), frozenset()
    )


def _policy(state: JobState, name: ParticipantName) -> OnLost:
    return next((one.on_lost for one in state.durable.participants if one.name == name), OnLost.HALT)


def _go_by_policy(state: JobState, event: Settle, bad: tuple[Settlement, ...]) -> tuple[JobState, Ready]:
    """Apply the sink's policy to outcomes that are not committed. Anything in doubt halts the job under every
    policy."""
    policy = _policy(state, event.participant)
    reason = f"checkpoint {event.checkpoint}: " + "; ".join(settlement.evidence for settlement in bad)
    if any(settlement.outcome is Outcome.IN_DOUBT for settlement in bad):
        policy = OnLost.HALT
    match policy:
        case OnLost.HALT:
            return _halt(state, event.now, event.checkpoint, event.participant, event.settlements, reason)
        case OnLost.REPLAY:
            return _replay(state, event, bad, reason)
        case OnLost.SKIP:
            return _skip(state, event, bad, reason)
        case _:
            assert_never(policy)


def _skip(state: JobState, event: Settle, lost: tuple[Settlement, ...], reason: str) -> tuple[JobState, Ready]:
    """Give up the lost slots and continue."""
    completed = state.durable.completed
    assert completed is not None
    slots = {settlement.slot for settlement in lost}
    fact = LossSkipped(
        checkpoint=event.checkpoint,
        participant=event.participant,
        settlements=lost,
        committables=tuple(c for c in completed.snapshots[event.participant].committables if c.slot in slots),
        reason=f"on_lost={OnLost.SKIP.value}",
    )
    state, facts = settled_if_proved(record(state, (fact,)), event.now)
    return state, Ready(answer=replace(_ACCEPTED, detail=reason), facts=(fact, *facts))


def _replay(state: JobState, event: Settle, bad: tuple[Settlement, ...], reason: str) -> tuple[JobState, Ready]:
    """Stop everything that would build on the checkpoint until the lost slots are written again."""
    facts: tuple[Fact, ...] = ()
    if state.durable.pending is not None:
        # Readers follow the order of the log: no later record may be in it before the lost ones.
        state, facts = abort(state, event.now, AbortReason.LOST_BASE, reason)
    loss = LossRecorded(checkpoint=event.checkpoint, participant=event.participant, settlements=bad)
    return record(state, (loss,)), Ready(answer=replace(_ACCEPTED, detail=reason), facts=(*facts, loss))


def _halt(
    state: JobState,
    now: float,
    checkpoint: CheckpointId,
    participant: ParticipantName,
    settlements: tuple[Settlement, ...],
    reason: str,
) -> tuple[JobState, Ready]:
    facts: list[Fact] = []
    if state.durable.pending is not None:
        state, aborted = abort(state, now, AbortReason.HALTED, reason)
        facts += aborted
    ended = fail_requests(state.durable, f"the job is halted: {reason}")
    halted = JobHalted(checkpoint=checkpoint, participant=participant, settlements=settlements, reason=reason)
    more = [*ended, halted, moved(state.durable, Transition.HALTED, reason)]
    return record(state, more), Ready(answer=replace(_ACCEPTED, detail=reason), facts=(*facts, *more))
