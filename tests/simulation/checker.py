"""The checker of the simulation: checks the promise on everything that becomes durable or visible, at that moment.

Each sink of the job has a checker. What concerns the whole job, they share.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from onceward.protocol import facts
from onceward.protocol.answers import Answer, Verdict
from onceward.protocol.durable import Durable
from onceward.protocol.events import CloseJob, CloseReason, Event, PermitTakeover, StreamLost
from onceward.protocol.status import JobStatus
from onceward.protocol.values import Committable, Outcome, Settlement
from tests.simulation.source import InputTopic, all_ranges, positions_of
from tests.simulation.systems import Handle, Key, Truth
from tests.support import oracle
from tests.support.oracle import History

__all__ = ["Checker", "Invariant", "Shared", "Violation"]

_ENDS = (CloseReason.FINISHED, CloseReason.STOPPED, CloseReason.CANCELLED)


class Invariant(StrEnum):
    """What must hold. The names are those of the faults page."""

    I1 = "I1 nothing lost"
    I2 = "I2 nothing twice"
    I3 = "I3 nothing undecided or aborted visible"
    I4 = "I4 order kept"
    I5 = "I5 one decision, durable before the first commit"
    I6 = "I6 completed only with every acknowledgement of the current generation"
    I7 = "I7 stale calls are refused"
    I8 = "I8 progress once the faults are gone"
    I9 = "I9 no transaction left open"
    I10 = "I10 restored positions are the last completed checkpoint's"
    I13 = "I13 a job's end is reported truthfully"
    WHOLE = "a checkpoint becomes visible in a table as a whole"
    LEAD = "only the coordinator that leads writes"
    ORPHANS = "no reader waits for a driver that is gone for ever"
    CODE = "the program does not fail by itself"


_NAMES: Mapping[StrEnum, Invariant] = {
    oracle.Invariant.ONE_DECISION: Invariant.I5,
    oracle.Invariant.NEVER_CHANGES: Invariant.I5,
    oracle.Invariant.STALE: Invariant.I7,
    oracle.Invariant.RESTORED: Invariant.I10,
    oracle.Invariant.IN_ORDER: Invariant.I4,
    oracle.Invariant.SETTLED: Invariant.I1,
    oracle.Invariant.TILES: Invariant.I2,
}
"""The oracle's names of what facts must not say."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    invariant: Invariant
    text: str


@dataclass(frozen=True, kw_only=True)
class _Completed:
    id: int
    ends: list[int]
    """Per input partition, exclusive."""


@dataclass(frozen=True, kw_only=True)
class CheckerCopy:
    """What facts said at one moment."""

    facts: History
    status: JobStatus
    history: Sequence[_Completed]
    unsettled: Mapping[str, Handle]
    committed: Mapping[Key, int]
    holders: frozenset[str]


class Shared:
    """What the checkers of a job's sinks know together."""

    def __init__(self, sinks: Sequence[str]) -> None:
        self.sinks = tuple(sinks)
        self.violation: Violation | None = None
        """The first one."""
        self.claimed: dict[str, int] = {}
        """By system: the checkpoint in the claim there."""
        self.holders: dict[str, str] = {}
        """By system: the holder of the claim there."""


class Checker:
    """Follows one sink of a job."""

    truth: Truth
    """Set by the system."""

    def __init__(
        self,
        topic: InputTopic,
        sink: str = "sink",
        system: str = "main",
        shared: Shared | None = None,
        *,
        outputs: int | None = None,
    ) -> None:
        """``outputs``: parts of the output that keep the order each for itself; by default, those of the topic."""
        self._topic = topic
        self._outputs = outputs or topic.outputs
        self.sink = sink
        self.system = system
        self._shared = shared or Shared([sink])
        self._shared.claimed.setdefault(system, 0)
        self._facts = History()
        self._history: list[_Completed] = []
        self._unsettled: dict[str, Handle] = {}
        """By id: the committables that are completed and not settled."""
        self._committed: dict[Key, int] = {}
        """Every transaction that may be committed -> its checkpoint."""
        self.torn: set[Key] = set()
        """Transactions with a part that a tool has aborted: they may only be aborted."""
        self._lost: CheckerCopy | None = None
        """What the store said that an older copy has replaced, until that copy completes a checkpoint."""
        self._known = 0
        """The last completed checkpoint in that copy when it was made."""
        self._holders: frozenset[str] = frozenset()
        """Those to whom the store has granted the job."""
        self.given_up: set[tuple[int, int]] = set()
        """Input partition and offset of records whose loss is recorded."""
        partitions, parts = range(len(topic.totals)), range(self._outputs)
        self._next = {(output, number): self._routed(output, number, 0) for output in parts for number in partitions}
        self._newest = dict.fromkeys(parts, 0)
        self.visible = 0
        self.completed = self.aborted = self.unchanged = self.settled = self.generations = 0
        self.halts: list[str] = []
        self.status = JobStatus.CREATED

    def fail(self, invariant: Invariant, text: str) -> None:
        if self._shared.violation is None:
            self._shared.violation = Violation(invariant=invariant, text=text)

    @property
    def violation(self) -> Violation | None:
        return self._shared.violation

    @property
    def claimed(self) -> int:
        """The checkpoint in the claim on the sink's system. A store that knows less is refused."""
        return self._shared.claimed[self.system]

    @claimed.setter
    def claimed(self, checkpoint: int) -> None:
        self._shared.claimed[self.system] = checkpoint

    def claim(self, checkpoint: int, holder: str) -> None:
        """A claim is written on the sink's system."""
        self.claimed = checkpoint
        self._shared.holders[self.system] = holder

    # -- a copy of the store

    def copy(self) -> CheckerCopy:
        return CheckerCopy(
            facts=self._facts,
            status=self.status,
            history=tuple(self._history),
            unsettled=dict(self._unsettled),
            committed=dict(self._committed),
            holders=self._holders,
        )

    def promoted(self, copy: CheckerCopy) -> None:
        """An older copy of the store takes its place, made when the checker was copied.

        Either a driver claims what the copy lacks: then it is right, and nothing that the copy completes may become
        visible. Or the copy completes a checkpoint: then nothing that it lacks may become visible any more.
        """
        self._lost, self._known = self.copy(), copy.facts.last
        self._facts, self.status, self._history = copy.facts, copy.status, list(copy.history)
        self._unsettled, self._committed = dict(copy.unsettled), dict(copy.committed)
        self._holders = copy.holders

    @property
    def _outdated(self) -> bool:
        """True when a driver has claimed a checkpoint, on any system, that the copy in place of the store does not
        know."""
        return self._lost is not None and max(self._shared.claimed.values()) > self._known

    @property
    def _claimed_by_another_store(self) -> bool:
        """True when the holder of a claim has the job from the store that an older copy has replaced, not from it."""
        return not set(self._shared.holders.values()) <= self._holders

    @property
    def _lost_committed(self) -> Set[Key]:
        """What the replaced store had completed: a driver acknowledges it again to the copy."""
        return self._lost.committed.keys() if self._lost is not None else frozenset()

    # -- what becomes durable

    def wrote(self, term: int, newest: int) -> None:
        """The coordinator of a term has written."""
        if term != newest:
            self.fail(Invariant.LEAD, f"a write of term {term} becomes durable in term {newest}")

    def fact(self, before: Durable, fact: facts.Fact, after: Durable) -> None:
        self.status = after.status
        self._facts, violation = self._facts.after(fact)
        if violation is not None:
            self.fail(_NAMES[violation.invariant], violation.text)
        match fact:
            case facts.GenerationGranted():
                self.generations += 1
                self._holders |= {fact.holder or fact.driver}
            case facts.CheckpointCompleted():
                self._complete(before, fact)
            case facts.CheckpointAborted():
                self.aborted += 1
            case facts.CheckpointUnchanged():
                self.unchanged += 1
            case facts.CheckpointSettled():
                self._settle(fact.checkpoint, by_coordinator=before.orphaned)
            case facts.JobHalted() | facts.LossRecorded() if fact.participant == self.sink:
                for one in fact.settlements:
                    if one.outcome is not Outcome.COMMITTED:
                        self._halt(one)
            case facts.JobHalted() if fact.settlements:
                self._halted_by_another(fact)
            case facts.CheckpointAmended() if fact.participant == self.sink:
                self._amend(fact)
            case facts.LossSkipped() if fact.participant == self.sink:
                self._give_up(fact)
            case facts.StatusChanged():
                self._move(before, fact)
            case _:
                pass

    @property
    def unsettled(self) -> frozenset[str]:
        """The ids of what is completed and not settled."""
        return frozenset(self._unsettled)

    @property
    def last_completed(self) -> int:
        return self._facts.last

    @property
    def last_ends(self) -> list[int]:
        return self._history[-1].ends if self._history else [0] * len(self._topic.totals)

    def _complete(self, before: Durable, fact: facts.CheckpointCompleted) -> None:
        self.completed += 1
        number = fact.checkpoint
        if self._outdated and self._claimed_by_another_store:
            return  # by a driver that stood still since before the claim: it may commit nothing of it
        if len(fact.snapshots) != 1 + len(self._shared.sinks):
            self.fail(Invariant.I6, f"checkpoint {number} completed with answers of {sorted(fact.snapshots)} only")
        starts, first = self.last_ends, not self._history
        source = next(snapshot for snapshot in fact.snapshots.values() if snapshot.positions is not None)
        assert source.positions is not None
        ends = positions_of(source.positions)
        written = next(snapshot for name, snapshot in fact.snapshots.items() if name == self.sink)
        handles = self._handles(written.committables)
        if self._outdated and not {handle.key for handle in handles} <= self._lost_committed:
            self.fail(Invariant.I2, f"an older copy of the store completes {number}, {self.claimed} is claimed")
        self._lost = None
        if written.records != sum(handle.records for handle in handles):
            self.fail(Invariant.I6, f"checkpoint {number} completed with {written.records} records of {self.sink}")
        ranges = {
            int(split["partition"]): (int(split["start"]), int(split["end"]))
            for handle in handles
            for split in all_ranges(handle.inputs)
        }
        for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
            covered = ranges.pop(partition, (start, start))
            if covered == (start, end) or (first and end == 0):
                continue
            if covered == (start, start) and all(self._topic.silent(partition, at) for at in range(start, end)):
                continue  # nothing to write
            if covered[0] > start or covered[1] < end:
                name = Invariant.I1
            else:
                name = Invariant.I2
            what = f"input {partition} [{start}, {end}) is written as [{covered[0]}, {covered[1]})"
            self.fail(name, f"checkpoint {number}: {what}")
        generations = {handle.generation for handle in handles}
        if generations - {before.generation}:
            self.fail(Invariant.I6, f"checkpoint {number} completed with transactions of generations {generations}")
        self._history.append(_Completed(id=number, ends=ends))
        self._expect(number, handles)

    def _amend(self, fact: facts.CheckpointAmended) -> None:
        """Lost slots were written again: the new transactions count, the old ones are gone."""
        for identifier in [name for name, handle in self._unsettled.items() if handle.slot in fact.slots]:
            handle = self._unsettled.pop(identifier)
            if self.truth.committed(handle) or not self.truth.ended(handle):
                self.fail(Invariant.I2, f"{identifier} is written again, and was not lost")
        self._expect(fact.checkpoint, self._handles(fact.committables))

    def _halted_by_another(self, fact: facts.JobHalted) -> None:
        """What another sink reports halts the job: only then does this one's output wait for a person if it must,
        too."""
        for identifier, handle in self._unsettled.items():
            if not self.truth.committed(handle) and not self.truth.ended(handle):
                self.fail(Invariant.I9, f"{identifier} stays open: {fact.participant} halts the job before it ends")

    def _give_up(self, fact: facts.LossSkipped) -> None:
        """The sink's policy skips the loss: these records must never become visible, and are no longer expected."""
        for one in fact.settlements:
            self._halt(one)
            (identifier,) = [name for name, handle in self._unsettled.items() if handle.slot == one.slot]
            handle = self._unsettled.pop(identifier)
            if self.truth.committed(handle) or not self.truth.ended(handle):
                self.fail(Invariant.I1, f"{identifier} is given up, and was not lost")
            for split in all_ranges(handle.inputs):
                partition = int(split["partition"])
                self.given_up |= {(partition, offset) for offset in range(int(split["start"]), int(split["end"]))}
        self._next = {(output, number): self._routed(output, number, at) for (output, number), at in self._next.items()}

    def overtaken(self, identifier: str) -> None:
        """A transaction is open before lost records are written again. It must belong to a completed checkpoint."""
        if identifier not in self._unsettled:
            self.fail(Invariant.I4, f"{identifier} is open when records before it are written again")

    def _handles(self, committables: Iterable[Committable]) -> list[Handle]:
        return [self.truth.handle(one) for one in committables]

    def _expect(self, checkpoint: int, handles: Iterable[Handle]) -> None:
        """From now on these transactions may be committed, and must not be aborted."""
        for handle in handles:
            if handle.key in self._committed:
                self.fail(Invariant.I2, f"{handle.id} serves {self._committed[handle.key]} and {checkpoint}")
            self._committed[handle.key] = checkpoint
            self._unsettled[handle.id] = handle

    def _move(self, before: Durable, fact: facts.StatusChanged) -> None:
        if fact.status not in (JobStatus.FINISHED, JobStatus.CANCELLED):
            return
        if self._unsettled:
            self.fail(Invariant.I13, f"{fact.status.value}, and {sorted(self._unsettled)} are not settled")
        if before.ending is None and self.last_ends != list(self._topic.totals):
            self.fail(Invariant.I13, f"finished at {self.last_ends} of {self._topic.totals}")

    def _settle(self, checkpoint: int, *, by_coordinator: bool) -> None:
        self.settled += 1
        if by_coordinator:  # this may be the end of the job
            for identifier in self._unsettled.keys() & set(self.truth.not_shown()):
                self.fail(Invariant.I13, f"{checkpoint} is settled, and a commit of {identifier} does not show")
        for identifier, handle in self._unsettled.items():
            if not self.truth.committed(handle):
                self.fail(Invariant.I1, f"checkpoint {checkpoint} is called settled, {identifier} is not committed")
        self._unsettled.clear()

    def _halt(self, settlement: Settlement) -> None:
        """A reported loss must be true, and not caused by our own requests."""
        handle = next(handle for handle in self._unsettled.values() if handle.slot == settlement.slot)
        if settlement.outcome is not Outcome.LOST:
            self.halts.append(settlement.outcome.value)
        elif self.truth.committed(handle) or not self.truth.ended(handle):
            self.fail(Invariant.I13, f"{handle.id} is called lost: {settlement.evidence}")
        else:
            why = self.truth.why_lost(handle)
            self.halts.append(f"lost by {why}")
            if why is None:
                self.fail(Invariant.I1, f"{handle.id} is lost without a reason: {settlement.evidence}")

    def answered(self, generation: int, event: Event, answer: Answer) -> None:
        """The coordinator answered ``event`` while ``generation`` was the current one."""
        if isinstance(event, StreamLost):
            return  # not a call, so nothing to refuse
        if isinstance(event, CloseJob) and answer.verdict is Verdict.ACCEPTED and event.reason in _ENDS:
            for identifier in self.truth.not_shown():
                self.fail(
                    Invariant.I13, f"the job has {event.reason.value}, and a commit of {identifier} does not show"
                )
        of = getattr(event, "generation", generation)
        refused = Verdict.TOO_LATE if isinstance(event, PermitTakeover) else Verdict.FENCED
        if of != generation and answer.verdict is not refused:
            what = f"{type(event).__name__} of generation {of}, now {generation}"
            self.fail(Invariant.I7, f"{what}, is answered {answer.verdict.value}")

    # -- what reaches the system

    def ends(self, transaction: Key, *, commit: bool) -> None:
        """A process asks the system to end a transaction."""
        identifier, *instance = transaction
        number = self._committed.get(transaction)
        known = number is not None
        if number is None and self._lost is not None:
            number = self._lost.committed.get(transaction)
        if number is None:
            if commit:
                what = f"{identifier} {instance} is committed"
                self.fail(Invariant.I5, f"{what}, and no durable decision says so")
        elif commit and number > self.claimed:
            text = f"{identifier} of checkpoint {number} is committed, claimed is {self.claimed}"
            self.fail(Invariant.I2, f"{text}: an old copy of the store would write it again")
        elif not commit and (known or self._outdated) and transaction not in self.torn:
            self.fail(Invariant.I1, f"{identifier} of completed checkpoint {number} is aborted")

    def fences(self, identifier: str, how: str = "fenced") -> bool:
        """A process asks the system to fence an id, or to delete a part of it: its transaction is over. Returns True if
        that is lost to the holder of a claim of the store that an older copy has replaced: the copy cannot know of it,
        and a person must decide about that claim."""
        handle = self._unsettled.get(identifier)
        if handle is None or self.truth.ended(handle):
            return False
        if self._claimed_by_another_store:
            return True
        self.fail(Invariant.I1, f"{identifier} of completed checkpoint {handle.checkpoint} is {how}")
        return False

    def left_open(self, identifier: str, what: str) -> None:
        """Called for a transaction that outlives a step that ends all others: it must belong to a completed
        checkpoint."""
        if identifier not in self._unsettled:
            self.fail(Invariant.I9, f"{identifier} stays open after {what}")

    # -- what becomes visible

    def version(self, values: Iterable[bytes]) -> None:
        """A reader of a table sees these records more than in the version before: those of whole checkpoints."""
        for value in sorted(values, key=lambda value: list(map(int, value.split(b"-")))):
            self.record(0, value)
        newest = next((entry for entry in self._visible_history if entry.id == self._newest[0]), None)
        for partition, end in enumerate(newest.ends if newest else ()):
            if self._next[0, partition] < self._routed(0, partition, end):
                what = f"{partition}-{self._next[0, partition]} of checkpoint {self._newest[0]} is not visible"
                self.fail(Invariant.WHOLE, f"record {what}, and others of it are")

    def record(self, output: int, value: bytes) -> None:
        """A ``read_committed`` reader of an output partition gets its next record."""
        self.visible += 1
        partition, offset = map(int, value.split(b"-"))
        expected = self._next[output, partition]
        if offset < expected:
            self.fail(Invariant.I2, f"record {partition}-{offset} is visible twice in output {output}")
        elif offset > expected:
            self.fail(
                Invariant.I4, f"record {partition}-{offset} is visible in output {output} before {partition}-{expected}"
            )
        self._next[output, partition] = self._routed(output, partition, offset + 1)
        history = self._visible_history
        if offset >= (history[-1].ends[partition] if history else 0):
            self.fail(Invariant.I3, f"record {partition}-{offset} is visible, and no completed checkpoint has it")
            return
        checkpoint = history[bisect_right([entry.ends[partition] for entry in history], offset)].id
        if checkpoint < self._newest[output]:
            newest = self._newest[output]
            self.fail(Invariant.I4, f"output {output} shows checkpoint {checkpoint} after checkpoint {newest}")
        self._newest[output] = checkpoint

    @property
    def _visible_history(self) -> Sequence[_Completed]:
        return self._lost.history if self._lost is not None and self._outdated else self._history

    def _routed(self, output: int, partition: int, offset: int) -> int:
        """The first record of an input partition, from ``offset`` on, that goes to ``output`` and is not given up."""
        while (
            self._topic.route(partition, offset) % self._outputs != output
            or self._topic.silent(partition, offset)
            or (partition, offset) in self.given_up
        ):
            offset += 1
        return offset

    # -- what a driver restores

    def restored(self, positions: list[int], generation_alive: bool) -> None:
        """A driver resumes from ``positions``. A driver that was replaced meanwhile may be behind."""
        if generation_alive and positions != self.last_ends:
            self.fail(Invariant.I10, f"restored {positions}, the last completed checkpoint says {self.last_ends}")

    # -- at the end

    def end(self, finished: bool, open_transactions: Mapping[str, str]) -> None:
        """The final check, after the faults have stopped and everything had time to finish."""
        if finished:
            for (output, partition), offset in self._next.items():
                if offset < self._topic.totals[partition]:
                    self.fail(Invariant.I1, f"record {partition}-{offset} never became visible in output {output}")
        if open_transactions:
            self.fail(Invariant.I9, ", ".join(f"{name}: {what}" for name, what in sorted(open_transactions.items())))
