"""How each fact changes the durable state. The core, the store and every simulation in the tests share this
definition."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from onceward.protocol import facts
from onceward.protocol.durable import (
    MAX_GONE,
    AbortedCheckpoint,
    Durable,
    Loss,
    Resolution,
    RestoreOrder,
    UndecidedCheckpoint,
)
from onceward.protocol.requests import MAX_KEPT, Request, RequestState
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    COORDINATOR,
    NO_GENERATION,
    CheckpointKind,
    CompletedCheckpoint,
    Generation,
    Outcome,
    Participant,
    ParticipantName,
    Role,
)

MAX_HOLDERS = 16
"""Number of newest generations whose holders are remembered: eight drivers, each followed by the coordinator."""

__all__ = ["evolve"]


def evolve(durable: Durable, fact: facts.Fact) -> Durable:
    """The durable state after ``fact``."""
    match fact:
        case facts.GenerationGranted():
            return replace(
                durable,
                generation=fact.generation,
                driver=fact.driver,
                holders=_with_holder(durable.holders, fact),
                participants=fact.participants,
                gone=_gone(durable, fact.participants),
                settings=fact.settings,
                last_id=fact.first_id,
                failures=0,
                outcomes=durable.outcomes if fact.driver == COORDINATOR else {},  # outcomes in doubt are checked again
                takeover=NO_GENERATION,
                adoption=durable.adoption if fact.driver == COORDINATOR else fact.adopted,
            )
        case facts.GenerationFailed():
            return durable  # the resulting status change is a separate fact
        case facts.GenerationEnded():
            return _ended(durable, fact)
        case facts.StatusChanged():
            reached = fact.status in (JobStatus.FINISHED, JobStatus.CANCELLED)
            ending = None if reached else durable.ending
            finished = durable.base if fact.status is JobStatus.FINISHED else durable.finished
            durable = _without_failures(durable) if reached else durable
            return replace(durable, status=fact.status, status_detail=fact.detail, ending=ending, finished=finished)
        case facts.CheckpointTriggered():
            pending = UndecidedCheckpoint(id=fact.checkpoint, base=fact.base, kind=fact.kind, request=fact.request)
            requests = tuple(
                replace(request, state=RequestState.RUNNING, checkpoint=fact.checkpoint)
                if request.id == fact.request
                else request
                for request in durable.requests
            )
            # The driver claimed the job before it connected its stream, and without a stream nothing is triggered.
            return replace(durable, last_id=fact.checkpoint, pending=pending, requests=requests, adoption=None)
        case facts.CheckpointCompleted():
            return _complete(durable, fact)
        case facts.CheckpointAborted():
            aborted = AbortedCheckpoint(
                id=fact.checkpoint, generation=fact.generation, reason=fact.reason, detail=fact.detail
            )
            failure = fact.why if fact.counted else durable.failure
            failures = durable.failures + fact.counted
            return replace(durable, pending=None, aborted=aborted, failures=failures, failure=failure)
        case facts.CheckpointUnchanged():
            return replace(_without_failures(durable), pending=None)
        case facts.CheckpointSettled():
            return replace(durable, completed=replace(_completed(durable), settled=True), outcomes={})
        case facts.LossRecorded():
            known = durable.replaying.get(fact.participant, frozenset())
            slots = known | {settlement.slot for settlement in fact.settlements}
            return replace(durable, replaying={**durable.replaying, fact.participant: slots})
        case facts.LossSkipped():
            return _skip(durable, fact)
        case facts.LossAcknowledged():
            heard = Loss(checkpoint=fact.checkpoint, participant=fact.participant, slots=fact.slots)
            return replace(durable, losses=_without(durable.losses, heard))
        case facts.CheckpointAmended():
            return _amend(durable, fact)
        case facts.JobHalted():
            return _halt(durable, fact)
        case facts.OutputClosed():
            return replace(durable, gone=tuple(one for one in durable.gone if one.name != fact.participant))
        case facts.RequestQueued():
            return replace(durable, requests=_bounded((*durable.requests, fact.request)))
        case facts.RequestEnded():
            requests = tuple(fact.request if one.id == fact.request.id else one for one in durable.requests)
            return replace(durable, requests=requests)
        case facts.EndingRequested():
            return replace(durable, ending=fact.ending)
        case facts.RestoreRequested():
            return replace(durable, restore=RestoreOrder(source=fact.source, reason=fact.reason))
        case facts.TakeoverPermitted():
            return replace(durable, takeover=fact.generation)
        case facts.AdoptionPermitted():
            return replace(durable, adoption=fact.claim)
        case facts.CheckpointRestored():
            completed = CompletedCheckpoint(
                id=fact.checkpoint,
                base=fact.source,
                generation=fact.generation,
                snapshots=fact.snapshots,
                settled=True,
                kind=CheckpointKind.RESTORE,
            )
            # The slots of the former checkpoint no longer count: their records are read again.
            return replace(
                durable,
                last_id=fact.checkpoint,
                completed=completed,
                unreadable="",
                restore=None,
                replaying={},
                lost=False,
                outcomes={},
            )
        case facts.SlotsResolved():
            return _resolve(durable, fact)
        case facts.InputSkipped():
            moved = CompletedCheckpoint(
                id=fact.checkpoint,
                base=fact.base,
                generation=fact.generation,
                snapshots=fact.snapshots,
                settled=True,
                kind=CheckpointKind.SKIP,
            )
            finished = fact.checkpoint if durable.finished == fact.base else durable.finished
            return replace(durable, last_id=fact.checkpoint, completed=moved, finished=finished)
        case facts.JobForgotten():
            return Durable(
                job=durable.job,
                store_id=durable.store_id,
                status=durable.status,
                generation=durable.generation,
                participants=durable.participants,  # what they keep outside the store is still to be removed
                gone=durable.gone,
                last_id=durable.last_id,
            )
        case facts.SavepointReleased():
            if durable.completed is None or durable.completed.id != fact.checkpoint:
                return durable
            return replace(durable, completed=replace(durable.completed, kind=CheckpointKind.CHECKPOINT))
        case _:
            assert_never(fact)


def _gone(durable: Durable, present: Sequence[Participant]) -> tuple[Participant, ...]:
    """The outputs that are gone once a driver has begun that has those that are ``present``."""
    if durable.status is JobStatus.FORGOTTEN:
        return ()
    names = {(one.name, one.kind) for one in present}
    former = {one.name: one for one in (*durable.gone, *durable.participants) if one.role is Role.SINK}
    return tuple(one for one in former.values() if (one.name, one.kind) not in names)[-MAX_GONE:]


def _with_holder(holders: Mapping[Generation, str], fact: facts.GenerationGranted) -> Mapping[Generation, str]:
    """The newest holders, with the new one."""
    newest = sorted(holders)[-MAX_HOLDERS + 1 :]
    return {**{generation: holders[generation] for generation in newest}, fact.generation: fact.holder or fact.driver}


def _complete(durable: Durable, fact: facts.CheckpointCompleted) -> Durable:
    pending = durable.pending
    assert pending is not None, "only what was triggered is completed"
    completed = CompletedCheckpoint(
        id=fact.checkpoint,
        base=pending.base,
        generation=durable.generation,
        snapshots=dict(fact.snapshots),
        settled=fact.settled,
        kind=pending.kind,
    )
    return replace(_without_failures(durable), pending=None, completed=completed)


def _ended(durable: Durable, fact: facts.GenerationEnded) -> Durable:
    """A failure stays until a checkpoint is completed. One that its generation has counted is not counted again."""
    former = durable.former_failures + (durable.failures or fact.failed)
    failure = fact.detail if fact.failed else durable.failure
    return replace(durable, driver=None, failures=0, former_failures=former, failure=failure)


def _without_failures(durable: Durable) -> Durable:
    return replace(durable, failures=0, former_failures=0, failure="")


def _amend(durable: Durable, fact: facts.CheckpointAmended) -> Durable:
    """Replace the lost committables by the new ones, sorted by slot."""
    completed = _completed(durable)
    snapshot = completed.snapshots[fact.participant]
    kept = [committable for committable in snapshot.committables if committable.slot not in fact.slots]
    committables = tuple(sorted((*kept, *fact.committables), key=lambda committable: committable.slot))
    snapshots = {**completed.snapshots, fact.participant: replace(snapshot, committables=committables)}
    left = durable.replaying.get(fact.participant, frozenset()) - fact.slots
    replaying = {name: slots for name, slots in durable.replaying.items() if name != fact.participant}
    if left:
        replaying[fact.participant] = left
    amended = replace(completed, snapshots=snapshots, amendment=fact.amendment)
    return replace(durable, completed=amended, replaying=replaying)


def _halt(durable: Durable, fact: facts.JobHalted) -> Durable:
    found = {settlement.slot: settlement.outcome for settlement in fact.settlements}
    if not found:  # a declined replay: these slots are proved lost and cannot be written again
        found = dict.fromkeys(durable.replaying.get(fact.participant, ()), Outcome.LOST)
    before = durable.outcomes.get(fact.participant, {})
    lost_before = {slot: outcome for slot, outcome in before.items() if outcome is Outcome.LOST}  # a proof is final
    known = {**before, **found, **lost_before}
    outcomes = {**durable.outcomes, fact.participant: known} if known else durable.outcomes
    lost = any(settlement.outcome is Outcome.LOST for settlement in fact.settlements)
    return replace(durable, lost=durable.lost or lost, outcomes=outcomes)


def _resolve(durable: Durable, fact: facts.SlotsResolved) -> Durable:
    """Remove the slots that the ruling settles."""
    completed = _completed(durable)
    snapshot = completed.snapshots[fact.participant]
    kept = tuple(committable for committable in snapshot.committables if committable.slot not in fact.settled)
    snapshots = {**completed.snapshots, fact.participant: replace(snapshot, committables=kept)}
    decided = fact.slots | fact.settled
    outcomes = _outcomes_without(durable, fact.participant, decided)
    replaying = {
        name: slots - decided if name == fact.participant else slots for name, slots in durable.replaying.items()
    }
    return replace(
        durable,
        completed=replace(completed, snapshots=snapshots),
        outcomes=outcomes,
        replaying={name: slots for name, slots in replaying.items() if slots},
        lost=any(outcome is Outcome.LOST for slots in outcomes.values() for outcome in slots.values()),
        resolution=Resolution(
            checkpoint=fact.checkpoint, participant=fact.participant, slots=fact.slots, ruling=fact.ruling
        ),
    )


def _skip(durable: Durable, fact: facts.LossSkipped) -> Durable:
    """Remove the committables that are given up, and record the loss."""
    completed = _completed(durable)
    slots = frozenset(settlement.slot for settlement in fact.settlements)
    snapshot = completed.snapshots[fact.participant]
    kept = tuple(committable for committable in snapshot.committables if committable.slot not in slots)
    snapshots = {**completed.snapshots, fact.participant: replace(snapshot, committables=kept)}
    left = {name: lost - slots if name == fact.participant else lost for name, lost in durable.replaying.items()}
    loss = Loss(checkpoint=fact.checkpoint, participant=fact.participant, slots=slots)
    return replace(
        durable,
        completed=replace(completed, snapshots=snapshots),
        replaying={name: lost for name, lost in left.items() if lost},
        outcomes=_outcomes_without(durable, fact.participant, slots),
        losses=_with(durable.losses, loss),
    )


def _outcomes_without(
    durable: Durable, participant: ParticipantName, gone: frozenset[int]
) -> Mapping[ParticipantName, Mapping[int, Outcome]]:
    outcomes = {
        name: {slot: outcome for slot, outcome in slots.items() if name != participant or slot not in gone}
        for name, slots in durable.outcomes.items()
    }
    return {name: slots for name, slots in outcomes.items() if slots}


def _with(losses: tuple[Loss, ...], new: Loss) -> tuple[Loss, ...]:
    same = [loss.slots for loss in losses if (loss.checkpoint, loss.participant) == (new.checkpoint, new.participant)]
    return (*_without(losses, new, all_slots=True), replace(new, slots=new.slots.union(*same)))


def _without(losses: tuple[Loss, ...], gone: Loss, *, all_slots: bool = False) -> tuple[Loss, ...]:
    kept = []
    for loss in losses:
        if (loss.checkpoint, loss.participant) != (gone.checkpoint, gone.participant):
            kept.append(loss)
        elif not all_slots and loss.slots - gone.slots:
            kept.append(replace(loss, slots=loss.slots - gone.slots))
    return tuple(kept)


def _completed(durable: Durable) -> CompletedCheckpoint:
    assert durable.completed is not None, "there is a completed checkpoint"
    return durable.completed


def _bounded(requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """Drop the oldest ended requests beyond MAX_KEPT."""
    surplus = len(requests) - MAX_KEPT
    kept = []
    for request in requests:
        if surplus > 0 and request.state.ended:
            surplus -= 1
        else:
            kept.append(request)
    return tuple(kept)
