"""The explorer's part of the oracle: positions and transactions, answers and instructions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from onceward.protocol import facts
from onceward.protocol.answers import Abort, Answer, Complete, Decision, Instruction, Trigger
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    CompletedCheckpoint,
    Generation,
    Outcome,
    ParticipantName,
    Snapshot,
)
from tests.explorer.world import SINKS, Claim, Transaction, bit_of
from tests.support.oracle import History, Invariant, Violation

__all__ = ["Demand", "Fork", "Output", "see", "see_answer", "see_state", "stamp"]

SOURCE = ParticipantName("source")


class Fork(NamedTuple):
    """What was known when an older copy of the store took the store's place."""

    generation: int
    """The newest generation in the copy."""
    common: int
    """Bits of the completed transactions in the copy."""
    lost: int
    """The same in the store that it has replaced."""


@dataclass(frozen=True, kw_only=True)
class Output(History):
    """What the facts say about one source partition and one sink slot as well."""

    completed: int = 0
    """Bits of checkpoints."""
    end: int = -1
    """The position of the last completed checkpoint: all records before it are in completed checkpoints."""
    handle: tuple[int, int, int] = (0, 0, 0)
    """Generation, amendment and driver of the last one's transaction."""
    other: tuple[int, int, int] = (0, 0, 0)
    """The same of the second sink."""
    sinks: int = 1
    decided: int = 0
    """Bits of the completed transactions."""
    named: bool = False
    """Whether drivers are distinguished by their tokens: two copies of a store grant the same generation."""
    holder: int = 0
    """The token of the newest generation's driver; 0 if drivers are not distinguished."""
    fork: Fork | None = None
    """Set when this is a promoted copy of the store."""

    granted: frozenset[tuple[int, int]] = frozenset()
    """Generations and drivers since the copy was promoted."""

    def handle_of(self, sink: int) -> tuple[int, int, int]:
        return self.other if sink else self.handle

    @property
    def amendment(self) -> int:
        """That of the last completed checkpoint."""
        return max(self.handle[1], self.other[1])

    def knows(self, claim: Claim) -> bool:
        """False when the claim was written for a store that this copy has replaced, and that knew more."""
        if self.fork is None:
            return True
        granted = claim.generation <= self.fork.generation or claim[:2] in self.granted
        return granted and claim.completed <= self.last

    @property
    def only_here(self) -> int:
        """Bits of transactions that this copy of the store has decided since it was promoted, and the other has
        not."""
        return self.decided & ~self.fork.common & ~self.fork.lost if self.fork is not None else 0

    @property
    def only_lost(self) -> int:
        """Bits of transactions that only the store has decided that the copy has replaced."""
        return self.fork.lost & ~self.decided if self.fork is not None else 0


class Demand(NamedTuple):
    """What must hold at Kafka when a fact becomes durable."""

    committed: tuple[int, ...] = ()
    """The bits of transactions that are committed."""
    open: tuple[Transaction, ...] = ()
    """Transactions that can still be committed, unless the brokers have lost them."""
    lost: Transaction | None = None
    """The transaction that the brokers have lost."""
    ended: tuple[int, int] | None = None
    """The driver whose last call ends the job, and the number of records that are visible then."""


def stamp(generation: int, checkpoint: int) -> int:
    """Mark a snapshot with its generation and checkpoint; drivers put it into ``records``."""
    return 1000 * generation + checkpoint


def position(snapshot: Snapshot | None) -> int:
    """The position that a driver of this model wrote into its snapshot."""
    assert snapshot is not None
    assert snapshot.positions is not None
    return int(snapshot.positions.body["text"].removeprefix("position "))


def see(output: Output, written: Sequence[facts.Fact]) -> tuple[Output, Demand, Violation | None]:
    """The output after these facts, with the first violation in them."""
    demand = Demand()
    for fact in written:
        former = output
        output, wrong = former.after(fact)
        match fact:
            case facts.GenerationGranted(driver=driver, holder=holder) if output.named:
                output = replace(output, holder=int((holder or driver).removeprefix("d")))
                if output.fork is not None:
                    output = replace(output, granted=output.granted | {(output.generation, output.holder)})
            case facts.CheckpointCompleted(checkpoint=checkpoint):
                wrong = wrong or _completed(former, fact)
                if wrong is not None:
                    return output, demand, wrong
                ones = tuple(
                    Transaction(checkpoint, former.generation, former.end, 0, former.holder, sink)
                    for sink in range(former.sinks)
                )
                with_data = (one for one in ones if fact.snapshots[ParticipantName(SINKS[one.sink])].committables)
                demand = demand._replace(open=tuple(with_data))
                handle = (former.generation, 0, former.holder)
                output = replace(
                    output,
                    completed=former.completed | 1 << checkpoint,
                    end=position(fact.snapshots[SOURCE]),
                    handle=handle,
                    other=handle if former.sinks > 1 else former.other,
                    decided=former.decided | sum(1 << one.bit for one in ones),
                )
            case facts.CheckpointSettled(checkpoint=checkpoint):
                bits = tuple(bit_of(checkpoint, former.handle_of(sink)[2], sink) for sink in range(former.sinks))
                demand = demand._replace(committed=bits)
            case facts.LossRecorded(checkpoint=checkpoint, participant=who):
                sink = SINKS.index(who)
                generation, amendment, token = former.handle_of(sink)
                lost = Transaction(checkpoint, generation, former.end - 1, amendment, token, sink)
                demand = demand._replace(lost=lost)
            case facts.CheckpointAmended(checkpoint=checkpoint, participant=who):
                sink = SINKS.index(who)
                handle = (former.generation, fact.amendment, former.holder)
                again = Transaction(checkpoint, handle[0], former.end - 1, handle[1], former.holder, sink)
                demand = demand._replace(open=(again,))
                output = replace(output, decided=output.decided | 1 << again.bit)
                output = replace(output, other=handle) if sink else replace(output, handle=handle)
            case facts.StatusChanged(status=JobStatus.FINISHED | JobStatus.CANCELLED):
                demand = demand._replace(ended=(output.holder, max(output.end, 0)))
            case facts.JobHalted():
                if any(one.outcome is not Outcome.IN_DOUBT for one in fact.settlements):
                    wrong = Violation(Invariant.CONTRACT, f"the job is halted: {fact.reason}")
            case _:
                pass
        if wrong is not None:
            return output, demand, wrong
    return output, demand, None


def _completed(output: Output, fact: facts.CheckpointCompleted) -> Violation | None:
    checkpoint = fact.checkpoint
    sinks = [ParticipantName(name) for name in SINKS[: output.sinks]]
    for name in (SOURCE, *sinks):
        snapshot = fact.snapshots.get(name)
        if snapshot is None or snapshot.records != stamp(output.generation, checkpoint):
            text = f"checkpoint {checkpoint} is completed without generation {output.generation}'s answer of the {name}"
            return Violation(Invariant.EVERYBODY, text)
    at, data = position(fact.snapshots[SOURCE]), any(fact.snapshots[name].committables for name in sinks)
    if at != output.end + (data or output.last == 0):
        text = f"checkpoint {checkpoint} ends at {at}, records through {output.end} are in completed checkpoints"
        return Violation(Invariant.TILES, text)
    return None


def see_answer(output: Output, checkpoint: int, answer: Answer) -> Violation | None:
    """Check an answer; ``output`` is what is durable when it is given."""
    match answer.decision:
        case Decision.COMPLETED:
            if not output.completed >> checkpoint & 1:
                return Violation(Invariant.ONE_DECISION, f"checkpoint {checkpoint} is called completed and is not")
        case Decision.ABORTED:
            if output.completed >> checkpoint & 1:
                return Violation(Invariant.NEVER_CHANGES, f"checkpoint {checkpoint} is completed, and called aborted")
            if checkpoint == output.undecided or checkpoint > output.burnt:
                return Violation(Invariant.ONE_DECISION, f"checkpoint {checkpoint} is undecided, and called aborted")
        case None:
            pass
    if answer.grant is not None:
        return _restores(output, answer.grant.generation, answer.grant.completed)
    return None


def _restores(output: Output, generation: Generation, completed: CompletedCheckpoint | None) -> Violation | None:
    if generation != output.generation:
        return Violation(Invariant.STALE, f"generation {generation} is granted, {output.generation} is stored")
    last, end, settled = 0, -1, True
    if completed is not None:
        last, end, settled = completed.id, position(completed.snapshots.get(SOURCE)), completed.settled
    if (last, end, settled) != (output.last, output.end, output.settled):
        text = (
            f"a generation starts from checkpoint {last} at {end} (settled: {settled}), the last completed one is "
            f"{output.last} at {output.end} (settled: {output.settled})"
        )
        return Violation(Invariant.RESTORED, text)
    return None


def see_state(output: Output, wanted: Sequence[Instruction]) -> Violation | None:
    """Check that drivers are instructed only about what is durable."""
    for instruction in wanted:
        match instruction:
            case Trigger(checkpoint=checkpoint, base=base):
                if checkpoint != output.undecided or base != output.last:
                    text = f"{checkpoint} on {base} is wanted, {output.undecided} on {output.last} is undecided"
                    return Violation(Invariant.ONE_DECISION, text)
            case Complete(checkpoint=checkpoint):
                if not output.completed >> checkpoint & 1:
                    text = f"the commit of checkpoint {checkpoint} is wanted before it is durably completed"
                    return Violation(Invariant.ONE_DECISION, text)
            case Abort(checkpoint=checkpoint):
                if output.completed >> checkpoint & 1:
                    text = f"checkpoint {checkpoint} is completed, and its abort is wanted"
                    return Violation(Invariant.NEVER_CHANGES, text)
                if checkpoint == output.undecided or checkpoint > output.burnt:
                    text = f"the abort of checkpoint {checkpoint} is wanted before it is durable"
                    return Violation(Invariant.ONE_DECISION, text)
            case _:
                pass
    return None
