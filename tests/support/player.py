"""Plays a job's life as text: lines that begin with ``>`` are events, the others are the core's output for them.

    # What it shows, and which faults it covers.
    settings interval=1h         those that differ from the defaults
    > ack 1 source on 0          the event
      accepted                   its answer, with the decision if there is one
      fact completed 1 ...       what must be durable first, in order
      wants complete 1           all instructions to the driver, if they have changed

Events: ``open DRIVER [takeover [gN]] [adopt] [without sink] [replaying|skipping] [claim STORE GENERATION CHECKPOINT [by
HOLDER]]``, ``watch``, ``lost``, ``renew [aborted N]``, ``ack N WHO on BASE [at POSITION] [slots A,B] [unchanged]
[more] [good SECONDS]``, ``decline N WHO``, ``close REASON [back SECONDS]``, ``settle N WHO [amendment K]
SLOT=OUTCOME..``, ``amend N WHO SLOT,SLOT [amendment K] [slots A,B]``, ``acknowledge loss N WHO SLOT..``, ``request ID
checkpoint|savepoint [NAME] [stop]``, ``stop``, ``cancel``, ``forget``, ``restore N``, ``release N``, ``resolve N WHO
SLOT,SLOT RULING [SLOT=OUTCOME..] [forced]``, ``skip WHO of BASE to POSITION``, ``orphan [claim STORE GENERATION
CHECKPOINT]`` (the coordinator takes the job), ``after SECONDS`` (time passes, then a tick), ``restart`` (of the
coordinator, from what is durable), ``unstored EVENT`` (the coordinator dies, or its store fails, before the event's
facts are durable; then a restart), ``damage`` (a restart that cannot read the newest completed checkpoint). A final
``as gN`` sends the event for a generation other than the newest.
"""

import re
from dataclasses import replace
from typing import assert_never

from onceward.coordinator.protocol import answers, facts
from onceward.coordinator.protocol.core import step, wanted
from onceward.coordinator.protocol.durable import Durable
from onceward.coordinator.protocol.events import (
    Acknowledge,
    AcknowledgeLoss,
    Amend,
    CancelJob,
    CloseJob,
    CloseReason,
    Decline,
    Event,
    ForgetJob,
    OpenJob,
    ReleaseSavepoint,
    Renew,
    RequestCheckpoint,
    RequestRestore,
    Resolve,
    Settle,
    SkipInput,
    StopJob,
    StreamLost,
    TakeOrphan,
    Tick,
    Watch,
)
from onceward.coordinator.protocol.requests import Ruling
from onceward.coordinator.protocol.settings import CheckpointSettings
from onceward.coordinator.protocol.state import JobState, restart
from onceward.coordinator.protocol.values import (
    NO_GENERATION,
    CheckpointId,
    CheckpointKind,
    Claim,
    Committable,
    CompletedCheckpoint,
    Document,
    Generation,
    JobName,
    OnLost,
    Outcome,
    Participant,
    ParticipantName,
    RequestId,
    Role,
    Settlement,
    Snapshot,
)

__all__ = ["Player", "play"]

SOURCE = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="kafka")
SINK = Participant(name=ParticipantName("sink"), role=Role.SINK, kind="kafka")
OTHER = Participant(name=ParticipantName("other"), role=Role.SINK, kind="kafka")


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

    def play(self, command: str) -> list[str]:
        """The core's output for one event."""
        said: list[str] = []
        if command == "restart":
            self.state = restart(self.state.durable, self.now)
        elif command == "damage":
            damaged = replace(self.state.durable, completed=None, unreadable="its record was changed")
            self.state = restart(damaged, self.now)
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
        command, generation = self._generation(command)
        words = command.split()
        now = self.now
        match words:
            case ["open", driver, *options]:
                policies = {"replaying": OnLost.REPLAY, "skipping": OnLost.SKIP}
                policy = next((policies[option] for option in options if option in policies), OnLost.HALT)
                sink = replace(SINK, on_lost=policy)
                return OpenJob(
                    now=now,
                    driver=driver,
                    participants=(SOURCE, OTHER) if "without" in options else (SOURCE, sink),
                    settings=self.settings,
                    claim=_claim(options),
                    instead_of=self._instead_of(options),
                    adopt="adopt" in options,
                )
            case ["watch"]:
                return Watch(now=now, generation=generation)
            case ["lost"]:
                return StreamLost(now=now, generation=generation)
            case ["renew", *options]:
                aborted = CheckpointId(int(_after(options, "aborted") or 0))
                return Renew(now=now, generation=generation, aborted=aborted)
            case ["ack", checkpoint, who, "on", base, *content]:
                return Acknowledge(
                    now=now,
                    generation=generation,
                    checkpoint=CheckpointId(int(checkpoint)),
                    participant=ParticipantName(who),
                    base=CheckpointId(int(base)),
                    snapshot=_snapshot(content),
                    good_for_s=float(good) if (good := _after(content, "good")) is not None else None,
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
                    settlements=tuple(_settlement(slot) for slot in slots if "=" in slot),
                    amendment=int(_after(slots, "amendment") or 0),
                )
            case ["amend", checkpoint, who, slots_written, *content]:
                return Amend(
                    now=now,
                    generation=generation,
                    checkpoint=CheckpointId(int(checkpoint)),
                    participant=ParticipantName(who),
                    amendment=int(_after(content, "amendment") or 0),
                    slots=frozenset(int(slot) for slot in slots_written.split(",")),
                    committables=_committables(_after(content, "slots"), "again "),
                )
            case ["acknowledge", "loss", checkpoint, who, *slots]:
                return AcknowledgeLoss(
                    now=now,
                    checkpoint=CheckpointId(int(checkpoint)),
                    participant=ParticipantName(who),
                    slots=frozenset(int(slot) for slot in slots),
                    reason="somebody knows",
                )
            case ["close", reason, *options]:
                back = float(_after(options, "back") or 0)
                return CloseJob(now=now, generation=generation, reason=CloseReason(reason), back_within_s=back)
            case ["request", token, kind, *options]:
                names = [word for word in options if word != "stop"]
                return RequestCheckpoint(
                    now=now,
                    request=RequestId(token),
                    kind=CheckpointKind(kind),
                    name=names[0] if names else "",
                    stop="stop" in options,
                )
            case ["stop"]:
                return StopJob(now=now)
            case ["cancel"]:
                return CancelJob(now=now)
            case ["forget"]:
                return ForgetJob(now=now, reason="somebody wants it")
            case ["restore", checkpoint]:
                return RequestRestore(now=now, source=self.completed[int(checkpoint)], reason="a person's reason")
            case ["release", checkpoint]:
                return ReleaseSavepoint(now=now, checkpoint=CheckpointId(int(checkpoint)))
            case ["resolve", checkpoint, who, slots_resolved, ruling, *options]:
                return Resolve(
                    now=now,
                    checkpoint=CheckpointId(int(checkpoint)),
                    participant=ParticipantName(who),
                    slots=frozenset(int(slot) for slot in slots_resolved.split(",")),
                    ruling=Ruling(ruling),
                    reason="a person's reason",
                    evidence=tuple(_settlement(option) for option in options if "=" in option),
                    forced="forced" in options,
                )
            case ["skip", who, "of", checkpoint, "to", position]:
                return SkipInput(
                    now=now,
                    base=CheckpointId(int(checkpoint)),
                    participant=ParticipantName(who),
                    positions=_document(f"position {position}"),
                    skipped=f"what was before {position}",
                    reason="a person's reason",
                )
            case ["orphan", *options]:
                claim = _claim(options)
                return TakeOrphan(now=now, claims=(claim,) if claim is not None else ())
            case ["after", seconds]:
                self.now += float(seconds)
                return Tick(now=self.now)
            case _:
                raise AssertionError(f"no such command: {command}")

    def _instead_of(self, options: list[str]) -> Generation:
        """The generation to take over from: the newest for ``takeover``, the named one for ``takeover gN``."""
        if "takeover" not in options:
            return NO_GENERATION
        named = re.search(r"takeover g(\d+)", " ".join(options))
        return Generation(int(named[1])) if named else self.state.durable.generation

    def _generation(self, command: str) -> tuple[str, Generation]:
        match = re.search(r" as g(\d+)$", command)
        if match is None:
            return command, self.state.durable.generation
        return command[: match.start()], Generation(int(match[1]))


def _settings(words: list[str]) -> CheckpointSettings:
    def value(text: str) -> str | int | None:
        return None if text == "none" else int(text) if text.isdigit() else text

    given = {name: value(text) for name, _, text in (word.partition("=") for word in words)}
    return CheckpointSettings(**given)  # type: ignore[arg-type]


def _after(words: list[str], word: str) -> str | None:
    return words[words.index(word) + 1] if word in words else None


def _claim(options: list[str]) -> Claim | None:
    if "claim" not in options:
        return None
    store, generation, completed = options[options.index("claim") + 1 :][:3]
    return Claim(
        store_id=store,
        generation=Generation(int(generation)),
        completed=CheckpointId(int(completed)),
        holder=_after(options, "by") or "",
    )


def _snapshot(words: list[str]) -> Snapshot:
    position = _after(words, "at")
    return Snapshot(
        positions=_document(f"position {position}") if position is not None else None,
        committables=_committables(_after(words, "slots"), ""),
        unchanged="unchanged" in words,
        next_at_once="more" in words,
    )


def _committables(slots: str | None, prefix: str) -> tuple[Committable, ...]:
    return tuple(
        Committable(slot=int(slot), document=_document(f"{prefix}slot {slot}"))
        for slot in (slots or "").split(",")
        if slot
    )


def _document(text: str) -> Document:
    return Document(kind="test", version=1, body={"is": text})


def _settlement(text: str) -> Settlement:
    slot, _, outcome = text.partition("=")
    return Settlement(slot=int(slot), outcome=Outcome(outcome), evidence=f"slot {slot} is {outcome}")


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
            return f"granted g{fact.generation} to {fact.driver}, ids through {fact.first_id} are taken"
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
            return f"skipped {fact.skipped}, so {fact.checkpoint} goes on from {fact.base}"
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
