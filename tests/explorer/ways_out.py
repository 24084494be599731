"""Every situation of a small job has a way out.

One checkpoint with two slots is completed. Then everything that brokers, drivers, the coordinator in place of a driver,
people and the disk can do to it happens, in every order. From each situation the job continues without further faults:
people decide what only they can, and drivers and the coordinator carry out their instructions. The job must complete
and settle a later checkpoint. While no driver comes, the coordinator alone must settle what is neither lost nor in
doubt.

The other worlds have one slot, and no person who decides about it.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from onceward.protocol import orphans
from onceward.protocol.answers import Complete, Fail, Halt, Replay, Trigger
from onceward.protocol.core import wanted
from onceward.protocol.durable import Durable
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.protocol.values import CheckpointKind, Outcome, ParticipantName
from tests.explorer.coordinator import frozen
from tests.support.oracle import Invariant, Violation
from tests.support.player import Player

__all__ = ["Explored", "explore_ways_out"]

_SINK = ParticipantName("sink")
_BEGINNING = (
    "open d1 replaying",
    "watch",
    "ack 1 source on 0 at 1",
    "ack 1 sink on 0",
    "request r1 checkpoint",
    "ack 2 source on 1 at 2",
    "ack 2 sink on 1 slots 0,1",
)
_FATE = 2
"""The checkpoint under test."""
_LONG = 40
"""The maximum of events on a way out; a longer one is taken to go in circles."""


@dataclass(frozen=True, kw_only=True)
class Explored:
    """The result of an exploration."""

    situations: int
    violation: Violation | None = None
    scenario: str = ""
    """The scenario that shows the violation."""


class _Path(NamedTuple):
    player: Player
    commands: tuple[str, ...]


def explore_ways_out(*, depth: int = 6, generations: int = 3) -> Explored:
    """Explore everything within ``depth`` events and ``generations``. Reports the first situation without a way out, if
    any."""
    layer, seen = [_played(_Path(_new_player(), ()), _BEGINNING)], set[object]()
    for _ in range(depth + 1):
        following: list[_Path] = []
        for path in layer:
            key = _situation(path.player)
            if key in seen:
                continue
            seen.add(key)
            for alone in (False, True):
                way, violation = _follow(path, alone=alone)
                if violation is not None:
                    return Explored(situations=len(seen), violation=violation, scenario=_scenario(way, violation))
            following += [_played(path, _events(command)) for command in _moves(path.player, generations)]
        layer = following
    return Explored(situations=len(seen))


def _events(command: str) -> tuple[str, ...]:
    """Let time pass first for an orphan: the coordinator takes no job early, and waiting does not change a
    situation."""
    return ("after 31", command) if command == "orphan" else (command,)


def _new_player() -> Player:
    return Player(CheckpointSettings(interval="1h"))


def _played(path: _Path, commands: tuple[str, ...]) -> _Path:
    player = copy.copy(path.player)
    player.completed = dict(player.completed)
    for command in commands:
        player.play(command)
    return _Path(player, (*path.commands, *commands))


def _situation(player: Player) -> object:
    """A key that is equal for states that differ only in when they were reached, and by which driver."""
    state = player.state
    durable = replace(
        state.durable,
        status_detail="",
        driver="d" if state.durable.driven else state.durable.driver,
        requests=(),
        aborted=None,
        resolution=None,
    )
    stream = state.session is not None and state.session.stream_lost_at is None
    return frozen(durable), frozen(state.settled_slots), stream


def _moves(player: Player, generations: int) -> Iterator[str]:
    """The events that can happen next; refused ones change nothing."""
    state, durable = player.state, player.state.durable
    completed = durable.completed
    if completed is not None and completed.id == _FATE:
        slots = [committable.slot for committable in completed.snapshots[_SINK].committables]
        for slot in slots:
            if durable.driver is not None:
                yield from (f"{_settle(player)} {slot}={outcome.value}" for outcome in Outcome)
            yield from (f"resolve {_FATE} sink {slot} {ruling}" for ruling in ("committed", "given_up", "replay"))
        yield "damage"
    if durable.driven:
        yield "close failed"
        for slot in durable.replaying.get(_SINK, ()):
            yield f"amend {_FATE} sink {slot} amendment {completed.amendment if completed else 0} slots {slot}"
        if durable.replaying:
            yield f"decline {_FATE} sink"
    elif durable.generation < generations:
        yield from (f"open d{durable.generation + 1} {policy}".strip() for policy in ("replaying", "skipping", ""))
        if orphans.due(state) is not None:
            yield "orphan"
    yield "restore 1"
    yield "restart"
    yield "after 31"


def _settle(player: Player) -> str:
    completed = player.state.durable.completed
    assert completed is not None
    return f"settle {completed.id} sink amendment {completed.amendment}"


def _follow(path: _Path, *, alone: bool) -> tuple[_Path, Violation | None]:
    """Follow the way out. Returns the path, and a violation if it leads nowhere."""
    goal = path.player.state.durable.last_id
    for _ in range(_LONG):
        player = path.player
        durable = player.state.durable
        if durable.base > goal and durable.settled and durable.pending is None and not _restored(durable):
            return path, None
        command = _alone(player) if alone and not durable.driven else None
        if command == "":
            text = f"checkpoint {durable.base} is decided, but what is neither lost nor in doubt stays unsettled"
            return path, Violation(Invariant.ALONE, text)
        path = _played(path, (command or _next(player),))
    return path, Violation(Invariant.SETTLED, "the job never completes another checkpoint")


def _restored(durable: Durable) -> bool:
    return durable.completed is not None and durable.completed.kind is CheckpointKind.RESTORE


def _alone(player: Player) -> str | None:
    """The coordinator's next event in place of a driver. None when it is done, empty when it is stuck."""
    state, durable = player.state, player.state.durable
    completed = durable.completed
    if durable.awaits_driver or durable.unreadable or completed is None or completed.settled:
        return None
    if durable.status is JobStatus.HALTED:
        return None
    due = orphans.due(state)
    if due is not None:
        return "orphan" if player.now >= due else "after 31"
    out = durable.replaying.get(_SINK, frozenset()) | state.settled_slots.get(_SINK, frozenset())
    left = [one.slot for one in completed.snapshots[_SINK].committables if one.slot not in out]
    if left:
        return f"{_settle(player)} " + " ".join(f"{slot}=committed" for slot in left)
    return None if durable.replaying else ""


def _next(player: Player) -> str:
    """The next event of a person, a driver or time."""
    state, durable = player.state, player.state.durable
    if not durable.driven:
        return _person(player) or f"open d{durable.generation + 1} replaying"
    if durable.unreadable:
        return "after 31"  # the driver is fenced and given up
    if state.session is None or state.session.stream_lost_at is not None:
        return "watch"
    for instruction in wanted(state):
        match instruction:
            case Fail() | Halt():
                return "close failed"
            case Replay(checkpoint=checkpoint, slots=slots, amendment=amendment):
                listed = ",".join(map(str, sorted(slots)))
                return f"amend {checkpoint} sink {listed} amendment {amendment} slots {listed}"
            case Complete(checkpoint=checkpoint) if durable.completed is not None:
                slots_left = [one.slot for one in durable.completed.snapshots[_SINK].committables]
                return f"{_settle(player)} " + " ".join(f"{slot}=committed" for slot in slots_left)
            case Trigger(checkpoint=checkpoint, base=base):
                source = state.pending is not None and "source" in state.pending.answers
                content = "sink on {} slots 0" if source else "source on {} at 9"
                return f"ack {checkpoint} {content.format(base)}"
            case _:
                pass
    return f"request r{durable.last_id} checkpoint"


def _person(player: Player) -> str | None:
    """The next event that only a person can cause; None if there is none."""
    durable = player.state.durable
    if durable.unreadable:
        return "restore 1" if durable.restore is None else None
    for slot, outcome in sorted(durable.unresolved.get(_SINK, {}).items()):
        ruling = "given_up" if outcome is Outcome.LOST else "committed"
        return f"resolve {durable.base} sink {slot} {ruling}"
    return None


def _scenario(path: _Path, violation: Violation) -> str:
    player = _new_player()
    lines = [f"# Broken: {violation.invariant.value}.", f"# {violation.text}", "settings interval=1h"]
    for command in path.commands:
        lines += [f"> {command}", *player.play(command)]
    return "\n".join(lines) + "\n"
