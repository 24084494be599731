"""Random histories of a job, mostly sensible, for hypothesis."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from onceward.protocol import events
from onceward.protocol.requests import Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.state import JobState
from onceward.protocol.values import (
    NO_CHECKPOINT,
    NO_GENERATION,
    CheckpointId,
    CheckpointKind,
    Claim,
    CompletedCheckpoint,
    Generation,
    OnLost,
    Outcome,
    RequestId,
    Settlement,
    Snapshot,
)
from tests.support.documents import committable, document
from tests.support.events import SINK, SOURCE

__all__ = ["SETTINGS", "Move", "a_move", "moves", "to_event"]

REPLAYING = replace(SINK, on_lost=OnLost.REPLAY)
SETTINGS = CheckpointSettings(
    interval="1s",
    timeout="4s",
    tolerable_failed_checkpoints=2,
    num_retained=2,
    lease="3s",
    stream_grace="1s",
    orphan_grace="3s",
)


@dataclass(frozen=True)
class Move:
    """An event described relative to the state that it meets."""

    kind: str
    wait: float
    """Seconds before it."""
    off: int
    """Distance from the right checkpoint, base or generation; mostly 0."""
    choice: int
    """Selects the event's content."""


_KINDS = (
    "go go go go go go go go go go go go go go go go "
    "open watch ack settle decline renew lost close tick restart request request stop cancel restore release amend "
    "resolve resolve skip orphan orphan takeover adopt"
).split()

a_move = st.builds(
    Move,
    kind=st.sampled_from(_KINDS),
    wait=st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0, 5.0]),
    off=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
    choice=st.integers(0, 11),
)
moves = st.lists(a_move, max_size=60)


def to_event(move: Move, state: JobState, now: float) -> events.Event:
    """Return the event that the move means now. ``restart`` is no event; callers handle it themselves."""
    durable, choice = state.durable, move.choice
    generation = Generation(max(1, durable.generation + (move.off if choice % 3 == 0 else 0)))
    pending = durable.last_id
    checkpoint = CheckpointId(max(1, pending + move.off))
    match move.kind:
        case "go":
            return _sensible(now, state, choice)
        case "open":
            claim = Claim(
                store_id="other" if choice == 10 else durable.store_id, generation=Generation(3), completed=pending
            )
            return events.OpenJob(
                now=now,
                driver=f"driver-{choice % 3}",
                participants=(SOURCE, REPLAYING if choice % 2 else SINK),
                settings=SETTINGS,
                claim=claim if choice > 8 else None,
                instead_of=Generation(max(0, durable.generation - choice // 4)) if choice % 4 == 0 else NO_GENERATION,
            )
        case "takeover":
            return events.PermitTakeover(now=now, generation=generation, reason="Ada")
        case "adopt":
            store_id = "other" if choice % 2 else durable.store_id
            claim = Claim(store_id=store_id, generation=Generation(3), completed=pending)
            return events.PermitAdoption(now=now, claim=claim, reason="Ada")
        case "watch":
            return events.Watch(now=now, generation=generation)
        case "ack":
            return _acknowledge(now, generation, checkpoint, CheckpointId(max(0, state.base + move.off)), choice)
        case "decline":
            return events.Decline(
                now=now, generation=generation, checkpoint=checkpoint, participant=SINK.name, reason=f"reason {choice}"
            )
        case "settle":
            done = durable.completed.id if durable.completed is not None else checkpoint
            outcome = {10: Outcome.IN_DOUBT, 11: Outcome.LOST}.get(choice, Outcome.COMMITTED)
            slots = range(3) if choice % 2 else (choice % 3,)
            return events.Settle(
                now=now,
                generation=generation,
                checkpoint=CheckpointId(max(1, done + move.off)),
                participant=SINK.name,
                settlements=tuple(Settlement(slot=slot, outcome=outcome, evidence="seen") for slot in slots),
                amendment=(durable.completed.amendment if durable.completed is not None else 0) + (choice == 9),
            )
        case "amend":
            return _amend(now, generation, state, choice)
        case "renew":
            return events.Renew(now=now, generation=generation)
        case "lost":
            return events.StreamLost(now=now, generation=generation)
        case "close":
            return events.CloseJob(
                now=now,
                generation=generation,
                reason=list(events.CloseReason)[choice % 5],
                detail=f"{choice}",
                completed=CheckpointId(max(0, state.base + move.off)),
            )
        case "request":
            kind = CheckpointKind.SAVEPOINT if choice % 2 else CheckpointKind.CHECKPOINT
            return events.RequestCheckpoint(now=now, request=RequestId(f"r{choice}"), kind=kind, stop=choice in (5, 6))
        case "stop":
            return events.StopJob(now=now)
        case "cancel":
            return events.CancelJob(now=now)
        case "restore":
            return events.RequestRestore(now=now, source=_older(state, choice), reason="a wish")
        case "release":
            return events.ReleaseSavepoint(now=now, checkpoint=pending)
        case "resolve":
            return _resolve(now, state, choice)
        case "skip":
            at = document(at=100 + choice)
            base = CheckpointId(max(0, state.base + move.off))
            return events.SkipInput(
                now=now, base=base, participant=SOURCE.name, positions=at, skipped="some", reason="Ada"
            )
        case "orphan":
            claim = Claim(
                store_id="other" if choice == 5 else durable.store_id, generation=generation, completed=checkpoint
            )
            return events.TakeOrphan(now=now, holder="coordinator", claims=(claim,) if choice > 8 else ())
        case _:
            return events.Tick(now=now)


def _acknowledge(
    now: float, generation: Generation, checkpoint: CheckpointId, base: CheckpointId, choice: int
) -> events.Acknowledge:
    unchanged = choice >= 10
    if choice % 2:
        positions = document(at=choice if choice > 8 else 1)
        participant, snapshot = SOURCE, Snapshot(positions=positions, records=3, unchanged=unchanged)
    else:
        slots = () if unchanged or choice == 0 else range(3)
        committables = tuple(committable(slot, text="ä\ud800", n=2**53) for slot in slots)
        state = document(counted=choice) if choice % 4 else None
        snapshot = Snapshot(committables=committables, records=3, bytes=300, unchanged=unchanged, state=state)
        participant = SINK
    return events.Acknowledge(
        now=now,
        generation=generation,
        checkpoint=checkpoint,
        participant=participant.name,
        base=base,
        snapshot=snapshot,
    )


def _older(state: JobState, choice: int) -> CompletedCheckpoint:
    """Return a checkpoint as the store would; mostly older than the completed one."""
    at = document(at=choice)
    older = CheckpointId(max(1, state.base - choice % 3))
    return CompletedCheckpoint(
        id=older,
        base=NO_CHECKPOINT,
        generation=Generation(1),
        snapshots={SOURCE.name: Snapshot(positions=at, records=3), SINK.name: Snapshot()},
        settled=True,
    )


def _resolve(now: float, state: JobState, choice: int) -> events.Resolve:
    """Return a ruling, mostly about unresolved slots."""
    unresolved = sorted(state.durable.unresolved.get(SINK.name, {choice % 3: Outcome.LOST}))
    outcome = list(Outcome)[choice % 3]
    return events.Resolve(
        now=now,
        checkpoint=CheckpointId(max(1, state.base)),
        participant=SINK.name,
        slots=frozenset(unresolved if choice % 4 else unresolved[:1]),
        ruling=list(Ruling)[choice % 5 % 3],
        reason="Ada",
        evidence=tuple(Settlement(slot=slot, outcome=outcome, evidence="seen") for slot in unresolved[: choice % 3]),
        forced=choice in (5, 6, 7),
    )


def _amend(now: float, generation: Generation, state: JobState, choice: int) -> events.Amend:
    completed = state.durable.completed
    lost = sorted(state.durable.replaying.get(SINK.name, frozenset({choice % 3})))
    slots = frozenset(lost if choice % 3 else lost[:1])
    return events.Amend(
        now=now,
        generation=generation,
        checkpoint=CheckpointId(max(1, state.base)),
        participant=SINK.name,
        amendment=(completed.amendment if completed is not None else 0) - (choice == 11),
        slots=slots,
        committables=tuple(committable(slot, again=choice % 2) for slot in sorted(slots) if (slot + choice) % 4),
    )


def _sensible(now: float, state: JobState, choice: int) -> events.Event:
    """Return the next event of a healthy driver."""
    durable, generation = state.durable, state.durable.generation
    if durable.driver is None and choice in (3, 4):
        return events.TakeOrphan(now=now + 4, holder="coordinator")
    if not durable.orphaned and (durable.driver is None or state.session is None):
        sink = REPLAYING if choice % 2 else SINK
        return events.OpenJob(
            now=now,
            driver=f"d{generation}",
            participants=(SOURCE, sink),
            settings=SETTINGS,
            claim=None,
            instead_of=generation,
        )
    if state.session is not None and state.session.stream_lost_at is not None:
        return events.Watch(now=now, generation=generation)
    completed = durable.completed
    if completed is not None and not completed.settled and choice % 3:
        if durable.replaying and not durable.orphaned:
            return _amend(now, generation, state, 4)
        outcome = {10: Outcome.LOST, 11: Outcome.LOST, 8: Outcome.IN_DOUBT}.get(choice, Outcome.COMMITTED)
        return events.Settle(
            now=now,
            generation=generation,
            checkpoint=completed.id,
            participant=SINK.name,
            settlements=tuple(
                Settlement(slot=one.slot, outcome=outcome, evidence="seen")
                for one in completed.snapshots[SINK.name].committables
            ),
            amendment=completed.amendment,
        )
    if state.pending is not None and durable.pending is not None:
        source = SOURCE.name not in state.pending.answers
        what = (11 if choice == 11 else 1) if source else (10 if choice == 10 else 2)
        return _acknowledge(now, generation, durable.pending.id, durable.base, what)
    return events.Tick(now=now)
