"""Bugs of the state machine: decisions, generations, settling."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from onceward.protocol import checkpoints, core, evolve, generations, settling
from onceward.protocol import state as states
from onceward.protocol.answers import Answer, Complete, Decision, Instruction, Ready, Verdict
from onceward.protocol.durable import Durable
from onceward.protocol.events import Acknowledge, OpenJob, Settle
from onceward.protocol.facts import (
    AbortReason,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointTriggered,
    Fact,
    GenerationGranted,
)
from onceward.protocol.generations import Step
from onceward.protocol.state import JobState
from onceward.protocol.status import Transition
from onceward.protocol.values import CheckpointId, Generation, Outcome, ParticipantName, Snapshot
from tests.explorer.world import Bounds
from tests.mutants.breaking import Field, always, within, wrapped
from tests.mutants.hunts import Exploration, Lives
from tests.mutants.mutant import Mutant
from tests.support.life import OperatorInvariant
from tests.support.oracle import Invariant

__all__ = ["CORE", "LIVES", "SMALL", "TINY"]

TINY = Exploration(
    name="tiny world", bounds=Bounds(checkpoints=3, crashes=1, messages=1, store=0, declines=0, timeouts=0)
)
SMALL = Exploration(
    name="small world", bounds=Bounds(checkpoints=3, crashes=1, messages=0, store=0, declines=1, timeouts=1)
)
LIVES = Lives(most=400)


def _with_durable(state: JobState, **changes: Any) -> JobState:
    return replace(state, durable=replace(state.durable, **changes))


def _has_driver(state: JobState, generation: Generation) -> bool:
    return state.durable.driver is not None


# -- decisions


def _commits_undecided(
    wanted: Callable[[JobState], tuple[Instruction, ...]], state: JobState
) -> tuple[Instruction, ...]:
    pending = state.durable.pending
    if pending is None or not state.durable.driven or not state.all_answered:
        return wanted(state)
    return (*wanted(state), Complete(checkpoint=pending.id))


def _completed_short(**fields: Any) -> CheckpointCompleted:
    fact = CheckpointCompleted(**fields)
    snapshots = {name: replace(one, committables=one.committables[:-1]) for name, one in fact.snapshots.items()}
    return replace(fact, snapshots=snapshots)


_Acknowledge = Callable[[JobState, Acknowledge], tuple[JobState, Ready]]


def _for_any_checkpoint(acknowledge: _Acknowledge, state: JobState, event: Acknowledge) -> tuple[JobState, Ready]:
    pending = state.durable.pending
    return acknowledge(state, replace(event, checkpoint=pending.id) if pending is not None else event)


def _on_any_base(acknowledge: _Acknowledge, state: JobState, event: Acknowledge) -> tuple[JobState, Ready]:
    pending = state.durable.pending
    return acknowledge(state, replace(event, base=pending.base) if pending is not None else event)


def _last_answer_counts(acknowledge: _Acknowledge, state: JobState, event: Acknowledge) -> tuple[JobState, Ready]:
    after, ready = acknowledge(state, event)
    if ready.answer.verdict is not Verdict.CONFLICT or state.pending is None:
        return after, ready
    answers = {**state.pending.answers, event.participant: event.snapshot}
    state = replace(state, pending=replace(state.pending, answers=answers))
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED))


def _triggered_after_base(**fields: Any) -> CheckpointTriggered:
    fact = CheckpointTriggered(**fields)
    return replace(fact, checkpoint=CheckpointId(fact.base + 1))


def _answers_aborted(
    decided: Callable[[JobState, CheckpointId, ParticipantName, Snapshot | None], Ready],
    state: JobState,
    checkpoint: CheckpointId,
    participant: ParticipantName,
    snapshot: Snapshot | None,
) -> Ready:
    ready = decided(state, checkpoint, participant, snapshot)
    if ready.answer.decision is not Decision.COMPLETED:
        return ready
    return replace(ready, answer=replace(ready.answer, decision=Decision.ABORTED))


def _aborts_completed(
    end_generation: Callable[..., Step],
    /,
    state: JobState,
    now: float,
    transition: Transition,
    detail: str,
    reason: AbortReason,
    *,
    failed: bool = True,
) -> Step:
    completed = state.durable.completed
    after, facts = end_generation(state, now, transition, detail, reason, failed=failed)
    if completed is None or completed.settled:
        return after, facts
    aborted = CheckpointAborted(
        checkpoint=completed.id,
        generation=state.durable.generation,
        reason=reason,
        detail=detail,
        counted=False,
        ran_s=0.0,
    )
    return states.record(after, (aborted,)), (*facts, aborted)


DECISIONS = (
    Mutant(
        name="the coordinator orders a commit before its decision is durable",
        hurts="a crash in between aborts the checkpoint, and the job writes its records twice",
        breaks=wrapped(core.wanted, _commits_undecided),
        hunt=TINY,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="the coordinator completes checkpoint n+1 before n is settled",
        hurts="output becomes visible out of order, and a lost slot of n cannot be replayed in its place",
        breaks=within(checkpoints.decide, JobState.settled, always(True)),
        hunt=TINY,
        caught_by=(Invariant.IN_ORDER,),
    ),
    Mutant(
        name="the coordinator completes a checkpoint without the answer of one participant",
        hurts="positions move past records that no sink has",
        breaks=within(JobState.all_answered, all, any),
        hunt=TINY,
        caught_by=(Invariant.EVERYBODY,),
    ),
    Mutant(
        name="the decision forgets one committable",
        hurts="no driver commits that slot, and its records are lost",
        breaks=within(checkpoints.decide, CheckpointCompleted, _completed_short),
        hunt=LIVES,
        caught_by=(Invariant.EVERYBODY,),
    ),
    Mutant(
        name="an acknowledgement of another checkpoint counts for the pending one",
        hurts="the answer to an aborted checkpoint completes the next one with aborted transactions",
        breaks=wrapped(checkpoints.acknowledge, _for_any_checkpoint),
        hunt=SMALL,
        caught_by=(Invariant.EVERYBODY, Invariant.NEVER_CHANGES),
    ),
    Mutant(
        name="an acknowledgement counts although it builds on another base",
        hurts="consecutive checkpoints overlap or leave a gap",
        breaks=wrapped(checkpoints.acknowledge, _on_any_base),
        hunt=LIVES,
        caught_by=(Invariant.TILES,),
    ),
    Mutant(
        name="a second acknowledgement with different content replaces the first",
        hurts="the first transactions stay open, or are aborted while their records count as written",
        breaks=wrapped(checkpoints.acknowledge, _last_answer_counts),
        hunt=LIVES,
        caught_by=(Invariant.NEVER_CHANGES,),
    ),
    Mutant(
        name="the coordinator drops a checkpoint as unchanged although one participant has new records",
        hurts="acknowledged transactions are never decided",
        breaks=within(checkpoints.decide, all, any),
        hunt=LIVES,
        caught_by=(Invariant.TILES,),
    ),
    Mutant(
        name="the coordinator triggers a checkpoint while another is pending",
        hurts="two checkpoints read the same range",
        breaks=wrapped(checkpoints.due, lambda due, state: due(_with_durable(state, pending=None))),
        hunt=LIVES,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="the coordinator reuses the id of an aborted checkpoint",
        hurts="a late answer to the aborted checkpoint counts for the new one",
        breaks=within(checkpoints.trigger, CheckpointTriggered, _triggered_after_base),
        hunt=SMALL,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="the coordinator answers that a completed checkpoint is aborted",
        hurts="the driver aborts transactions whose records count as written",
        breaks=wrapped(checkpoints._decided, _answers_aborted),
        hunt=TINY,
        caught_by=(Invariant.NEVER_CHANGES,),
    ),
    Mutant(
        name="the end of a generation aborts the completed checkpoint",
        hurts="a decision changes: the job writes committed records again",
        breaks=wrapped(generations.end_generation, _aborts_completed),
        hunt=SMALL,
        caught_by=(Invariant.NEVER_CHANGES,),
    ),
)


# -- restarts of the coordinator


def _forgets_abort(evolve: Callable[[Durable, Fact], Durable], durable: Durable, fact: Fact) -> Durable:
    after = evolve(durable, fact)
    return replace(after, pending=durable.pending) if isinstance(fact, CheckpointAborted) else after


def _restarts_settled(restart: Callable[[Durable, float], JobState], durable: Durable, now: float) -> JobState:
    completed = replace(durable.completed, settled=True) if durable.completed is not None else None
    return restart(replace(durable, completed=completed), now)


RESTARTS = (
    Mutant(
        name="a restart of the coordinator forgets the pending checkpoint",
        hurts="its transactions stay open forever, or its answers count for another checkpoint",
        breaks=wrapped(states.restart, lambda restart, durable, now: restart(replace(durable, pending=None), now)),
        hunt=TINY,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="a restart of the coordinator forgets an abort",
        hurts="the coordinator completes a checkpoint whose transactions are aborted",
        breaks=wrapped(evolve.evolve, _forgets_abort),
        hunt=SMALL,
        caught_by=(Invariant.NEVER_CHANGES, Invariant.ONE_DECISION),
    ),
    Mutant(
        name="a restarted coordinator reuses the ids after the last completed checkpoint",
        hurts="a late answer to an aborted checkpoint counts for another one",
        breaks=wrapped(
            states.restart, lambda restart, durable, now: restart(replace(durable, last_id=durable.base), now)
        ),
        hunt=SMALL,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="a restarted coordinator treats the completed checkpoint as settled",
        hurts="no driver commits it, and its records are lost",
        breaks=wrapped(states.restart, _restarts_settled),
        hunt=TINY,
        caught_by=(Invariant.RESTORED, Invariant.SETTLED, Invariant.IN_ORDER),
    ),
)


# -- generations

_Open = Callable[[JobState, OpenJob], tuple[JobState, Ready]]


def _leaves_undecided(open_job: _Open, state: JobState, event: OpenJob) -> tuple[JobState, Ready]:
    after, ready = open_job(state, event)
    facts = tuple(fact for fact in ready.facts if not isinstance(fact, CheckpointAborted))
    return replace(after, durable=states.record(state, facts).durable), replace(ready, facts=facts)


def _forgets_failures(evolve: Callable[[Durable, Fact], Durable], durable: Durable, fact: Fact) -> Durable:
    after = evolve(durable, fact)
    return replace(after, former_failures=0, failure="") if isinstance(fact, GenerationGranted) else after


def _instead_of_anyone(open_job: _Open, state: JobState, event: OpenJob) -> tuple[JobState, Ready]:
    return open_job(state, replace(event, instead_of=state.durable.generation) if event.instead_of else event)


GENERATIONS = (
    Mutant(
        name="a new generation forgets that the job has failed",
        hurts="a job that fails again and again is shown as running without a failure half of the time",
        breaks=wrapped(evolve.evolve, _forgets_failures),
        hunt=LIVES,
        caught_by=(OperatorInvariant.FAILING,),
    ),
    Mutant(
        name="an acknowledgement from an older generation counts",
        hurts="the coordinator completes a checkpoint whose transactions the new generation has aborted",
        breaks=within(checkpoints.acknowledge, generations.may_drive, _has_driver),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="outcomes reported by an older generation count",
        hurts="two drivers report at once, and one of them knows only some of the outcomes",
        breaks=within(settling._unsettled, generations.may_report, always(True)),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="a replaced driver can decline its successor's checkpoint",
        hurts="two generations decide about one checkpoint",
        breaks=within(checkpoints.decline, generations.may_drive, always(True)),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="a replaced driver can end its successor's generation",
        hurts="the job stops although a live driver owns it",
        breaks=within(generations.close_job, generations.may_drive, _has_driver),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="opening a job grants the current generation number again",
        hurts="neither the coordinator nor the brokers can distinguish two drivers",
        breaks=within(generations.open_job, Generation, lambda item: Generation(max(1, item - 1))),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="opening a job leaves the pending checkpoint undecided",
        hurts="recovery cannot know whether to commit or abort its transactions",
        breaks=wrapped(generations.open_job, _leaves_undecided),
        hunt=LIVES,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="any driver can replace a live driver",
        hurts="two drivers end each other's generations in turn, and no checkpoint completes",
        breaks=wrapped(generations._wait, always(0.0)),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="a late takeover replaces a newer driver than the one that it names",
        hurts="it fences a live driver, and no driver runs the generation that it is granted",
        breaks=wrapped(generations.open_job, _instead_of_anyone),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="the coordinator does not check the claim",
        hurts="a job with an old or another store writes records twice",
        breaks=within(generations._refusal, generations._claims_refusal, always(None)),
        hunt=LIVES,
        caught_by=(OperatorInvariant.CLAIMED,),
    ),
    Mutant(
        name="the coordinator compares the claim with the last triggered checkpoint",
        hurts="a copy of the store from before a decision writes the decided records twice",
        breaks=within(generations.claim_refusal, Durable.base, lambda self: self.last_id),
        hunt=LIVES,
        caught_by=(OperatorInvariant.CLAIMED,),
    ),
    Mutant(
        name="a job with lost records opens again without an operator's decision",
        hurts="it continues after a gap in the output, and nothing shows the gap",
        breaks=within(generations.open_job, Field(Durable, lambda durable: durable.lost), always(False)),
        hunt=LIVES,
        caught_by=(Invariant.TILES,),
    ),
)


# -- settling

_Settle = Callable[[JobState, Settle], tuple[JobState, Ready]]


def _all_slots(durable: Durable) -> Mapping[ParticipantName, frozenset[int]]:
    snapshots = durable.completed.snapshots if durable.completed is not None else {}
    return {name: frozenset(one.slot for one in snapshot.committables) for name, snapshot in snapshots.items()}


def _also_proved(after: JobState, ready: Ready, event: Settle, slots: frozenset[int]) -> tuple[JobState, Ready]:
    """Count ``slots`` as committed besides what ``event`` has proved."""
    if ready.answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE) or after.settled:
        return after, ready
    proved = after.settled_slots.get(event.participant, frozenset()) | slots
    after = replace(after, settled_slots={**after.settled_slots, event.participant: proved})
    if len(_committed(event)) < len(event.settlements):
        return after, ready
    after, facts = settling.settled_if_proved(after, event.now)
    return after, replace(ready, answer=Answer(verdict=Verdict.ACCEPTED), facts=(*ready.facts, *facts))


def _committed(event: Settle) -> frozenset[int]:
    return frozenset(one.slot for one in event.settlements if one.outcome is Outcome.COMMITTED)


def _twice_counts_as_two(settle: _Settle, state: JobState, event: Settle) -> tuple[JobState, Ready]:
    after, ready = settle(state, event)
    if state.durable.lost:
        return after, ready
    slots = sorted(_all_slots(after.durable).get(event.participant, ()))
    reports = len(state.settled_slots.get(event.participant, ())) + len(_committed(event))
    return _also_proved(after, ready, event, frozenset(slots[:reports]))


def _doubt_is_proof(settle: _Settle, state: JobState, event: Settle) -> tuple[JobState, Ready]:
    settlements = tuple(
        replace(one, outcome=Outcome.COMMITTED) if one.outcome is Outcome.IN_DOUBT else one for one in event.settlements
    )
    return settle(state, replace(event, settlements=settlements))


def _of_any_amendment(settle: _Settle, state: JobState, event: Settle) -> tuple[JobState, Ready]:
    completed = state.durable.completed
    return settle(state, replace(event, amendment=completed.amendment) if completed is not None else event)


def _lost_slots_count(settle: _Settle, state: JobState, event: Settle) -> tuple[JobState, Ready]:
    return _also_proved(*settle(state, event), event, _committed(event))


SETTLING = (
    Mutant(
        name="a checkpoint counts as settled with one slot missing",
        hurts="the next one completes while that slot is still open, perhaps forever",
        breaks=within(
            settling.settled_if_proved,
            Field(Snapshot, lambda snapshot: snapshot.committables),
            lambda snapshot: snapshot.committables[:-1],
        ),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a slot that is reported twice counts as two slots",
        hurts="one slot is never committed, and the checkpoint counts as settled",
        breaks=wrapped(settling.settle, _twice_counts_as_two),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a slot in doubt counts as committed",
        hurts="an unknown outcome counts as a commit: the records may be missing",
        breaks=wrapped(settling.settle, _doubt_is_proof),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="outcomes of committables that an amendment has replaced count",
        hurts="replayed records count as committed and are not",
        breaks=wrapped(settling.settle, _of_any_amendment),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a lost slot counts as committed when it is reported again",
        hurts="it is never replayed",
        breaks=wrapped(settling.settle, _lost_slots_count),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED, Invariant.TILES),
    ),
    Mutant(
        name="a replay begins before the later checkpoint is aborted",
        hurts="records become visible before the lost ones, which precede them",
        breaks=within(settling._replay, checkpoints.abort, lambda state, now, reason, detail: (state, ())),
        hunt=LIVES,
        caught_by=(Invariant.IN_ORDER,),
    ),
    Mutant(
        name="the coordinator triggers a checkpoint during a replay",
        hurts="its records may be visible before the lost ones",
        breaks=wrapped(checkpoints.due, lambda due, state: due(_with_durable(state, replaying={}))),
        hunt=LIVES,
        caught_by=(Invariant.IN_ORDER,),
    ),
    Mutant(
        name="an amendment may replace slots that are not lost",
        hurts="committed records are written twice",
        breaks=within(settling.amend, Field(Durable, lambda durable: durable.replaying), _all_slots),
        hunt=LIVES,
        caught_by=(Invariant.TILES,),
    ),
    Mutant(
        name="the coordinator orders a commit while lost slots wait for their replay",
        hurts="the driver commits committables of which some are known to be lost",
        breaks=wrapped(core.wanted, lambda wanted, state: wanted(_with_durable(state, replaying={}))),
        hunt=LIVES,
        caught_by=(Invariant.ONE_DECISION,),
    ),
)

CORE = (*DECISIONS, *RESTARTS, *GENERATIONS, *SETTLING)
