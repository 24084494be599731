"""The state machine: ``step(state, event) -> (state, ready)``, and the instructions for the driver.

Pure: no clock, I/O, threads or randomness. The caller makes ``ready.facts`` durable in one store transaction. Only then
does it send ``ready.answer`` and the instructions that :func:`wanted` returns. If the store fails in between, the
outcome is unknown: discard the new state and rebuild it from the store.
"""

from dataclasses import replace
from typing import assert_never

from onceward.protocol import (
    answers,
    checkpoints,
    events,
    generations,
    operator_requests,
    orphans,
    resolving,
    settling,
    wedged,
)
from onceward.protocol.facts import Fact
from onceward.protocol.requests import Ending
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus
from onceward.protocol.values import NO_CHECKPOINT, NO_GENERATION

__all__ = ["note_of", "step", "wanted"]


_FOLLOW_UPS = (
    checkpoints.withdraw,
    checkpoints.decide,
    checkpoints.expire,
    generations.give_up_lost_driver,
    wedged.give_up,
    orphans.reach_end,
    checkpoints.trigger,
)


def step(state: JobState, event: events.Event) -> tuple[JobState, answers.Ready]:
    """Apply one event to one job."""
    if state.durable.record_damaged:
        answer = generations.over_damage(state.durable, event)
        return state, answers.Ready(answer=answer, note=note_of(event, answer))
    refusal = generations.impostor_answer(state.durable, event)
    if refusal is not None:
        return state, answers.Ready(answer=refusal, note=note_of(event, refusal))
    state, ready = _handle(state, event)
    if ready.answer.verdict is answers.Verdict.ACCEPTED and isinstance(
        event, events.Acknowledge | events.Decline | events.Settle | events.Amend
    ):
        state = generations.record_contact(state, event)
        if not isinstance(event, events.Settle):  # a separate thread sends these: no sign of the main loop
            state = wedged.record_contact(state, event.now)
    facts: tuple[Fact, ...] = ready.facts
    for follow_up in _FOLLOW_UPS:
        state, more = follow_up(state, event.now)
        facts += more
    return state, replace(ready, facts=facts, note=note_of(event, ready.answer))


def _handle(state: JobState, event: events.Event) -> tuple[JobState, answers.Ready]:
    match event:
        case events.OpenJob():
            return generations.open_job(state, event)
        case events.Watch():
            return generations.watch(state, event)
        case events.StreamLost():
            return generations.stream_lost(state, event)
        case events.Renew():
            return generations.renew(state, event)
        case events.Acknowledge():
            return checkpoints.acknowledge(state, event)
        case events.Decline():
            return settling.decline_replay(state, event) or checkpoints.decline(state, event)
        case events.Settle():
            return settling.settle(state, event)
        case events.Amend():
            return settling.amend(state, event)
        case events.CloseJob():
            return generations.close_job(state, event)
        case events.RequestCheckpoint():
            return operator_requests.request_checkpoint(state, event)
        case events.StopJob():
            return operator_requests.stop(state, event)
        case events.CancelJob():
            return operator_requests.cancel(state, event)
        case events.RequestRestore():
            return operator_requests.restore(state, event)
        case events.PermitTakeover():
            return operator_requests.permit_takeover(state, event)
        case events.PermitAdoption():
            return operator_requests.permit_adoption(state, event)
        case events.ReleaseSavepoint():
            return operator_requests.release(state, event)
        case events.Resolve():
            return resolving.resolve(state, event)
        case events.SkipInput():
            return resolving.skip_input(state, event)
        case events.AcknowledgeLoss():
            return operator_requests.acknowledge_loss(state, event)
        case events.CloseOutput():
            return operator_requests.close_output(state, event)
        case events.ForgetJob():
            return operator_requests.forget(state, event)
        case events.TakeOrphan():
            return orphans.take(state, event)
        case events.Tick():
            return state, answers.Ready(answer=answers.Answer(verdict=answers.Verdict.ACCEPTED))
        case _:
            assert_never(event)


def note_of(event: events.Event, answer: answers.Answer) -> answers.Note | None:
    """A history note for a call that was not accepted. None for BUSY: waiting for a live driver is not worth a note."""
    if answer.verdict in (answers.Verdict.ACCEPTED, answers.Verdict.BUSY):
        return None
    return answers.Note(
        what=type(event).__name__,
        verdict=answer.verdict,
        generation=getattr(event, "generation", NO_GENERATION),
        checkpoint=getattr(event, "checkpoint", NO_CHECKPOINT),
        participant=getattr(event, "participant", ""),
        detail=answer.detail,
    )


def wanted(state: JobState) -> tuple[answers.Instruction, ...]:
    """Everything that the current driver should do or know now, in the order to do it.

    Level-triggered: sent in full whenever a driver connects; after every step only what is new.
    """
    durable = state.durable
    if not durable.driven or durable.unreadable:
        return ()
    instructions: list[answers.Instruction] = []
    aborted, completed, pending = durable.instructed_abort, durable.completed, durable.pending
    if aborted is not None:
        instructions.append(
            answers.Abort(checkpoint=aborted.id, base=durable.base, reason=aborted.reason, detail=aborted.detail)
        )
    if durable.status is JobStatus.HALTED:
        return (*instructions, answers.Halt(reason=durable.status_detail))
    if completed is not None and not completed.settled:
        if durable.replaying:
            instructions += (
                answers.Replay(checkpoint=completed.id, participant=name, slots=slots, amendment=completed.amendment)
                for name, slots in sorted(durable.replaying.items())
            )
        else:
            instructions.append(answers.Complete(checkpoint=completed.id, amendment=completed.amendment))
    if durable.status is JobStatus.RESTARTING:
        instructions.append(answers.Fail(reason=durable.status_detail))
    elif pending is not None and not state.all_answered:
        at_once = bool(durable.open_requests)
        instructions.append(answers.Trigger(checkpoint=pending.id, base=pending.base, at_once=at_once))
    if durable.ending is Ending.STOP:
        instructions.append(answers.Stop())
    elif durable.ending is Ending.CANCEL:
        instructions.append(answers.Cancel())
    return tuple(instructions)


def next_deadline(state: JobState) -> float | None:
    """The earliest ``now`` at which a tick can have an effect; None when only an event can change the job.

    In monotonic seconds. May lie in the past, which means at once.
    """
    deadlines = [checkpoints.due(state), wedged.due(state), state.restart_due]
    if state.session is not None and state.session.stream_lost_at is not None:
        deadlines.append(state.session.lease_ends)
    if state.pending is not None and not state.all_answered:
        deadlines.append(state.pending.started + state.durable.settings.seconds("timeout"))
    elif state.pending is not None:
        deadlines.append(state.pending.good_until)
    return min((deadline for deadline in deadlines if deadline is not None), default=None)
