"""Plays a job's life as text: lines that begin with ``>`` are events, with ``#`` comments, the others are what the core
says to the events.

    > ack 1 source on 0          the event
      accepted                   its answer, with the decision where there is one
      fact completed 1 ...       what has to be durable first, in order
      wants complete 1           everything that the driver is wanted to do, when that has changed

Commands: ``open DRIVER [takeover] [adopt] [without sink] [claim STORE GENERATION SETTLED]``, ``watch``, ``lost``,
``renew``, ``ack N WHO on BASE [at POSITION] [slots A,B] [unchanged]``, ``decline N WHO``, ``close REASON``, ``stop``,
``settle N sink SLOT=OUTCOME..``, ``after SECONDS`` (time passes, then a tick), ``restart`` (of the coordinator, from
what is durable). ``as gN`` at the end speaks for another generation than the newest.
"""

import re
import textwrap
from typing import assert_never

from coordinator.protocol import answers, facts
from coordinator.protocol.core import step, wanted
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
from coordinator.protocol.state import Durable, JobState, restart
from coordinator.protocol.values import (
    CheckpointId,
    Claim,
    Committable,
    Document,
    Generation,
    JobName,
    Outcome,
    Participant,
    ParticipantName,
    Role,
    Settlement,
    Snapshot,
)

__all__ = ["Player", "play"]

SOURCE = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="kafka")
SINK = Participant(name=ParticipantName("sink"), role=Role.SINK, kind="kafka")
OTHER = Participant(name=ParticipantName("other"), role=Role.SINK, kind="kafka")


def play(transcript: str, **settings: str | int) -> None:
    """Play the events of ``transcript`` and compare: every line must be as written."""
    expected = textwrap.dedent(transcript).strip("\n")
    player = Player(CheckpointSettings(**settings))  # type: ignore[arg-type]
    lines: list[str] = []
    for line in expected.splitlines():
        if line.startswith(">"):
            lines += [line, *player.play(line[1:].strip())]
        elif line.startswith("#"):
            lines.append(line)
    assert "\n".join(lines) == expected


class Player:
    def __init__(self, settings: CheckpointSettings) -> None:
        self.now = 100.0
        self.settings = settings
        self.state = JobState(durable=Durable(job=JobName("orders"), store_id="store-a"))
        self.wanted = "nothing"

    def play(self, command: str) -> list[str]:
        said: list[str] = []
        if command == "restart":
            self.state = restart(self.state.durable, self.now)
        else:
            self.state, ready = step(self.state, self._event(command))
            if not command.startswith("after"):
                decision = f" {ready.answer.decision.value}" if ready.answer.decision else ""
                grant = _grant(ready.answer.grant)
                said.append(f"  {ready.answer.verdict.value}{decision}{grant}")
            said += [f"  fact {_fact(fact)}" for fact in ready.facts]
        now_wanted = "; ".join(map(_instruction, wanted(self.state))) or "nothing"
        if now_wanted != self.wanted:
            said.append(f"  wants {now_wanted}")
            self.wanted = now_wanted
        return said

    def _event(self, command: str) -> Event:
        command, generation = self._generation(command)
        words = command.split()
        now = self.now
        match words:
            case ["open", driver, *options]:
                members = (SOURCE, OTHER) if "without" in options else (SOURCE, SINK)
                return OpenJob(
                    now=now,
                    driver=driver,
                    participants=members,
                    settings=self.settings,
                    claim=_claim(options),
                    takeover="takeover" in options,
                    adopt="adopt" in options,
                )
            case ["watch"]:
                return Watch(now=now, generation=generation)
            case ["lost"]:
                return StreamLost(now=now, generation=generation)
            case ["renew"]:
                return Renew(now=now, generation=generation)
            case ["ack", checkpoint, who, "on", base, *content]:
                return Acknowledge(
                    now=now,
                    generation=generation,
                    checkpoint=CheckpointId(int(checkpoint)),
                    participant=ParticipantName(who),
                    base=CheckpointId(int(base)),
                    snapshot=_snapshot(content),
                )
            case ["decline", checkpoint, who]:
                return Decline(
                    now=now,
                    generation=generation,
                    checkpoint=CheckpointId(int(checkpoint)),
                    participant=ParticipantName(who),
                    reason="no",
                )
            case ["settle", checkpoint, who, *slots]:
                return Settle(
                    now=now,
                    generation=generation,
                    checkpoint=CheckpointId(int(checkpoint)),
                    participant=ParticipantName(who),
                    settlements=tuple(_settlement(slot) for slot in slots),
                )
            case ["close", reason]:
                return CloseJob(now=now, generation=generation, reason=CloseReason(reason))
            case ["stop"]:
                return StopJob(now=now)
            case ["after", seconds]:
                self.now += float(seconds)
                return Tick(now=self.now)
            case _:
                raise AssertionError(f"no such command: {command}")

    def _generation(self, command: str) -> tuple[str, Generation]:
        match = re.search(r" as g(\d+)$", command)
        if match is None:
            return command, self.state.durable.generation
        return command[: match.start()], Generation(int(match[1]))


def _claim(options: list[str]) -> Claim | None:
    if "claim" not in options:
        return None
    store, generation, settled = options[options.index("claim") + 1 :][:3]
    return Claim(store_id=store, generation=Generation(int(generation)), settled=CheckpointId(int(settled)))


def _snapshot(words: list[str]) -> Snapshot:
    def after(word: str) -> str | None:
        return words[words.index(word) + 1] if word in words else None

    position, slots = after("at"), after("slots")
    return Snapshot(
        positions=_document(f"position {position}") if position is not None else None,
        committables=tuple(
            Committable(slot=int(slot), document=_document(f"slot {slot}")) for slot in (slots or "").split(",") if slot
        ),
        unchanged="unchanged" in words,
    )


def _document(text: str) -> Document:
    return Document(kind="test", version=1, body={"is": text})


def _settlement(text: str) -> Settlement:
    slot, _, outcome = text.partition("=")
    return Settlement(slot=int(slot), outcome=Outcome(outcome), evidence=f"slot {slot} is {outcome}")


def _grant(grant: answers.Grant | None) -> str:
    if grant is None:
        return ""
    completed = grant.completed
    if completed is None:
        return f" g{grant.generation} from the beginning"
    return f" g{grant.generation} from {completed.id}{'' if completed.settled else ' unsettled'}"


def _fact(fact: facts.Fact) -> str:
    match fact:
        case facts.GenerationGranted():
            return f"granted g{fact.generation} to {fact.driver}, ids through {fact.first_id} are taken"
        case facts.CheckpointTriggered():
            return f"triggered {fact.checkpoint} on {fact.base} by g{fact.generation}"
        case facts.CheckpointCompleted():
            return f"completed {fact.checkpoint}{', nothing to settle' if fact.settled else ''}"
        case facts.CheckpointAborted():
            return f"aborted {fact.checkpoint}: {fact.reason.name}"
        case facts.CheckpointUnchanged():
            return f"unchanged {fact.checkpoint}"
        case facts.CheckpointSettled():
            return f"settled {fact.checkpoint}"
        case facts.JobHalted():
            slots = " ".join(f"{one.slot}={one.outcome.value}" for one in fact.settlements)
            return f"halted by {fact.checkpoint} {fact.participant} {slots}"
        case facts.StopRequested():
            return "stop requested"
        case facts.JobClosed():
            return f"closed g{fact.generation}: {fact.status.value}"
        case _:
            assert_never(fact)


def _instruction(instruction: answers.Instruction) -> str:
    match instruction:
        case answers.Trigger():
            return f"trigger {instruction.checkpoint} on {instruction.base}"
        case answers.Complete():
            return f"complete {instruction.checkpoint}"
        case answers.Abort():
            return f"abort {instruction.checkpoint}"
        case answers.Stop():
            return "stop"
        case answers.Fail():
            return "fail"
        case answers.Halt():
            return "halt"
        case _:
            assert_never(instruction)
