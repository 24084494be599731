"""An oracle that follows a life of the core from outside: calls, facts, and what must never happen.

The explorer does this for small worlds of drivers that keep the contract. Here drivers send any calls, sinks have
several slots, slots are lost and written again, and operators make requests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from onceward.coordinator.protocol.answers import Abort, Answer, Complete, Ready, Trigger, Verdict
from onceward.coordinator.protocol.core import wanted
from onceward.coordinator.protocol.durable import Durable
from onceward.coordinator.protocol.events import (
    Acknowledge,
    Amend,
    CancelJob,
    CloseJob,
    Event,
    OpenJob,
    Settle,
    StopJob,
    StreamLost,
)
from onceward.coordinator.protocol.evolve import evolve
from onceward.coordinator.protocol.facts import (
    CheckpointAborted,
    CheckpointAmended,
    CheckpointCompleted,
    CheckpointRestored,
    CheckpointSettled,
    CheckpointTriggered,
    CheckpointUnchanged,
    EndingRequested,
    Fact,
    GenerationEnded,
    GenerationGranted,
    JobHalted,
    LossRecorded,
    RequestEnded,
    RestoreRequested,
    StatusChanged,
)
from onceward.coordinator.protocol.requests import RequestState
from onceward.coordinator.protocol.state import JobState
from onceward.coordinator.protocol.status import JobStatus
from onceward.coordinator.protocol.values import CheckpointKind, Outcome, ParticipantName, Snapshot
from tests.explorer.invariants import Invariant

__all__ = ["OperatorInvariant", "Oracle", "Violation"]


class OperatorInvariant(StrEnum):
    """What operators may rely on, besides the invariants of data."""

    REQUESTS = "a request ends once, and is reported completed only when it durably is"
    ENDING = "I13: a job's end tells the truth"
    CLAIMED = "a job that belongs to another or a newer store is not opened"


class Violation(NamedTuple):
    invariant: StrEnum
    text: str


@dataclass(kw_only=True)
class _Running:
    """The undecided checkpoint."""

    id: int
    base: int
    request: str | None
    answers: dict[ParticipantName, Snapshot] = field(default_factory=dict)


class Oracle:
    """Follows one life. Each call returns the first violation."""

    def __init__(self) -> None:
        self._generation = 0
        self._driven = False
        self._burnt = 0
        self._running: _Running | None = None
        self._completed = 0
        self._snapshots: dict[ParticipantName, Snapshot] = {}
        self._settled = True
        self._amendment = 0
        self._proved: set[tuple[str, int]] = set()
        """Sink and slot whose current committable is reported committed."""
        self._lost: set[tuple[str, int]] = set()
        """Sink and slot that wait to be written again."""
        self._gone = False
        """Whether something is lost without a replay."""
        self._ordered: dict[ParticipantName, object] = {}
        """Positions that an operator ordered the job to start from."""
        self._found: Violation | None = None

    def restarted(self, state: JobState) -> Violation | None:
        """The coordinator restarted: it knows what is durable, and the answers must be given again."""
        self._found = None
        if self._running is not None:
            self._running.answers = {}
        self._agrees(state)
        return self._found

    def stepped(self, before: JobState, event: Event, ready: Ready, after: JobState) -> Violation | None:
        self._found = None
        self._answered(event, ready.answer)
        for fact in ready.facts:
            self._see(fact, event, ready.facts)
        if _evolved(before.durable, ready.facts) != after.durable:
            self._fail(Invariant.REMEMBERED, "the durable part changed by something else than facts")
        if ready.answer.grant is not None:
            self._granted(ready.answer)
        self._agrees(after)
        return self._found

    def _fail(self, invariant: StrEnum, text: str) -> None:
        if self._found is None:
            self._found = Violation(invariant, text)

    # -- calls

    def _answered(self, event: Event, answer: Answer) -> None:
        accepted = answer.verdict is Verdict.ACCEPTED
        generation = getattr(event, "generation", None)
        if generation is not None and not isinstance(event, StreamLost):
            closed = isinstance(event, CloseJob) and generation == self._generation and not self._driven
            stale = generation != self._generation or not self._driven
            if stale and not closed and answer.verdict is not Verdict.FENCED:
                text = f"{type(event).__name__} of generation {generation} is {answer.verdict}, now {self._generation}"
                self._fail(Invariant.STALE, text)
        match event:
            case OpenJob() if accepted:
                self._opened(event)
            case Acknowledge() if accepted:
                self._acknowledged(event)
            case Settle(participant=sink, settlements=settlements) if accepted:
                if event.amendment != self._amendment or event.checkpoint != self._completed:
                    text = f"outcomes of {event.checkpoint} (amendment {event.amendment}) count for {self._completed}"
                    self._fail(Invariant.SETTLED, text)
                proved = {(str(sink), one.slot) for one in settlements if one.outcome is Outcome.COMMITTED}
                self._proved |= proved - self._lost
            case Amend(participant=sink, slots=slots) if accepted:
                if not {(str(sink), slot) for slot in slots} <= self._lost:
                    self._fail(Invariant.TILES, f"slots {sorted(slots)} of {sink} are written again and not lost")
            case _:
                pass

    def _opened(self, event: OpenJob) -> None:
        if self._gone:
            self._fail(Invariant.TILES, "a job goes on although records of it are lost")
        claim = event.claim
        if claim is None or event.adopt:
            return
        # The output's view: it already holds everything through the claimed checkpoint of the claiming store.
        base = self._completed if claim.store_id == "this" else 0
        if base < claim.completed:
            self._fail(OperatorInvariant.CLAIMED, f"all between {base} and {claim.completed} is written twice")
        if claim.store_id != "this" or claim.generation > self._generation:
            self._fail(OperatorInvariant.CLAIMED, f"this store and {claim.store_id} both write")

    def _acknowledged(self, event: Acknowledge) -> None:
        running = self._running
        if running is None or event.checkpoint != running.id:
            text = f"an answer to checkpoint {event.checkpoint} counts for {running and running.id}"
            self._fail(Invariant.EVERYBODY, text)
            return
        if event.base != running.base:
            self._fail(Invariant.TILES, f"an answer on base {event.base} counts for a checkpoint on {running.base}")
        if event.participant in running.answers:
            self._fail(Invariant.NEVER_CHANGES, f"{event.participant} has answered, and answers again")
        running.answers[event.participant] = event.snapshot

    # -- facts

    def _see(self, fact: Fact, event: Event, together: Iterable[Fact]) -> None:
        match fact:
            case GenerationGranted():
                if fact.generation <= self._generation:
                    self._fail(Invariant.STALE, f"generation {fact.generation} granted after {self._generation}")
                if self._running is not None:
                    self._fail(Invariant.ONE_DECISION, f"{self._running.id} is undecided under a new generation")
                self._generation, self._driven = fact.generation, True
                self._burnt = max(self._burnt, fact.first_id)
            case GenerationEnded():
                self._driven = False
            case CheckpointTriggered():
                self._triggered(fact)
            case CheckpointCompleted():
                self._complete(fact)
            case CheckpointUnchanged():
                running = self._decide(fact.checkpoint)
                if (
                    running is None
                    or not _everybody(running)
                    or not all(one.unchanged for one in running.answers.values())
                ):
                    self._fail(Invariant.TILES, f"checkpoint {fact.checkpoint} is forgotten, and something was new")
            case CheckpointAborted():
                self._decide(fact.checkpoint)
            case CheckpointSettled():
                self._settle(fact)
            case CheckpointRestored():
                if not self._settled:
                    self._fail(Invariant.SETTLED, f"checkpoint {self._completed} is left behind unsettled")
                if _positions(fact.snapshots) != self._ordered:
                    self._fail(
                        Invariant.RESTORED, f"checkpoint {fact.checkpoint} has other positions than were ordered"
                    )
                self._burnt = self._completed = fact.checkpoint
                self._snapshots, self._amendment = dict(fact.snapshots), 0
            case RestoreRequested():
                self._ordered = _positions(fact.source.snapshots)
            case LossRecorded():
                if self._running is not None:
                    self._fail(Invariant.IN_ORDER, f"{self._running.id} runs while lost records are written again")
                self._lost |= {(str(fact.participant), one.slot) for one in fact.settlements}
            case CheckpointAmended():
                again = {(str(fact.participant), slot) for slot in fact.slots}
                self._lost -= again
                self._proved -= again
                self._amendment = fact.amendment
                self._snapshots = dict(self._snapshots)
                kept = [one for one in self._snapshots[fact.participant].committables if one.slot not in fact.slots]
                self._snapshots[fact.participant] = Snapshot(committables=(*kept, *fact.committables))
            case JobHalted():
                self._gone |= any(one.outcome is Outcome.LOST for one in fact.settlements)
            case _:
                self._see_request(fact, event, together)

    def _see_request(self, fact: Fact, event: Event, together: Iterable[Fact]) -> None:
        match fact:
            case RequestEnded(request=request) if request.state is RequestState.COMPLETED:
                if request.kind is CheckpointKind.SAVEPOINT and not any(
                    isinstance(one, CheckpointCompleted) and one.checkpoint == request.checkpoint for one in together
                ):
                    self._fail(
                        OperatorInvariant.REQUESTS, f"savepoint {request.checkpoint} is reported completed and is not"
                    )
            case EndingRequested() if not isinstance(event, StopJob | CancelJob):
                if not any(
                    isinstance(one, RequestEnded) and one.request.stop and one.request.state is RequestState.COMPLETED
                    for one in together
                ):
                    self._fail(OperatorInvariant.REQUESTS, "the job ends although its last savepoint failed")
            case StatusChanged(status=JobStatus.FINISHED | JobStatus.CANCELLED) if not self._settled:
                self._fail(OperatorInvariant.ENDING, f"the job is {fact.status} while {self._completed} is not settled")
            case _:
                pass

    def _triggered(self, fact: CheckpointTriggered) -> None:
        number = fact.checkpoint
        if self._running is not None:
            self._fail(Invariant.ONE_DECISION, f"{number} is triggered while {self._running.id} is undecided")
        if number <= self._burnt:
            self._fail(Invariant.ONE_DECISION, f"id {number} is taken again after {self._burnt}")
        if fact.base != self._completed:
            self._fail(Invariant.RESTORED, f"checkpoint {number} builds on {fact.base}, not on {self._completed}")
        if self._lost:
            self._fail(Invariant.IN_ORDER, f"checkpoint {number} is triggered before lost records are written again")
        self._burnt = number
        self._running = _Running(id=number, base=fact.base, request=fact.request)

    def _decide(self, checkpoint: int) -> _Running | None:
        running, self._running = self._running, None
        if running is None or running.id != checkpoint:
            self._fail(Invariant.NEVER_CHANGES, f"checkpoint {checkpoint} is decided and was not undecided")
            return None
        return running

    def _complete(self, fact: CheckpointCompleted) -> None:
        number = fact.checkpoint
        running = self._decide(number)
        if not self._settled:
            self._fail(Invariant.IN_ORDER, f"checkpoint {number} is completed before {self._completed} is settled")
        if running is not None and (not _everybody(running) or dict(fact.snapshots) != running.answers):
            self._fail(Invariant.EVERYBODY, f"checkpoint {number} is completed with something else than all answers")
        if fact.settled and any(snapshot.committables for snapshot in fact.snapshots.values()):
            self._fail(Invariant.SETTLED, f"checkpoint {number} counts as settled when it completes")
        self._completed, self._snapshots, self._settled = number, dict(fact.snapshots), fact.settled
        self._amendment, self._proved, self._lost = 0, set(), set()

    def _settle(self, fact: CheckpointSettled) -> None:
        if fact.checkpoint != self._completed or self._settled:
            self._fail(Invariant.NEVER_CHANGES, f"checkpoint {fact.checkpoint} is settled out of turn")
        left = {
            (str(name), one.slot) for name, snapshot in self._snapshots.items() for one in snapshot.committables
        } - self._proved
        if left or self._lost:
            self._fail(Invariant.SETTLED, f"checkpoint {fact.checkpoint} is called settled without {sorted(left)}")
        self._settled = True

    # -- answers and instructions

    def _granted(self, answer: Answer) -> None:
        grant = answer.grant
        assert grant is not None
        if grant.generation != self._generation:
            self._fail(Invariant.STALE, f"generation {grant.generation} is granted, {self._generation} is stored")
        completed = grant.completed
        number, settled = (completed.id, completed.settled) if completed is not None else (0, True)
        snapshots = completed.snapshots if completed is not None else {}
        if (number, settled) != (self._completed, self._settled) or _documents(snapshots) != _documents(
            self._snapshots
        ):
            self._fail(Invariant.RESTORED, f"a generation begins with {number}, {self._completed} is the newest")

    def _agrees(self, state: JobState) -> None:
        """Check that memory and the instructions to the driver match what was decided."""
        durable, running = state.durable, self._running
        if (durable.base, durable.settled, durable.generation) != (self._completed, self._settled, self._generation):
            self._fail(Invariant.REMEMBERED, f"{durable.base} is the newest in memory, {self._completed} is stored")
        if durable.last_id != self._burnt:
            self._fail(Invariant.ONE_DECISION, f"id {durable.last_id} counts as the last one, {self._burnt} was taken")
        undecided = durable.pending.id if durable.pending is not None else 0
        if undecided != (running.id if running is not None else 0) or (state.pending is None) != (not undecided):
            text = f"{undecided} is undecided in memory, {running and running.id} is in the store"
            self._fail(Invariant.ONE_DECISION, text)
        for instruction in wanted(state):
            number = getattr(instruction, "checkpoint", 0)
            match instruction:
                case Complete() if number != self._completed or self._settled or self._lost:
                    self._fail(Invariant.ONE_DECISION, f"the commit of {number} is wanted")
                case Abort() if number <= self._completed or number == undecided:
                    self._fail(Invariant.NEVER_CHANGES, f"the abort of {number} is wanted")
                case Trigger() if number != undecided:
                    self._fail(Invariant.ONE_DECISION, f"{number} is to be run, {undecided} is undecided")
                case _:
                    pass


def _everybody(running: _Running) -> bool:
    return running.answers.keys() == {"source", "sink"}


def _documents(snapshots: Mapping[ParticipantName, Snapshot]) -> dict[ParticipantName, object]:
    """Positions and committables: what a generation restores and ends. Record counts are left out; an amendment drops
    them."""
    return {name: (one.positions, sorted(one.committables, key=lambda c: c.slot)) for name, one in snapshots.items()}


def _positions(snapshots: Mapping[ParticipantName, Snapshot]) -> dict[ParticipantName, object]:
    return {name: one.positions for name, one in snapshots.items() if one.positions is not None}


def _evolved(durable: Durable, facts: Iterable[Fact]) -> Durable:
    for fact in facts:
        durable = evolve(durable, fact)
    return durable
