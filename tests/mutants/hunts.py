"""Hunts for bugs in all interleavings of a small world and in random lives of the core."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from onceward.protocol.core import step
from onceward.protocol.durable import Durable
from onceward.protocol.events import Acknowledge
from onceward.protocol.state import JobState, restart
from onceward.protocol.values import CheckpointId, JobName
from tests.explorer.search import explore
from tests.explorer.ways_out import explore_ways_out
from tests.explorer.world import Bounds
from tests.mutants.breaking import Break
from tests.mutants.mutant import Finding
from tests.support.histories import Move, to_event
from tests.support.life import Life
from tests.support.oracle import Violation

__all__ = ["Exploration", "Lives", "WaysOut", "random_moves"]

_KINDS = (
    *("go",) * 40,
    *("open", "watch", "ack", "ack", "settle", "settle", "decline", "renew", "lost", "close", "tick", "restart"),
    *("request", "request", "stop", "cancel", "restore", "release", "amend"),
)


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Searches every interleaving within the bounds."""

    name: str
    bounds: Bounds

    def find(self, breaks: Break) -> Finding | None:
        with breaks():
            result = explore(self.bounds)
        if result.violation is None:
            return None
        return Finding(
            invariant=result.violation.invariant,
            text=result.violation.text,
            effort=f"{result.states:,} states",
        )


@dataclass(frozen=True, kw_only=True)
class WaysOut:
    """Searches every situation of a completed checkpoint with two slots."""

    name: str = "ways out"
    depth: int = 5

    def find(self, breaks: Break) -> Finding | None:
        with breaks():
            explored = explore_ways_out(depth=self.depth)
        if explored.violation is None:
            return None
        return Finding(
            invariant=explored.violation.invariant,
            text=explored.violation.text,
            effort=f"{explored.situations:,} situations",
        )


@dataclass(frozen=True, kw_only=True)
class Lives:
    """Plays random lives of one job in the core alone, with every kind of event."""

    name: str = "lives"
    most: int
    length: int = 80

    def find(self, breaks: Break) -> Finding | None:
        with breaks():
            for number in range(1, self.most + 1):
                violation = self._live(Random(number))
                if violation is not None:
                    return Finding(invariant=violation.invariant, text=violation.text, effort=f"{number:,} lives")
        return None

    def _live(self, random: Random) -> Violation | None:
        now, life = 50.0, Life()
        state = JobState(durable=Durable(job=JobName("orders"), store_id="this"))
        for move in random_moves(random, self.length):
            now += move.wait
            if move.kind == "restart":
                state = restart(state.durable, now)
                violation = life.restarted(state)
            else:
                event = to_event(move, state, now)
                if isinstance(event, Acknowledge) and random.random() < 0.05:
                    event = replace(event, base=CheckpointId(max(0, event.base - 1)))
                before = state
                state, ready = step(state, event)
                violation = life.stepped(before, event, ready, state)
            if violation is not None:
                return violation
        return None


def random_moves(random: Random, length: int) -> Iterator[Move]:
    """Random moves. Most are independent, but some work only in groups: a restore right after the driver has left, and
    a checkpoint in which no participant has anything new."""
    for _ in range(length):
        dice = random.random()
        if dice < 0.02:
            yield _move(random, "close")
            yield _move(random, "restore")
        elif dice < 0.05:
            for choice in (2, 11, 10):
                yield Move("go", 0.5, 0, choice)
        yield _move(random, random.choice(_KINDS))


def _move(random: Random, kind: str) -> Move:
    """A random move; most refer to something that exists."""
    return Move(
        kind=kind,
        wait=random.choice((0.0, 0.0, 0.01, 0.5, 1.0, 5.0)),
        off=random.choice((0, 0, 0, 0, 0, 1, -1)),
        choice=random.randint(0, 11),
    )
