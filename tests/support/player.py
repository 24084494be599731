"""Plays a job's life as text: lines that begin with ``>`` are events, the others are the core's output for them.

    # What it shows, and which faults it covers.
    settings interval=1h         those that differ from the defaults
    > ack 1 source on 0          the event
      accepted                   its answer, with the decision if there is one
      fact completed 1 ...       what must be durable first, in order
      wants complete 1           all instructions to the driver, if they have changed

`events` lists the events. Here are also ``restart`` (of the coordinator, from what is durable), ``unstored EVENT`` (the
coordinator dies, or its store fails, before the event's facts are durable; then a restart), ``damage`` (a restart
that cannot read the newest completed checkpoint), ``copy`` (an asynchronous copy of the store gets no more writes),
``promote`` (the copy takes the store's place; then a restart), and ``look`` (at what is shown of the job's failures).
"""

from dataclasses import replace
from typing import assert_never

from onceward.protocol import answers, facts
from onceward.protocol.core import step, wanted
from onceward.protocol.durable import Durable
from onceward.protocol.events import (
    Event,
)
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.state import JobState, restart
from onceward.protocol.values import (
    CheckpointKind,
    Claim,
    CompletedCheckpoint,
    JobName,
)
from tests.support.events import event

__all__ = ["Player", "play"]


def play(transcript: str) -> str:
    """The transcript with the core's current output, and the same comments, settings and events."""
    player = Player(CheckpointSettings())
    lines: list[str] = []
    for line in transcript.splitlines():
        if line.startswith("settings "):
            player.settings = _settings(line.split()[1:])
        if line.startswith(">"):
            lines += [line, *player.play(line[1:].strip())]
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"


class Player:
    """Plays a job, one event after the other."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self.now = 100.0
        self.settings = settings
        self.state = JobState(durable=Durable(job=JobName("orders"), store_id="store-a"))
        self.wanted = "nothing"
        self.completed: dict[int, CompletedCheckpoint] = {}
        self.standby = self.state.durable

    def play(self, command: str) -> list[str]:
        """The core's output for one event."""
        said: list[str] = []
        if command == "restart":
            self.state = restart(self.state.durable, self.now)
        elif command == "copy":
            self.standby = self.state.durable
        elif command == "promote":
            self.state = restart(self.standby, self.now)
        elif command == "damage":
            damaged = replace(self.state.durable, completed=None, unreadable="its record was changed")
            self.state = restart(damaged, self.now)
        elif command == "look":
            durable = self.state.durable
            failed = f"{durable.failures_in_row} in a row: {durable.failure}" if durable.failures_in_row else "none"
            said.append(f"  shown as {durable.shown_status.value}, failures {failed}")
        elif command.startswith("unstored "):
            _, ready = step(self.state, self.event(command.removeprefix("unstored ")))
            said += [f"  never {_fact(fact)}" for fact in ready.facts]
            self.state = restart(self.state.durable, self.now)
        else:
            self.state, ready = step(self.state, self.event(command))
            if not command.startswith("after"):
                said.append(f"  {_answer(ready.answer)}")
            said += [f"  fact {_fact(fact)}" for fact in ready.facts]
        if self.state.durable.completed is not None:
            self.completed[self.state.base] = self.state.durable.completed
        now_wanted = "; ".join(map(_instruction, wanted(self.state))) or "nothing"
        if now_wanted != self.wanted:
            said.append(f"  wants {now_wanted}")
            self.wanted = now_wanted
        return said

    def event(self, command: str) -> Event:
        """Parse a command of a scenario."""
        happening = event(
            command,
            now=self.now,
            newest=self.state.durable.generation,
            settings=self.settings,
            completed=self.completed,
        )
        self.now = happening.now
        return happening


def _settings(words: list[str]) -> CheckpointSettings:
    def value(text: str) -> str | int | None:
        return None if text == "none" else int(text) if text.isdigit() else text

    given = {name: value(text) for name, _, text in (word.partition("=") for word in words)}
    return CheckpointSettings(**given)  # type: ignore[arg-type]


def _answer(answer: answers.Answer) -> str:
    parts = [answer.verdict.value]
    if answer.may_return:
        parts.append("may return")
    if answer.decision is not None:
        parts.append(answer.decision.value)
    if answer.request is not None:
        parts.append(f"({answer.request.state.value})")
    if answer.grant is not None:
        completed = answer.grant.completed
        parts.append(f"g{answer.grant.generation} from {completed.id if completed is not None else 'the beginning'}")
        if completed is not None and not completed.settled:
            parts.append("unsettled")
        if answer.grant.new_run:
            parts.append("as a new run")
        parts += [f"without {who} {_slots(slots)}" for who, slots in answer.grant.lost.items()]
    return " ".join(parts)


def _slots(slots: frozenset[int]) -> str:
    return ",".join(map(str, sorted(slots)))


def _fact(fact: facts.Fact) -> str:
    match fact:
        case facts.GenerationGranted():
            adopting = f", adopting {_named(fact.adopted)}" if fact.adopted is not None else ""
            return f"granted g{fact.generation} to {fact.driver}, ids through {fact.first_id} are taken{adopting}"
        case facts.GenerationFailed():
            return f"failed g{fact.generation}: {fact.reason}"
        case facts.GenerationEnded():
            return f"ended g{fact.generation}"
        case facts.StatusChanged():
            return f"{fact.status.value}: {fact.transition.value}"
        case facts.CheckpointTriggered():
            kind = "" if fact.kind is CheckpointKind.CHECKPOINT else f" as {fact.kind.value}"
            request = f" for {fact.request}" if fact.request is not None else ""
            return f"triggered {fact.checkpoint} on {fact.base} by g{fact.generation}{kind}{request}"
        case facts.CheckpointCompleted():
            return f"completed {fact.checkpoint}{', nothing to settle' if fact.settled else ''}"
        case facts.CheckpointAborted():
            return f"aborted {fact.checkpoint}: {fact.reason.name}{', a counted failure' if fact.counted else ''}"
        case facts.CheckpointUnchanged():
            return f"unchanged {fact.checkpoint}"
        case facts.CheckpointSettled():
            return f"settled {fact.checkpoint}"
        case facts.LossRecorded():
            return f"lost {fact.checkpoint} {fact.participant} {' '.join(str(one.slot) for one in fact.settlements)}"
        case facts.LossSkipped():
            return f"gave up {fact.checkpoint} {fact.participant} {' '.join(str(one.slot) for one in fact.settlements)}"
        case facts.LossAcknowledged():
            return f"acknowledged the loss of {fact.checkpoint} {fact.participant} {_slots(fact.slots)}"
        case facts.OutputClosed():
            return f"closed output {fact.participant}"
        case facts.CheckpointAmended():
            new = ",".join(str(committable.slot) for committable in fact.committables)
            return f"amended {fact.checkpoint} {fact.participant} {_slots(fact.slots)} by {new or 'nothing'}"
        case facts.JobHalted():
            slots = " ".join(f"{one.slot}={one.outcome.value}" for one in fact.settlements)
            return f"halted by {fact.checkpoint} {fact.participant} {slots}".rstrip()
        case facts.RequestQueued():
            return f"queued {fact.request.id}"
        case facts.RequestEnded():
            ended = fact.request
            what = f"{ended.checkpoint}" if ended.state.value == "completed" else ended.detail
            return f"request {ended.id} {ended.state.value}: {what}"
        case facts.EndingRequested():
            return f"asked to {fact.ending.value}"
        case facts.RestoreRequested():
            return f"to be restored from {fact.source.id}"
        case facts.TakeoverPermitted():
            return f"permitted to take over from g{fact.generation}"
        case facts.AdoptionPermitted():
            return f"permitted to adopt {_named(fact.claim)}"
        case facts.CheckpointRestored():
            return f"restored {fact.checkpoint} from {fact.source}, instead of {fact.former}"
        case facts.SavepointReleased():
            return f"released {fact.checkpoint}"
        case facts.SlotsResolved():
            forced = ", forced" if fact.forced else ""
            what = f"{_slots(fact.slots)} count as {fact.ruling.value}{forced}"
            return f"resolved {fact.checkpoint} {fact.participant} {what}, settled {_slots(fact.settled) or 'nothing'}"
        case facts.JobForgotten():
            return f"forgotten: {fact.reason}"
        case facts.InputSkipped():
            return f"skipped {fact.skipped}, so {fact.checkpoint} continues from {fact.base}"
        case _:
            assert_never(fact)


def _instruction(instruction: answers.Instruction) -> str:
    match instruction:
        case answers.Trigger():
            at_once = " at once" if instruction.at_once else ""
            return f"trigger {instruction.checkpoint} on {instruction.base}{at_once}"
        case answers.Complete():
            amendment = f" amendment {instruction.amendment}" if instruction.amendment else ""
            return f"complete {instruction.checkpoint}{amendment}"
        case answers.Replay():
            return f"replay {instruction.checkpoint} {instruction.participant} {_slots(instruction.slots)}"
        case answers.Abort():
            return f"abort {instruction.checkpoint} after {instruction.base}"
        case answers.Stop():
            return "stop"
        case answers.Cancel():
            return "cancel"
        case answers.Fail():
            return "fail"
        case answers.Halt():
            return "halt"
        case _:
            assert_never(instruction)


def _named(claim: Claim) -> str:
    return f"{claim.store_id} {claim.generation} {claim.completed}"
