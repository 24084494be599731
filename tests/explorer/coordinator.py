"""The coordinator of a small world: the real core between a store and the network, computed once per situation.

Time is removed. The core runs at ``now = 0``, and the effects of time are separate calls: ``expire`` ages the undecided
checkpoint past its timeout, ``lease`` ages the driver's lease past its end, ``overdue`` ages what the driver owes.
Every other time in the state is reset, so that two states that differ only in when they were reached are one. This
loses nothing: each of these clocks may run out at any point of a path, so running out now or never covers whatever a
clock could show. The interval is 0: the next checkpoint is triggered as early as possible, with its predecessor still
unsettled.
"""

from collections.abc import Hashable
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, assert_never

from onceward.coordinator.store.term import next_number
from onceward.protocol import answers, core, evolve, orphans
from onceward.protocol import state as states
from onceward.protocol.durable import Durable
from onceward.protocol.events import (
    Acknowledge,
    Amend,
    Event,
    OpenJob,
)
from onceward.protocol.facts import Fact
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    Committable,
    Generation,
    JobName,
    OnLost,
    Participant,
)
from tests.explorer.oracle import Demand, Fork, Output, see, see_answer, see_state, stamp
from tests.explorer.world import NO_CLAIM, SINKS, Bounds, Call
from tests.support.documents import document
from tests.support.events import OTHER, SINK, SOURCE, event
from tests.support.oracle import Invariant, Violation

__all__ = ["SETTINGS", "Coordinators", "Reply", "Result", "View", "command", "frozen"]

SETTINGS: dict[str, str | int] = {
    "interval": "0s",
    "timeout": "150s",
    "lease": "100s",
    "orphan_grace": "100s",
    "tolerable_failed_checkpoints": 1,
}
"""In the format of the scenarios' ``play()``."""

_SETTINGS = CheckpointSettings(**SETTINGS)  # type: ignore[arg-type]
_NEVER = float("inf")
_MAPPINGS = (dict, MappingProxyType)
_NOTHING = Demand()


class Process(NamedTuple):
    """A running coordinator, and what its store holds according to the facts."""

    state: JobState
    output: Output
    term: int
    """The number of its term, where a coordinator that leads no more answers beside a promoted copy; 0 elsewhere."""


class Reply(NamedTuple):
    """The part of an answer that a driver reads."""

    verdict: answers.Verdict
    decided: str | None
    generation: int
    """The generation granted, or the one whose driver is alive; 0 for none."""
    base: int
    at: int
    settled: bool
    handle: tuple[int, int, int]
    """Generation, amendment and driver of the transaction that counts."""
    other: tuple[int, int, int]
    """The same of the second sink."""
    lost: int
    """Bits of sinks."""


class Result(NamedTuple):
    """The effects of one call."""

    after: int
    """The coordinator that continues."""
    restarted: int
    """The coordinator that died between write and answer, restarted; -1 when nothing is written."""
    reply: Reply
    demand: Demand | None
    violation: Violation | None


class View(NamedTuple):
    """What the world needs to know about a coordinator."""

    generation: int
    owned: bool
    """False once its driver has left or was given up."""
    output: Output
    wanted: tuple[tuple[str, int, int], ...]
    """(kind, checkpoint, base)"""
    stream: bool
    """True while it believes that the driver's stream is open."""
    lapses: bool
    """True while it waits for its driver and will eventually give it up."""
    alone: bool
    """True when the coordinator itself owns the job, in place of a driver."""
    orphan: bool
    """True when it may take the job after the grace time."""
    undecided: int
    unanswered: bool
    owes: bool
    """True while it waits for its driver to carry out an instruction, and will eventually give it up."""
    term: int
    goes_on: bool
    """False when no more checkpoint would be triggered, however many ids this world had."""

    def owned_by(self, generation: int, token: int) -> bool:
        """True when this driver has the job, as far as the coordinator knows."""
        return self.owned and generation == self.generation and self.output.holder in (0, token)


class Coordinators:
    """All coordinators reached so far, by number; number 0 is a fresh one."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        replaying = bounds.losses or bounds.promotions
        policy = OnLost.REPLAY if replaying else SINK.on_lost
        self._members = (SOURCE, *(replace(sink, on_lost=policy) for sink in (SINK, OTHER)[: bounds.sinks]))
        self._numbers: dict[Hashable, int] = {}
        self._processes: list[Process] = []
        self.views: list[View] = []
        self.violations: list[Violation | None] = []
        """Violations in what a coordinator instructs its driver to do."""
        self._calls: dict[tuple[int, Call], Result] = {}
        self._restarts: dict[int, int] = {}
        self._promoted: dict[tuple[int, int], int] = {}
        fresh = JobState(durable=Durable(job=JobName("orders"), store_id="store-a"))
        self._counts_terms = bounds.takeovers > 0 and bounds.promotions > 0
        self._number(fresh, Output(named=bounds.claims, sinks=bounds.sinks), self._next_term(0))

    def __len__(self) -> int:
        return len(self._processes)

    def call(self, coordinator: int, call: Call) -> Result:
        """The effects of the call on this coordinator."""
        result = self._calls.get((coordinator, call))
        if result is None:
            result = self._calls[coordinator, call] = self._call(coordinator, call)
        return result

    def restart(self, coordinator: int) -> int:
        """Let the coordinator die and restart from its store."""
        number = self._restarts.get(coordinator)
        if number is None:
            process = self._processes[coordinator]
            state = states.restart(process.state.durable, 0.0)
            term = self._next_term(process.term)
            number = self._restarts[coordinator] = self._number(state, process.output, term)
        return number

    def promote(self, copy: int, current: int) -> int:
        """Let a copy of the store take the place of the store that ``current`` writes."""
        number = self._promoted.get((copy, current))
        if number is None:
            state, known, term = self._processes[copy]
            fork = Fork(known.generation, known.decided, self._processes[current].output.decided)
            term = self._next_term(term - 1, timeline=2)
            number = self._promoted[copy, current] = self._number(state, replace(known, fork=fork), term)
        return number

    def _call(self, coordinator: int, call: Call) -> Result:
        state, output, term = self._processes[coordinator]
        after, ready = core.step(*_happens(state, call, self._members))
        written, demand, violation = see(output, ready.facts)
        violation = violation or see_answer(written, call.checkpoint, ready.answer)
        if call.kind != "close":  # a coordinator whose driver is lost ends the job by what its store knows
            demand = demand._replace(ended=None)
        stored = _store(state.durable, ready.facts)
        if violation is None and stored != after.durable:
            violation = Violation(Invariant.REMEMBERED, _difference(stored, after.durable))
        number = coordinator if after is state else self._number(after, written, term)
        grant = ready.answer.grant
        reply = Reply(
            verdict=ready.answer.verdict,
            decided=ready.answer.decision and ready.answer.decision.value,
            generation=grant.generation if grant else ready.answer.generation,
            base=written.last if grant else 0,
            at=written.end if grant else 0,
            settled=written.settled,
            handle=written.handle,
            other=written.other,
            lost=sum(1 << SINKS.index(who) for who in {name for name, _ in written.lost}),
        )
        next_term = self._next_term(term)
        restarted = self._number(states.restart(stored, 0.0), written, next_term) if ready.facts else -1
        violation = violation or self.violations[number]
        return Result(
            after=number,
            restarted=restarted,
            reply=reply,
            demand=demand if demand != _NOTHING else None,
            violation=violation,
        )

    def _next_term(self, term: int, *, timeline: int = 1) -> int:
        return next_number(term, timeline) if self._counts_terms else 0

    def _number(self, state: JobState, output: Output, term: int) -> int:
        state = self._essential(state)
        key = (frozen(state), output, term)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._processes)
            self._processes.append(Process(state, output, term))
            wanted = core.wanted(state)
            self.violations.append(see_state(output, wanted))
            session = state.session
            self.views.append(
                View(
                    generation=state.durable.generation,
                    owned=state.durable.driver is not None,
                    output=output,
                    wanted=tuple(_words(instruction) for instruction in wanted),
                    stream=session is not None and session.stream_lost_at is None,
                    lapses=(session is not None and session.stream_lost_at is not None)
                    or state.restart_due is not None,
                    alone=state.durable.orphaned,
                    orphan=orphans.due(state) is not None,
                    undecided=state.durable.pending.id if state.durable.pending is not None else 0,
                    unanswered=state.pending is not None and not state.all_answered,
                    owes=state.owing_since is not None,
                    term=term,
                    goes_on=state.durable.status is JobStatus.RUNNING,
                )
            )
        return number

    def _essential(self, state: JobState) -> JobState:
        """The same situation at ``now = 0``, without what is only shown to people.

        Drops the last aborted checkpoint where a later one completed or a later generation began, and drops requests
        that have ended. This changes only the wording of answers that no caller reads.
        """
        session, pending, durable = state.session, state.pending, state.durable
        aborted = durable.aborted
        if aborted is not None:
            stale = aborted.generation != durable.generation or aborted.id < durable.base
            aborted = None if stale else replace(aborted, detail="")
        durable = replace(durable, status_detail="", aborted=aborted, requests=durable.open_requests)
        durable = replace(durable, former_failures=0, failure="")
        if session is not None:
            lost_at = None if session.stream_lost_at is None else 0.0
            session = replace(session, lease_ends=_SETTINGS.seconds("lease"), stream_lost_at=lost_at)
        if pending is not None:
            pending = replace(pending, started=0.0, answered=0.0)
        full = durable.last_id >= self._bounds.checkpoints
        return replace(
            state,
            durable=durable,
            session=session,
            pending=pending,
            asked={},
            next_trigger=_NEVER if full else 0.0,
            completed_at=None,
            restart_due=None if state.restart_due is None else _SETTINGS.seconds("lease"),
            owing_since=None if state.owing_since is None else 0.0,
        )


def _words(instruction: answers.Instruction) -> tuple[str, int, int]:
    match instruction:
        case answers.Trigger():
            kind = "trigger at once" if instruction.at_once else "trigger"
            return kind, instruction.checkpoint, instruction.base
        case answers.Complete():
            return "complete", instruction.checkpoint, instruction.amendment
        case answers.Abort():
            return "abort", instruction.checkpoint, instruction.base
        case answers.Fail() | answers.Halt():
            return "fail", 0, 0
        case answers.Stop():
            return "stop", 0, 0
        case answers.Cancel():
            return "cancel", 0, 0
        case answers.Replay():
            other = " other" if instruction.participant == OTHER.name else ""
            return f"replay{other}", instruction.checkpoint, instruction.amendment
        case _:
            assert_never(instruction)


def _store(before: Durable, facts: tuple[Fact, ...]) -> Durable:
    """What the store holds after writing these facts over ``before``."""
    for fact in facts:
        before = evolve.evolve(before, fact)
    return before


def _difference(stored: Durable, remembered: Durable) -> str:
    """The fields in which they differ."""
    different = [
        f"{field.name}: {getattr(stored, field.name)} is stored, {getattr(remembered, field.name)} in memory"
        for field in fields(stored)
        if getattr(stored, field.name) != getattr(remembered, field.name)
    ]
    return "; ".join(different)


def _happens(state: JobState, call: Call, members: tuple[Participant, ...]) -> tuple[JobState, Event]:
    """The core's event, with the state aged if the event is the passing of time."""
    match call.kind:
        case "expire" if state.pending is not None:
            state = replace(state, pending=replace(state.pending, started=-2 * _SETTINGS.seconds("timeout")))
        case "lease":
            if state.session is not None:
                state = replace(state, session=replace(state.session, lease_ends=0.0))
            if state.restart_due is not None:
                state = replace(state, restart_due=0.0)
        case "overdue" if state.owing_since is not None:
            state = replace(state, owing_since=-_SETTINGS.seconds("lease") - _SETTINGS.seconds("orphan_grace"))
        case "take" if state.driverless_since is not None:
            state = replace(state, driverless_since=-_SETTINGS.seconds("orphan_grace"))
        case _:
            pass
    return state, _event(call, members)


def _event(call: Call, members: tuple[Participant, ...]) -> Event:
    """The event of a scenario, with contents that differ between generations."""
    happens = event(command(call), now=0.0, newest=Generation(call.generation), settings=_SETTINGS)
    if call.token and call.kind != "take":
        happens = replace(happens, driver=f"d{call.token}")  # type: ignore[arg-type]
    match happens:
        case OpenJob():
            return replace(happens, participants=members)
        case Acknowledge():
            records = stamp(call.generation, call.checkpoint)
            return replace(happens, snapshot=replace(happens.snapshot, records=records))
        case Amend():
            again = document(text=f"{call.base + 1} by {call.generation}")
            return replace(happens, committables=(Committable(slot=0, document=again),))
        case _:
            return happens


def command(call: Call) -> str:
    """The call in the words of a scenario, sent by the newest generation."""
    match call.kind:
        case "open":
            takeover = f" takeover g{call.base}" if call.base else ""
            return f"open d{call.generation}{takeover}{_claim(call)}"
        case "ack":
            content = f" at {call.at}" if call.who == "source" else " slots 0" if call.data else ""
            return f"ack {call.checkpoint} {call.who} on {call.base}{content}{' unchanged' if call.unchanged else ''}"
        case "decline":
            return f"decline {call.checkpoint} sink"
        case "settle":
            amendment = f" amendment {call.base}" if call.base else ""
            outcome = {"": "committed", "lost": "lost", "doubt": "in_doubt"}[call.who]
            return f"settle {call.checkpoint} {SINKS[call.sink]}{amendment} 0={outcome}"
        case "amend":
            amendment = f" amendment {call.base}" if call.base else ""
            return f"amend {call.checkpoint} {SINKS[call.sink]} 0{amendment} slots 0"
        case "close":
            return f"close {call.who}{f' knows {call.knows}' if call.knows else ''}"
        case "savepoint":
            return f"request {call.who} savepoint{' stop' if call.data else ''}"
        case "take":
            return f"orphan{f' holding d{call.token}' if call.token else ''}{_claim(call)}"
        case "expire" | "lease" | "overdue" | "tick":
            return "after 0"
        case _:
            return call.kind


def _claim(call: Call) -> str:
    seen = call.seen
    return f" claim store-a {seen.generation} {seen.completed} by d{seen.token}" if seen != NO_CLAIM else ""


_FIELDS: dict[type, tuple[str, ...]] = {}
"""Field names of dataclasses; empty for other types. Cached, because looking them up takes longer than everything else
here."""


def frozen(value: Any) -> Hashable:
    """A hashable equivalent of any protocol value."""
    kind = type(value)
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple(field.name for field in fields(value)) if is_dataclass(value) else ()
    if names:
        return (kind.__name__, *[frozen(getattr(value, name)) for name in names])
    if kind is tuple:
        return tuple([frozen(one) for one in value])
    if isinstance(value, _MAPPINGS):
        return tuple(sorted((str(key), frozen(content)) for key, content in value.items()))
    assert isinstance(value, Hashable)
    return value
