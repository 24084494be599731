"""The last resort: a person decides what a job cannot prove, or moves it past deleted input."""

from collections.abc import Mapping
from dataclasses import replace

from onceward.protocol.answers import Answer, Ready, Verdict
from onceward.protocol.durable import Durable, Resolution
from onceward.protocol.events import Resolve, SkipInput
from onceward.protocol.facts import (
    Fact,
    GenerationEnded,
    InputSkipped,
    LossRecorded,
    LossSkipped,
    SlotsResolved,
)
from onceward.protocol.generations import moved
from onceward.protocol.requests import Ruling
from onceward.protocol.settling import settled_if_proved
from onceward.protocol.state import JobState, record
from onceward.protocol.status import JobStatus, Transition
from onceward.protocol.values import (
    MAX_ID,
    CheckpointId,
    CheckpointKind,
    Committable,
    CompletedCheckpoint,
    Outcome,
    Settlement,
    Snapshot,
)

_ACCEPTED = Answer(verdict=Verdict.ACCEPTED)
_DUPLICATE = Ready(answer=Answer(verdict=Verdict.DUPLICATE))


def resolve(state: JobState, event: Resolve) -> tuple[JobState, Ready]:
    """Apply a person's ruling to slots. Once all slots are resolved the job may start again."""
    durable = state.durable
    wanted = Resolution(
        checkpoint=event.checkpoint, participant=event.participant, slots=event.slots, ruling=event.ruling
    )
    if durable.resolution == wanted and not event.slots & durable.unresolved.get(event.participant, {}).keys():
        return state, _DUPLICATE
    completed = durable.completed
    refusal = _driven(durable) or _nothing_open(durable, event.checkpoint)
    if refusal or completed is None:
        return state, _refused(refusal)
    refusal = _wrong_slots(completed, event)
    if not refusal and not event.forced:
        refusal = _beyond(durable, event) or _contradiction(durable, event)
    if refusal:
        return state, _refused(refusal)

    known = durable.outcomes.get(event.participant, {})
    settled = frozenset[int]() if event.ruling is Ruling.REPLAY else event.slots
    if durable.unresolved.get(event.participant, {}).keys() <= event.slots:
        # These were proved when the job halted. They are not checked again: the brokers may have forgotten them by now.
        settled |= {slot for slot, outcome in known.items() if outcome is Outcome.COMMITTED}
    facts: list[Fact] = [
        SlotsResolved(
            checkpoint=completed.id,
            participant=event.participant,
            slots=event.slots,
            ruling=event.ruling,
            settled=settled,
            reason=event.reason,
            evidence=event.evidence,
            forced=event.forced,
        )
    ]
    if event.ruling is Ruling.GIVEN_UP:
        facts.append(_given_up(completed, known, event))
    if event.ruling is Ruling.REPLAY:
        lost = tuple(_loss(slot, event) for slot in sorted(event.slots))
        facts.append(LossRecorded(checkpoint=completed.id, participant=event.participant, settlements=lost))
    if durable.orphaned:  # so that the coordinator starts over with the committables that remain
        facts.append(GenerationEnded(generation=durable.generation, detail=Transition.RESOLVED.value))
        state = replace(state, driverless_since=event.now)
    state = record(state, facts)
    return _afterwards(state, event.now, event.reason, facts)


def _afterwards(state: JobState, now: float, reason: str, facts: list[Fact]) -> tuple[JobState, Ready]:
    """Settle the checkpoint when all its remaining commits are proved, and release the job when nothing is
    unresolved."""
    state, settled = settled_if_proved(state, now)
    durable, more = state.durable, list[Fact]()
    if durable.status is JobStatus.HALTED and not durable.unresolved:
        more.append(moved(durable, Transition.RESOLVED, reason))
    return record(state, more), Ready(answer=_ACCEPTED, facts=(*facts, *settled, *more))


def skip_input(state: JobState, event: SkipInput) -> tuple[JobState, Ready]:
    """Continue with the positions of one source changed. This makes a new completed checkpoint, so the history shows
    it."""
    durable = state.durable
    completed = durable.completed
    if (
        completed is not None
        and (completed.kind, completed.base) == (CheckpointKind.SKIP, event.base)
        and completed.snapshots[event.participant].positions == event.positions
    ):
        return state, _DUPLICATE
    refusal = _driven(durable) or _cannot_skip(durable, event)
    if refusal or completed is None:
        return state, _refused(refusal)
    snapshots = {name: Snapshot(positions=snapshot.positions) for name, snapshot in completed.snapshots.items()}
    snapshots[event.participant] = Snapshot(positions=event.positions)
    checkpoint = CheckpointId(durable.last_id + 1)
    facts: tuple[Fact, ...] = (
        InputSkipped(
            checkpoint=checkpoint,
            base=completed.id,
            generation=durable.generation,
            participant=event.participant,
            snapshots=snapshots,
            skipped=event.skipped,
            reason=event.reason,
        ),
        _unread(completed, checkpoint, event),
        *([moved(durable, Transition.RESOLVED, event.reason)] if durable.status is JobStatus.HALTED else []),
    )
    return record(state, facts), Ready(answer=_ACCEPTED, facts=facts)


def _driven(durable: Durable) -> str:
    if not durable.driven and not durable.awaits_driver:
        return ""
    return f"job {durable.job} has a driver ({durable.status.value}); stop it first, or wait until its lease ends"


def _nothing_open(durable: Durable, checkpoint: CheckpointId) -> str:
    completed = durable.completed
    if completed is None:
        return durable.unreadable or f"job {durable.job} has no completed checkpoint"
    if completed.settled:
        return f"everything that was decided for job {durable.job} is settled; there is nothing to resolve"
    if completed.id != checkpoint:
        return f"the checkpoint that is not settled is {completed.id}, not {checkpoint}; look again"
    return ""


def _wrong_slots(completed: CompletedCheckpoint, event: Resolve) -> str:
    snapshot = completed.snapshots.get(event.participant)
    slots = {committable.slot for committable in snapshot.committables} if snapshot is not None else set[int]()
    if event.slots and event.slots <= slots:
        return ""
    return (
        f"{event.participant} has no committables of slots {sorted(event.slots - slots)} in checkpoint {completed.id}; "
        f"its slots are {sorted(slots)}"
    )


def _beyond(durable: Durable, event: Resolve) -> str:
    open_slots = durable.unresolved.get(event.participant, {})
    beyond = sorted(event.slots - open_slots.keys())
    if not beyond:
        return ""
    return (
        f"slots {beyond} of checkpoint {event.checkpoint} are neither lost nor in doubt: the next start of the job "
        f"commits them. Decide about slots {sorted(open_slots)}"
    )


def _contradiction(durable: Durable, event: Resolve) -> str:
    """Why the evidence contradicts the ruling, newer evidence before older; empty when it does not."""
    known = dict(durable.outcomes.get(event.participant, {}))
    words = {one.slot: one.evidence for one in event.evidence}
    for one in event.evidence:
        # A proof remains valid: a later check that finds nothing does not weaken what was proved when the job halted.
        if one.outcome is not Outcome.IN_DOUBT:
            known[one.slot] = one.outcome
    for slot in sorted(event.slots):
        outcome = known.get(slot, Outcome.IN_DOUBT)
        if not _allowed(event.ruling, outcome):
            what = "is not proved either way" if outcome is Outcome.IN_DOUBT else f"is proved {outcome.value}"
            return f"slot {slot} {what}: {words.get(slot, durable.status_detail)}"
    return ""


def _allowed(ruling: Ruling, outcome: Outcome) -> bool:
    match outcome:
        case Outcome.COMMITTED:
            return ruling is Ruling.COMMITTED
        case Outcome.LOST:
            return ruling is not Ruling.COMMITTED
        case Outcome.IN_DOUBT:  # a replay could write the records twice
            return ruling is not Ruling.REPLAY


def _given_up(completed: CompletedCheckpoint, known: Mapping[int, Outcome], event: Resolve) -> LossSkipped:
    """The loss report that is listed until a person acknowledges it. The ruling itself is no acknowledgement."""
    seen = {one.slot: one for one in event.evidence}
    committables = completed.snapshots[event.participant].committables
    return LossSkipped(
        checkpoint=completed.id,
        participant=event.participant,
        settlements=tuple(
            seen.get(slot)
            or Settlement(slot=slot, outcome=known.get(slot, Outcome.IN_DOUBT), evidence="no broker was asked again")
            for slot in sorted(event.slots)
        ),
        committables=tuple(committable for committable in committables if committable.slot in event.slots),
        reason=event.reason,
    )


def _unread(completed: CompletedCheckpoint, checkpoint: CheckpointId, event: SkipInput) -> LossSkipped:
    """The loss report for skipped input. A source has no slots, so the report names slot 0."""
    positions = completed.snapshots[event.participant].positions
    assert positions is not None
    evidence = f"{event.skipped} was never read: an operator skipped it"
    return LossSkipped(
        checkpoint=checkpoint,
        participant=event.participant,
        settlements=(Settlement(slot=0, outcome=Outcome.LOST, evidence=evidence),),
        committables=(Committable(slot=0, document=positions),),
        reason=event.reason,
    )


def _loss(slot: int, event: Resolve) -> Settlement:
    seen = next((f": {one.evidence}" for one in event.evidence if one.slot == slot), "")
    return Settlement(slot=slot, outcome=Outcome.LOST, evidence=f"an operator decided ({event.reason}){seen}")


def _cannot_skip(durable: Durable, event: SkipInput) -> str:
    completed = durable.completed
    if completed is None:
        return durable.unreadable or f"job {durable.job} has no completed checkpoint, so no positions to move"
    if not completed.settled:
        return (
            f"checkpoint {completed.id} is completed and not settled; start the job once, so that it commits it, or "
            "resolve the halt, then retry"
        )
    if durable.restore is not None:
        return f"the next generation begins with checkpoint {durable.restore.source.id}; start the job once first"
    if completed.id != event.base:
        return f"the newest completed checkpoint is {completed.id}, not {event.base}; look again"
    if completed.snapshots.get(event.participant, Snapshot()).positions is None:
        return f"{event.participant} has no positions in checkpoint {completed.id}"
    if durable.last_id >= MAX_ID - 1:
        return f"the job has used up its ids ({MAX_ID}); begin a new job"
    return ""


def _refused(detail: str) -> Ready:
    return Ready(answer=Answer(verdict=Verdict.REFUSED, detail=detail))
