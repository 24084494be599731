"""Random lives of a job, mostly sensible, for hypothesis."""

from dataclasses import dataclass

from hypothesis import strategies as st

from coordinator.protocol.events import (
    Acknowledge,
    CloseJob,
    CloseReason,
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
from coordinator.protocol.settings import CheckpointSettings
from coordinator.protocol.state import JobState
from coordinator.protocol.values import (
    CheckpointId,
    Claim,
    Committable,
    Document,
    Generation,
    Outcome,
    Participant,
    ParticipantName,
    Role,
    Settlement,
    Snapshot,
)

__all__ = ["SETTINGS", "Move", "moves", "to_event"]

SOURCE = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="kafka")
SINK = Participant(name=ParticipantName("sink"), role=Role.SINK, kind="kafka")
SETTINGS = CheckpointSettings(
    interval="1s", timeout="4s", tolerable_failed_checkpoints=2, num_retained=2, lease="3s", stream_grace="1s"
)


@dataclass(frozen=True)
class Move:
    """An event described relative to whatever state it meets."""

    kind: str
    wait: float
    """Seconds before it."""
    off: int
    """How far beside the right checkpoint, base or generation it aims; mostly 0."""
    choice: int
    """Picks content."""


_KINDS = "open watch ack ack ack ack settle settle decline renew lost close stop tick restart".split()

moves = st.lists(
    st.builds(
        Move,
        kind=st.sampled_from(_KINDS),
        wait=st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0, 5.0]),
        off=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
        choice=st.integers(0, 11),
    ),
    max_size=60,
)


def to_event(move: Move, state: JobState, now: float) -> Event:
    """What the move means now; ``restart`` is none and is not asked for."""
    durable, choice = state.durable, move.choice
    generation = Generation(max(1, durable.generation + (move.off if choice % 3 == 0 else 0)))
    pending = state.pending.id if state.pending is not None else durable.last_id
    checkpoint = CheckpointId(max(1, pending + move.off))
    match move.kind:
        case "open":
            claim = Claim(
                store_id="other" if choice == 5 else durable.store_id, generation=Generation(3), settled=pending
            )
            return OpenJob(
                now=now,
                driver=f"driver-{choice % 3}",
                participants=(SOURCE, SINK),
                settings=SETTINGS,
                claim=claim if choice > 8 else None,
                takeover=choice % 4 == 0,
                adopt=choice == 9,
            )
        case "watch":
            return Watch(now=now, generation=generation)
        case "ack":
            return _acknowledge(now, generation, checkpoint, CheckpointId(max(0, state.base + move.off)), choice)
        case "decline":
            return Decline(
                now=now, generation=generation, checkpoint=checkpoint, participant=SINK.name, reason=f"reason {choice}"
            )
        case "settle":
            done = durable.completed.id if durable.completed is not None else checkpoint
            outcome = {10: Outcome.IN_DOUBT, 11: Outcome.LOST}.get(choice, Outcome.COMMITTED)
            slots = range(3) if choice % 2 else (choice % 3,)
            return Settle(
                now=now,
                generation=generation,
                checkpoint=CheckpointId(max(1, done + move.off)),
                participant=SINK.name,
                settlements=tuple(Settlement(slot=slot, outcome=outcome, evidence="seen") for slot in slots),
            )
        case "renew":
            return Renew(now=now, generation=generation)
        case "lost":
            return StreamLost(now=now, generation=generation)
        case "close":
            return CloseJob(now=now, generation=generation, reason=list(CloseReason)[choice % 3], detail=f"{choice}")
        case "stop":
            return StopJob(now=now)
        case _:
            return Tick(now=now)


def _acknowledge(
    now: float, generation: Generation, checkpoint: CheckpointId, base: CheckpointId, choice: int
) -> Acknowledge:
    unchanged = choice >= 10
    if choice % 2:
        document = Document(kind="test", version=1, body={"at": choice if choice > 8 else 1})
        participant, snapshot = SOURCE, Snapshot(positions=document, records=3, unchanged=unchanged)
    else:
        document = Document(kind="test", version=1, body={"text": "ä\ud800", "n": 2**53})
        slots = () if unchanged or choice == 0 else range(3)
        committables = tuple(Committable(slot=slot, document=document) for slot in slots)
        participant, snapshot = SINK, Snapshot(committables=committables, records=3, bytes=300, unchanged=unchanged)
    return Acknowledge(
        now=now,
        generation=generation,
        checkpoint=checkpoint,
        participant=participant.name,
        base=base,
        snapshot=snapshot,
    )
