"""Builds the core's events from commands, the words of scenarios.

Events: ``open DRIVER [takeover [gN]] [without sink|and other] [replaying|skipping] [claim STORE GENERATION CHECKPOINT
[by HOLDER]]..`` (``takeover``: the driver knows that the former one is gone; ``and other``: with two sinks; a claim for
each system), ``permit takeover``, ``permit claim STORE GENERATION CHECKPOINT``, ``watch``, ``lost``, ``renew [aborted
N]``, ``ack N WHO on BASE [at POSITION] [slots A,B] [unchanged] [more] [good SECONDS]``, ``decline N WHO``, ``close
REASON [back SECONDS]``,
``settle N WHO [amendment K] SLOT=OUTCOME..``, ``amend N WHO SLOT,SLOT [amendment K] [slots A,B]``, ``acknowledge loss
N WHO SLOT..``, ``request ID checkpoint|savepoint [NAME] [stop]``, ``stop``, ``cancel``, ``forget``, ``restore N``,
``release N``, ``resolve N WHO SLOT,SLOT RULING [SLOT=OUTCOME..] [forced]``, ``skip WHO of BASE to POSITION``, ``orphan
[holding HOLDER] [claim STORE GENERATION CHECKPOINT [by HOLDER]]`` (the coordinator takes the job), ``after SECONDS``
(time passes, then a tick). A final ``as gN`` sends the event for a generation other than the newest, ``as gN of
DRIVER`` also says which driver sends it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from onceward.protocol import events
from onceward.protocol.requests import Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    NO_GENERATION,
    CheckpointId,
    CheckpointKind,
    Claim,
    Committable,
    CompletedCheckpoint,
    Generation,
    OnLost,
    Outcome,
    Participant,
    ParticipantName,
    RequestId,
    Role,
    Settlement,
    Snapshot,
)
from tests.support.documents import committable, document

__all__ = ["OTHER", "SINK", "SOURCE", "event"]

SOURCE = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="kafka")
SINK = Participant(name=ParticipantName("sink"), role=Role.SINK, kind="kafka")
OTHER = Participant(name=ParticipantName("other"), role=Role.SINK, kind="kafka")
"""A second sink of a job."""


def event(
    command: str,
    *,
    now: float,
    newest: Generation,
    settings: CheckpointSettings,
    completed: Mapping[int, CompletedCheckpoint] = MappingProxyType({}),
) -> events.Event:
    """The event that a command means. ``newest``: the generation that sends it, unless it names another one.
    ``completed``: what a ``restore`` may go back to."""
    sender = re.search(r"(?<= as g)(\d+) of (\S+)$", command)
    if sender is not None:
        sent = event(command[: sender.end(1)], now=now, newest=newest, settings=settings, completed=completed)
        return replace(sent, driver=sender[2])  # type: ignore[arg-type]
    command, generation = _generation(command, newest)
    words = command.split()
    match words:
        case ["open", driver, *options]:
            policies = {"replaying": OnLost.REPLAY, "skipping": OnLost.SKIP}
            policy = next((policies[option] for option in options if option in policies), OnLost.HALT)
            sinks = (OTHER,) if "without" in options else (SINK, OTHER) if "and" in options else (SINK,)
            claim, *more = _claims(options) or [None]
            return events.OpenJob(
                now=now,
                driver=driver,
                participants=(SOURCE, *(replace(sink, on_lost=policy) for sink in sinks)),
                settings=settings,
                claim=claim,
                more_claims=tuple(one for one in more if one is not None),
                instead_of=_instead_of(options, newest),
            )
        case ["watch"]:
            return events.Watch(now=now, generation=generation)
        case ["lost"]:
            return events.StreamLost(now=now, generation=generation)
        case ["renew", *options]:
            aborted = CheckpointId(int(_after(options, "aborted") or 0))
            return events.Renew(now=now, generation=generation, aborted=aborted)
        case ["ack", checkpoint, who, "on", base, *content]:
            return events.Acknowledge(
                now=now,
                generation=generation,
                checkpoint=CheckpointId(int(checkpoint)),
                participant=ParticipantName(who),
                base=CheckpointId(int(base)),
                snapshot=_snapshot(content),
                good_for_s=float(good) if (good := _after(content, "good")) is not None else None,
            )
        case ["decline", checkpoint, who]:
            return events.Decline(
                now=now,
                generation=generation,
                checkpoint=CheckpointId(int(checkpoint)),
                participant=ParticipantName(who),
                reason="no",
            )
        case ["settle", checkpoint, who, *slots]:
            return events.Settle(
                now=now,
                generation=generation,
                checkpoint=CheckpointId(int(checkpoint)),
                participant=ParticipantName(who),
                settlements=tuple(_settlement(slot) for slot in slots if "=" in slot),
                amendment=int(_after(slots, "amendment") or 0),
            )
        case ["amend", checkpoint, who, slots_written, *content]:
            return events.Amend(
                now=now,
                generation=generation,
                checkpoint=CheckpointId(int(checkpoint)),
                participant=ParticipantName(who),
                amendment=int(_after(content, "amendment") or 0),
                slots=frozenset(int(slot) for slot in slots_written.split(",")),
                committables=_committables(_after(content, "slots"), "again "),
            )
        case ["close", "output", who]:
            return events.CloseOutput(now=now, participant=ParticipantName(who), reason="Ada knows")
        case ["acknowledge", "loss", checkpoint, who, *slots]:
            return events.AcknowledgeLoss(
                now=now,
                checkpoint=CheckpointId(int(checkpoint)),
                participant=ParticipantName(who),
                slots=frozenset(int(slot) for slot in slots),
                reason="Ada knows",
            )
        case ["close", reason, *options]:
            back = float(_after(options, "back") or 0)
            return events.CloseJob(
                now=now,
                generation=generation,
                reason=events.CloseReason(reason),
                back_within_s=back,
                completed=CheckpointId(int(_after(options, "knows") or 0)),
            )
        case ["request", token, kind, *options]:
            names = [word for word in options if word != "stop"]
            return events.RequestCheckpoint(
                now=now,
                request=RequestId(token),
                kind=CheckpointKind(kind),
                name=names[0] if names else "",
                stop="stop" in options,
            )
        case ["stop"]:
            return events.StopJob(now=now)
        case ["cancel"]:
            return events.CancelJob(now=now)
        case ["forget"]:
            return events.ForgetJob(now=now, reason="Ada wants it")
        case ["restore", checkpoint]:
            return events.RequestRestore(now=now, source=completed[int(checkpoint)], reason="a person's reason")
        case ["permit", "takeover"]:
            return events.PermitTakeover(now=now, generation=generation, reason="a person's reason")
        case ["permit", "claim", *_] if (claim := _claim(words)) is not None:
            return events.PermitAdoption(now=now, claim=claim, reason="a person's reason")
        case ["release", checkpoint]:
            return events.ReleaseSavepoint(now=now, checkpoint=CheckpointId(int(checkpoint)))
        case ["resolve", checkpoint, who, slots_resolved, ruling, *options]:
            return events.Resolve(
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
            return events.SkipInput(
                now=now,
                base=CheckpointId(int(checkpoint)),
                participant=ParticipantName(who),
                positions=document(text=f"position {position}"),
                skipped=f"what was before {position}",
                reason="a person's reason",
            )
        case ["orphan", *options]:
            claim = _claim(options)
            holder = _after(options, "holding") or "coordinator"
            return events.TakeOrphan(now=now, holder=holder, claims=(claim,) if claim is not None else ())
        case ["after", seconds]:
            return events.Tick(now=now + float(seconds))
        case _:
            raise AssertionError(f"no such command: {command}")


def _generation(command: str, newest: Generation) -> tuple[str, Generation]:
    match = re.search(r" as g(\d+)$", command)
    if match is None:
        return command, newest
    return command[: match.start()], Generation(int(match[1]))


def _instead_of(options: list[str], newest: Generation) -> Generation:
    """The generation to take over from: the newest for ``takeover``, the named one for ``takeover gN``."""
    if "takeover" not in options:
        return NO_GENERATION
    named = re.search(r"takeover g(\d+)", " ".join(options))
    return Generation(int(named[1])) if named else newest


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
        amendment=int(_after(options, "amendment") or 0),
    )


def _claims(options: list[str]) -> tuple[Claim, ...]:
    """One for each system."""
    starts = [number for number, word in enumerate(options) if word == "claim"]
    found = (_claim(options[start:end]) for start, end in pairwise([*starts, len(options)]))
    return tuple(claim for claim in found if claim is not None)


def _snapshot(words: list[str]) -> Snapshot:
    position = _after(words, "at")
    return Snapshot(
        positions=document(text=f"position {position}") if position is not None else None,
        committables=_committables(_after(words, "slots"), ""),
        unchanged="unchanged" in words,
        next_at_once="more" in words,
    )


def _committables(slots: str | None, prefix: str) -> tuple[Committable, ...]:
    return tuple(committable(int(slot), text=f"{prefix}slot {slot}") for slot in (slots or "").split(",") if slot)


def _settlement(text: str) -> Settlement:
    slot, _, outcome = text.partition("=")
    return Settlement(slot=int(slot), outcome=Outcome(outcome), evidence=f"slot {slot} is {outcome}")
