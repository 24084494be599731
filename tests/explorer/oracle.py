"""The oracle of the explorer: follows what becomes durable, and reports what must not have."""

from collections.abc import Sequence
from typing import NamedTuple

from onceward.coordinator.protocol import facts
from onceward.coordinator.protocol.answers import Abort, Answer, Complete, Decision, Instruction, Trigger
from onceward.coordinator.protocol.values import CompletedCheckpoint, Generation, Outcome, ParticipantName, Snapshot
from tests.explorer.invariants import Invariant, Violation

__all__ = ["Demand", "History", "see", "see_answer", "see_state", "stamp"]

SOURCE, SINK = ParticipantName("source"), ParticipantName("sink")


class History(NamedTuple):
    """What the facts so far say, kept independently of the core."""

    generation: int = 0
    burnt: int = 0
    undecided: int = 0
    completed: int = 0
    """Bits of checkpoints."""
    last: int = 0
    """The last completed checkpoint."""
    end: int = -1
    """Its position: all records before it are in completed checkpoints."""
    settled: bool = True
    handle: tuple[int, int] = (0, 0)
    """Generation and amendment of the last one's transaction."""
    lost: bool = False
    """Whether this transaction is recorded as lost."""


class Demand(NamedTuple):
    """What must hold at Kafka when a fact becomes durable."""

    committed: int = 0
    """The checkpoint that is committed; 0 for none."""
    open: tuple[int, int, int, int] | None = None
    """The transaction that can still be committed, unless the brokers have lost it."""
    lost: tuple[int, int, int, int] | None = None
    """The transaction that the brokers have lost."""


def stamp(generation: int, checkpoint: int) -> int:
    """Mark a snapshot with its generation and checkpoint; drivers put it into ``records``."""
    return 1000 * generation + checkpoint


def position(snapshot: Snapshot | None) -> int:
    """The position that a driver of this model wrote into its snapshot."""
    assert snapshot is not None
    assert snapshot.positions is not None
    return int(snapshot.positions.body["is"].removeprefix("position "))


def see(history: History, written: Sequence[facts.Fact]) -> tuple[History, Demand, Violation | None]:
    """The history after these facts, with the first violation in them."""
    demand = Demand()
    for fact in written:
        wrong: Violation | None = None
        match fact:
            case facts.GenerationGranted(generation=generation):
                if generation <= history.generation:
                    text = f"generation {generation} granted after {history.generation}"
                    wrong = Violation(Invariant.STALE, text)
                history = history._replace(generation=generation)
            case facts.CheckpointTriggered():
                wrong = _triggered(history, fact)
                history = history._replace(burnt=fact.checkpoint, undecided=fact.checkpoint)
            case facts.CheckpointCompleted():
                wrong = _undecided(history, fact.checkpoint, "completed") or _completed(history, fact)
                if wrong is None:
                    history, demand = _complete(history, fact, demand)
            case facts.CheckpointAborted(checkpoint=checkpoint):
                wrong = _undecided(history, checkpoint, "aborted")
                history = history._replace(undecided=0)
            case facts.CheckpointUnchanged(checkpoint=checkpoint):
                wrong = _undecided(history, checkpoint, "unchanged")
                history = history._replace(undecided=0)
            case facts.CheckpointSettled(checkpoint=checkpoint):
                if checkpoint != history.last or history.settled:
                    wrong = Violation(Invariant.IN_ORDER, f"checkpoint {checkpoint} is settled a second time")
                if history.lost:
                    wrong = Violation(Invariant.SETTLED, f"checkpoint {checkpoint} is settled, and lost")
                history = history._replace(settled=True)
                demand = demand._replace(committed=checkpoint)
            case facts.LossRecorded(checkpoint=checkpoint):
                if checkpoint != history.last or history.settled or history.undecided:
                    text = f"checkpoint {checkpoint} is recorded as lost, {history.undecided} is undecided"
                    wrong = Violation(Invariant.IN_ORDER, text)
                demand = demand._replace(lost=(checkpoint, history.handle[0], history.end - 1, history.handle[1]))
                history = history._replace(lost=True)
            case facts.CheckpointAmended(checkpoint=checkpoint):
                if checkpoint != history.last or not history.lost:
                    wrong = Violation(Invariant.TILES, f"checkpoint {checkpoint} is written again, and was not lost")
                handle = (history.generation, fact.amendment)
                demand = demand._replace(open=(checkpoint, handle[0], history.end - 1, handle[1]))
                history = history._replace(lost=False, handle=handle)
            case facts.JobHalted():
                if any(one.outcome is not Outcome.IN_DOUBT for one in fact.settlements):
                    wrong = Violation(Invariant.CONTRACT, f"the job is halted: {fact.reason}")
            case _:
                pass
        if wrong is not None:
            return history, demand, wrong
    return history, demand, None


def _triggered(history: History, fact: facts.CheckpointTriggered) -> Violation | None:
    if history.undecided:
        text = f"checkpoint {fact.checkpoint} is triggered while {history.undecided} is undecided"
        return Violation(Invariant.ONE_DECISION, text)
    if fact.checkpoint <= history.burnt:
        return Violation(Invariant.ONE_DECISION, f"id {fact.checkpoint} is taken again after {history.burnt}")
    if fact.base != history.last:
        text = f"checkpoint {fact.checkpoint} builds on {fact.base}, the last completed one is {history.last}"
        return Violation(Invariant.RESTORED, text)
    return None


def _undecided(history: History, checkpoint: int, how: str) -> Violation | None:
    if checkpoint == history.undecided:
        return None
    return Violation(Invariant.NEVER_CHANGES, f"checkpoint {checkpoint} is {how} although it is not undecided")


def _completed(history: History, fact: facts.CheckpointCompleted) -> Violation | None:
    checkpoint = fact.checkpoint
    for name in (SOURCE, SINK):
        snapshot = fact.snapshots.get(name)
        if snapshot is None or snapshot.records != stamp(history.generation, checkpoint):
            text = (
                f"checkpoint {checkpoint} is completed without generation {history.generation}'s answer of the {name}"
            )
            return Violation(Invariant.EVERYBODY, text)
    if not history.settled:
        text = f"checkpoint {checkpoint} is completed, {history.last} is not settled"
        return Violation(Invariant.IN_ORDER, text)
    at, data = position(fact.snapshots[SOURCE]), bool(fact.snapshots[SINK].committables)
    if at != history.end + (data or history.last == 0):
        text = f"checkpoint {checkpoint} ends at {at}, records through {history.end} are in completed checkpoints"
        return Violation(Invariant.TILES, text)
    if fact.settled is data:
        return Violation(Invariant.SETTLED, f"checkpoint {checkpoint} counts as settled when it completes: {not data}")
    return None


def _complete(history: History, fact: facts.CheckpointCompleted, demand: Demand) -> tuple[History, Demand]:
    data = bool(fact.snapshots[SINK].committables)
    if data:
        demand = demand._replace(open=(fact.checkpoint, history.generation, history.end, 0))
    history = history._replace(
        undecided=0,
        completed=history.completed | 1 << fact.checkpoint,
        last=fact.checkpoint,
        end=position(fact.snapshots[SOURCE]),
        settled=not data,
        handle=(history.generation, 0),
        lost=False,
    )
    return history, demand


def see_answer(history: History, checkpoint: int, answer: Answer) -> Violation | None:
    """Check an answer; ``history`` is what is durable when it is given."""
    match answer.decision:
        case Decision.COMPLETED:
            if not history.completed >> checkpoint & 1:
                return Violation(Invariant.ONE_DECISION, f"checkpoint {checkpoint} is called completed and is not")
        case Decision.ABORTED:
            if history.completed >> checkpoint & 1:
                return Violation(Invariant.NEVER_CHANGES, f"checkpoint {checkpoint} is completed, and called aborted")
            if checkpoint == history.undecided or checkpoint > history.burnt:
                return Violation(Invariant.ONE_DECISION, f"checkpoint {checkpoint} is undecided, and called aborted")
        case None:
            pass
    if answer.grant is not None:
        return _restores(history, answer.grant.generation, answer.grant.completed)
    return None


def _restores(history: History, generation: Generation, completed: CompletedCheckpoint | None) -> Violation | None:
    if generation != history.generation:
        return Violation(Invariant.STALE, f"generation {generation} is granted, {history.generation} is stored")
    last, end, settled = 0, -1, True
    if completed is not None:
        last, end, settled = completed.id, position(completed.snapshots.get(SOURCE)), completed.settled
    if (last, end, settled) != (history.last, history.end, history.settled):
        text = (
            f"a generation starts from checkpoint {last} at {end} (settled: {settled}), the last completed one is "
            f"{history.last} at {history.end} (settled: {history.settled})"
        )
        return Violation(Invariant.RESTORED, text)
    return None


def see_state(history: History, wanted: Sequence[Instruction]) -> Violation | None:
    """Check that drivers are instructed only about what is durable."""
    for instruction in wanted:
        match instruction:
            case Trigger(checkpoint=checkpoint, base=base):
                if checkpoint != history.undecided or base != history.last:
                    text = f"{checkpoint} on {base} is wanted, {history.undecided} on {history.last} is undecided"
                    return Violation(Invariant.ONE_DECISION, text)
            case Complete(checkpoint=checkpoint):
                if not history.completed >> checkpoint & 1:
                    text = f"the commit of checkpoint {checkpoint} is wanted before it is durably completed"
                    return Violation(Invariant.ONE_DECISION, text)
            case Abort(checkpoint=checkpoint):
                if history.completed >> checkpoint & 1:
                    text = f"checkpoint {checkpoint} is completed, and its abort is wanted"
                    return Violation(Invariant.NEVER_CHANGES, text)
                if checkpoint == history.undecided or checkpoint > history.burnt:
                    text = f"the abort of checkpoint {checkpoint} is wanted before it is durable"
                    return Violation(Invariant.ONE_DECISION, text)
            case _:
                pass
    return None
