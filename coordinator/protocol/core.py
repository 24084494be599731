"""The state machine: ``step(state, event) -> (state, ready)``, and what a driver is wanted to do.

Pure: no clock, I/O, threads or chance. Whoever runs it makes ``ready.facts`` durable in one store transaction, only
then gives ``ready.answer`` and sends what :func:`wanted` says. A store that fails in between leaves the outcome
unknown: the new state must be thrown away and rebuilt from the store.
"""

from dataclasses import replace
from typing import assert_never

from coordinator.protocol import checkpoints, opening, settling
from coordinator.protocol.answers import (
    Abort,
    Answer,
    Complete,
    Fail,
    Halt,
    Instruction,
    Ready,
    Stop,
    Trigger,
    Verdict,
)
from coordinator.protocol.events import (
    Acknowledge,
    CloseJob,
    Decline,
    Event,
    OpenJob,
    Renew,
    Settle,
    StopJob,
    StreamLost,
    Tick,
    Watch,
)
from coordinator.protocol.facts import Fact, JobStatus, StopRequested
from coordinator.protocol.state import JobState

__all__ = ["step", "wanted"]


def step(state: JobState, event: Event) -> tuple[JobState, Ready]:
    """Apply one event to one job."""
    state, ready = _handle(state, event)
    facts: tuple[Fact, ...] = ready.facts
    for follow_up in (checkpoints.decide, checkpoints.expire, opening.give_up_lost_driver, checkpoints.trigger):
        state, more = follow_up(state, event.now)
        facts += more
    return state, replace(ready, facts=facts)


def _handle(state: JobState, event: Event) -> tuple[JobState, Ready]:
    match event:
        case OpenJob():
            return opening.open_job(state, event)
        case Watch():
            return opening.watch(state, event)
        case StreamLost():
            return opening.stream_lost(state, event)
        case Renew():
            return opening.renew(state, event)
        case Acknowledge():
            return checkpoints.acknowledge(state, event)
        case Decline():
            return checkpoints.decline(state, event)
        case Settle():
            return settling.settle(state, event)
        case CloseJob():
            return opening.close_job(state, event)
        case StopJob():
            return _stop(state)
        case Tick():
            return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED))
        case _:
            assert_never(event)


def _stop(state: JobState) -> tuple[JobState, Ready]:
    if state.durable.driver is None:
        detail = f"job {state.durable.job} is not running: {state.durable.status.value}"
        return state, Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=detail))
    if state.durable.stop_requested:
        return state, Ready(answer=Answer(verdict=Verdict.DUPLICATE))
    return state.remember(stop_requested=True), Ready(answer=Answer(verdict=Verdict.ACCEPTED), facts=(StopRequested(),))


def wanted(state: JobState) -> tuple[Instruction, ...]:
    """All that the current driver should do or know now, in the order in which to do it.

    Level-triggered: sent in full whenever a driver connects, and what is new of it after every step.
    """
    durable = state.durable
    if durable.driver is None:
        return ()
    instructions: list[Instruction] = []
    if state.aborted is not None:
        checkpoint, reason, detail = state.aborted
        instructions.append(Abort(checkpoint=checkpoint, reason=reason, detail=detail))
    if durable.status is JobStatus.HALTED:
        return (*instructions, Halt(reason=durable.status_detail))
    if durable.completed is not None and not durable.completed.settled:
        instructions.append(Complete(checkpoint=durable.completed.id))
    if state.failed is not None:
        instructions.append(Fail(reason=state.failed))
    elif state.pending is not None and not state.all_answered:
        instructions.append(Trigger(checkpoint=state.pending.id, base=state.pending.base))
    if durable.stop_requested:
        instructions.append(Stop())
    return tuple(instructions)
