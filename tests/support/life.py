"""Follows a life of the core from outside: calls, facts, and what must never happen.

The explorer does this for small worlds of drivers that keep the contract. Here drivers send any calls, sinks have
several slots, slots are lost and written again, and operators make requests.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from onceward.protocol import events, facts
from onceward.protocol.answers import Abort, Answer, Complete, Ready, Trigger, Verdict
from onceward.protocol.core import wanted
from onceward.protocol.durable import Durable
from onceward.protocol.evolve import evolve
from onceward.protocol.requests import RequestState
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus
from onceward.protocol.values import CheckpointKind, Claim, Committable, Outcome, ParticipantName, Snapshot
from tests.support.oracle import History, Invariant, Violation

__all__ = ["Life", "OperatorInvariant"]


class OperatorInvariant(StrEnum):
    """What operators may rely on, besides the invariants of data."""

    REQUESTS = "a request ends once, and is reported completed only when it durably is"
    ENDING = "I13: a job's end is reported truthfully"
    CLAIMED = "a job that belongs to another or a newer store is not opened"
    FAILING = "a job that has failed shows it until a checkpoint is completed"


class Life:
    """One job's life. Each call returns the first violation."""

    def __init__(self) -> None:
        self.history = History()
        self._driven = False
        self._answers: dict[ParticipantName, Snapshot] = {}
        """Of the undecided checkpoint."""
        self._snapshots: dict[ParticipantName, Snapshot] = {}
        self._amendment = 0
        self._proved: set[tuple[ParticipantName, int]] = set()
        """Sink and slot whose current committable is reported committed."""
        self._gone = False
        """Whether something is lost without a replay."""
        self._ordered: dict[ParticipantName, object] = {}
        """Positions that an operator ordered the job to start from."""
        self._adoptable: Claim | None = None
        """The claim that an operator permitted to adopt, until a driver has replaced it."""
        self._failing = False
        self._found: Violation | None = None

    def restarted(self, state: JobState) -> Violation | None:
        """The coordinator restarted: it knows what is durable, and the answers must be given again."""
        self._found = None
        self._answers = {}
        self._agrees(state)
        return self._found

    def stepped(self, before: JobState, event: events.Event, ready: Ready, after: JobState) -> Violation | None:
        self._found = None
        self._answered(event, ready.answer)
        for fact in ready.facts:
            self._see(fact, event, ready.facts)
            self._see_failure(fact, event)
        if self._failing != bool(after.durable.failures_in_row):
            shown = after.durable.failures_in_row
            self._fail(OperatorInvariant.FAILING, f"{shown} failures in a row are shown, failing: {self._failing}")
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

    def _answered(self, event: events.Event, answer: Answer) -> None:
        accepted = answer.verdict is Verdict.ACCEPTED
        generation = getattr(event, "generation", None)
        if generation is not None and not isinstance(event, events.StreamLost):
            closed = isinstance(event, events.CloseJob) and generation == self.history.generation and not self._driven
            stale = generation != self.history.generation or not self._driven
            refused = Verdict.TOO_LATE if isinstance(event, events.PermitTakeover) else Verdict.FENCED
            if stale and not closed and answer.verdict is not refused:
                call = f"{type(event).__name__} of generation {generation}"
                text = f"{call} is {answer.verdict}, now {self.history.generation}"
                self._fail(Invariant.STALE, text)
        match event:
            case events.OpenJob() if accepted:
                self._opened(event)
            case events.Acknowledge() if accepted:
                self._acknowledged(event)
            case events.Settle(participant=sink, settlements=settlements) if accepted:
                if event.amendment != self._amendment or event.checkpoint != self.history.last:
                    text = f"outcomes of {event.checkpoint} (amendment {event.amendment}) count for {self.history.last}"
                    self._fail(Invariant.SETTLED, text)
                proved = {(sink, one.slot) for one in settlements if one.outcome is Outcome.COMMITTED}
                self._proved |= proved - self.history.lost
            case events.Amend(participant=sink, slots=slots) if accepted:
                if not {(sink, slot) for slot in slots} <= self.history.lost:
                    self._fail(Invariant.TILES, f"slots {sorted(slots)} of {sink} are written again and not lost")
            case _:
                pass

    def _opened(self, event: events.OpenJob) -> None:
        if self._gone:
            self._fail(Invariant.TILES, "a job continues although records of it are lost")
        adopted = [claim for claim in event.claims if replace(claim, holder="") == self._adoptable]
        if not adopted:
            self._adoptable = None
        for claim in event.claims:
            # the permission covers what a driver of the same store has left behind on another system
            if not any(claim.store_id == one.store_id and _age(claim) <= _age(one) for one in adopted):
                self._not_ruled_out(claim)

    def _not_ruled_out(self, claim: Claim) -> None:
        # The output's view: it already holds everything through the claimed checkpoint of the claiming store.
        base = self.history.last if claim.store_id == "this" else 0
        if base < claim.completed:
            self._fail(OperatorInvariant.CLAIMED, f"all between {base} and {claim.completed} is written twice")
        if claim.store_id != "this" or claim.generation > self.history.generation:
            self._fail(OperatorInvariant.CLAIMED, f"this store and {claim.store_id} both write")

    def _acknowledged(self, event: events.Acknowledge) -> None:
        if event.checkpoint != self.history.undecided:
            text = f"an answer to checkpoint {event.checkpoint} counts for {self.history.undecided}"
            self._fail(Invariant.EVERYBODY, text)
            return
        if event.base != self.history.last:
            text = f"an answer on base {event.base} counts for a checkpoint on {self.history.last}"
            self._fail(Invariant.TILES, text)
        if event.participant in self._answers:
            self._fail(Invariant.NEVER_CHANGES, f"{event.participant} has answered, and answers again")
        self._answers[event.participant] = event.snapshot

    # -- facts

    def _see(self, fact: facts.Fact, event: events.Event, together: Iterable[facts.Fact]) -> None:
        former = self.history
        self.history, violation = former.after(fact)
        if violation is not None:
            self._fail(*violation)
        match fact:
            case facts.GenerationGranted():
                self._driven = True
            case facts.GenerationEnded():
                self._driven = False
            case facts.AdoptionPermitted():
                self._adoptable = fact.claim
            case facts.CheckpointTriggered():
                self._answers, self._adoptable = {}, None
            case facts.CheckpointCompleted():
                if not self._everybody or fact.snapshots != self._answers:
                    text = f"checkpoint {fact.checkpoint} is completed with something else than all answers"
                    self._fail(Invariant.EVERYBODY, text)
                self._snapshots, self._amendment, self._proved = dict(fact.snapshots), 0, set()
            case facts.CheckpointUnchanged():
                if not self._everybody or not all(one.unchanged for one in self._answers.values()):
                    self._fail(Invariant.TILES, f"checkpoint {fact.checkpoint} is forgotten, and something was new")
            case facts.CheckpointSettled():
                left = {
                    (name, one.slot) for name, snapshot in self._snapshots.items() for one in snapshot.committables
                } - self._proved
                if left:
                    text = f"checkpoint {fact.checkpoint} is called settled without {sorted(left)}"
                    self._fail(Invariant.SETTLED, text)
            case facts.CheckpointRestored():
                if _positions(fact.snapshots) != self._ordered:
                    text = f"checkpoint {fact.checkpoint} has other positions than were ordered"
                    self._fail(Invariant.RESTORED, text)
                self._snapshots, self._amendment = dict(fact.snapshots), 0
            case facts.InputSkipped():
                self._snapshots, self._amendment = dict(fact.snapshots), 0
            case facts.RestoreRequested():
                self._ordered = _positions(fact.source.snapshots)
            case facts.CheckpointAmended():
                self._proved -= {(fact.participant, slot) for slot in fact.slots}
                self._amendment = fact.amendment
                self._replace(fact.participant, fact.slots, fact.committables)
            case facts.LossSkipped():
                self._replace(fact.participant, {one.slot for one in fact.settlements})
            case facts.SlotsResolved():
                self._gone = False
                self._replace(fact.participant, fact.settled)
            case facts.JobHalted():
                self._gone |= any(one.outcome is Outcome.LOST for one in fact.settlements)
            case _:
                self._see_request(fact, event, together)

    @property
    def _everybody(self) -> bool:
        return self._answers.keys() == {"source", "sink"}

    def _replace(self, sink: ParticipantName, slots: Collection[int], again: Iterable[Committable] = ()) -> None:
        """Committables of ``slots`` no longer count; those written ``again`` do."""
        kept = [one for one in self._snapshots[sink].committables if one.slot not in slots]
        self._snapshots[sink] = replace(self._snapshots[sink], committables=(*kept, *again))

    def _see_request(self, fact: facts.Fact, event: events.Event, together: Iterable[facts.Fact]) -> None:
        match fact:
            case facts.RequestEnded(request=request) if request.state is RequestState.COMPLETED:
                if request.kind is CheckpointKind.SAVEPOINT and not any(
                    isinstance(one, facts.CheckpointCompleted) and one.checkpoint == request.checkpoint
                    for one in together
                ):
                    self._fail(
                        OperatorInvariant.REQUESTS, f"savepoint {request.checkpoint} is reported completed and is not"
                    )
            case facts.EndingRequested() if not isinstance(event, events.StopJob | events.CancelJob):
                if not any(
                    isinstance(one, facts.RequestEnded)
                    and one.request.stop
                    and one.request.state is RequestState.COMPLETED
                    for one in together
                ):
                    self._fail(OperatorInvariant.REQUESTS, "the job ends although its last savepoint failed")
            case facts.StatusChanged(status=JobStatus.FINISHED | JobStatus.CANCELLED) if not self.history.settled:
                self._fail(
                    OperatorInvariant.ENDING, f"the job is {fact.status} while {self.history.last} is not settled"
                )
            case _:
                pass

    def _see_failure(self, fact: facts.Fact, event: events.Event) -> None:
        match fact:
            case facts.CheckpointAborted(counted=True):
                self._failing = True
            case facts.GenerationEnded(failed=failed):
                reasons = (events.CloseReason.RESTARTING, events.CloseReason.FAILED)
                self._failing |= failed or (isinstance(event, events.CloseJob) and event.reason in reasons)
            case facts.CheckpointCompleted() | facts.CheckpointUnchanged() | facts.JobForgotten():
                self._failing = False
            case facts.StatusChanged(status=JobStatus.FINISHED | JobStatus.CANCELLED):
                self._failing = False
            case _:
                pass

    # -- answers and instructions

    def _granted(self, answer: Answer) -> None:
        grant = answer.grant
        assert grant is not None
        if grant.generation != self.history.generation:
            self._fail(
                Invariant.STALE, f"generation {grant.generation} is granted, {self.history.generation} is stored"
            )
        completed = grant.completed
        number, settled = (completed.id, completed.settled) if completed is not None else (0, True)
        snapshots = completed.snapshots if completed is not None else {}
        if (number, settled) != (self.history.last, self.history.settled) or _documents(snapshots) != _documents(
            self._snapshots
        ):
            self._fail(Invariant.RESTORED, f"a generation begins with {number}, {self.history.last} is the newest")

    def _agrees(self, state: JobState) -> None:
        """Check that memory and the instructions to the driver match what was decided."""
        durable = state.durable
        if (durable.base, durable.settled, durable.generation) != (
            self.history.last,
            self.history.settled,
            self.history.generation,
        ):
            self._fail(Invariant.REMEMBERED, f"{durable.base} is the newest in memory, {self.history.last} is stored")
        if durable.last_id != self.history.burnt:
            self._fail(
                Invariant.ONE_DECISION, f"id {durable.last_id} counts as the last one, {self.history.burnt} was taken"
            )
        undecided = durable.pending.id if durable.pending is not None else 0
        if undecided != self.history.undecided or (state.pending is None) != (not undecided):
            text = f"{undecided} is undecided in memory, {self.history.undecided} is in the store"
            self._fail(Invariant.ONE_DECISION, text)
        for instruction in wanted(state):
            number = getattr(instruction, "checkpoint", 0)
            match instruction:
                case Complete() if number != self.history.last or self.history.settled or self.history.lost:
                    self._fail(Invariant.ONE_DECISION, f"the commit of {number} is wanted")
                case Abort() if number <= self.history.last or number == undecided:
                    self._fail(Invariant.NEVER_CHANGES, f"the abort of {number} is wanted")
                case Trigger() if number != undecided:
                    self._fail(Invariant.ONE_DECISION, f"{number} is to be run, {undecided} is undecided")
                case _:
                    pass


def _documents(snapshots: Mapping[ParticipantName, Snapshot]) -> dict[ParticipantName, object]:
    """Positions and committables: what a generation restores and ends. Record counts are left out; an amendment drops
    them."""
    return {name: (one.positions, sorted(one.committables, key=lambda c: c.slot)) for name, one in snapshots.items()}


def _positions(snapshots: Mapping[ParticipantName, Snapshot]) -> dict[ParticipantName, object]:
    return {name: one.positions for name, one in snapshots.items() if one.positions is not None}


def _evolved(durable: Durable, recorded: Iterable[facts.Fact]) -> Durable:
    for fact in recorded:
        durable = evolve(durable, fact)
    return durable


def _age(claim: Claim) -> tuple[int, int]:
    return claim.generation, claim.completed
