"""Hunts for bugs of the store: random lives of a job on a real SQLite store."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from random import Random

from onceward.coordinator.store.errors import NoSuchCheckpointError
from onceward.coordinator.store.store import Store
from onceward.protocol.core import step
from onceward.protocol.durable import Durable
from onceward.protocol.facts import CheckpointCompleted, SavepointReleased
from onceward.protocol.state import JobState, restart
from onceward.protocol.values import CheckpointId, CheckpointKind, JobName
from tests.mutants.breaking import Break
from tests.mutants.hunts import random_moves
from tests.mutants.mutant import Finding
from tests.support.histories import Move
from tests.support.oracle import Invariant, Violation
from tests.support.stored_jobs import event_of

__all__ = ["Disk", "Promise"]

_JOB = JobName("orders")
_AT = datetime(2026, 1, 1, tzinfo=UTC)
_MEMORY = Path("/dev/shm")  # fast; power loss is not tested here


class Promise(StrEnum):
    """What a store owes to operators, besides the invariants of data."""

    SAVEPOINTS = "savepoints stay until they are released"
    ORDERED = "the checkpoint of an ordered restore stays"


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Prunes the store after every write, then reads it as a restart would."""

    name: str = "lives on a real store"
    most: int
    length: int = 60

    def find(self, breaks: Break) -> Finding | None:
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as directory, breaks():
            for number in range(1, self.most + 1):
                store = Store.open(f"sqlite:///{directory}/store-{number}.db")
                try:
                    violation = self._live(Random(number), store)
                finally:
                    store.close()
                if violation is not None:
                    return Finding(invariant=violation.invariant, text=violation.text, effort=f"{number} lives")
        return None

    def _live(self, random: Random, store: Store) -> Violation | None:
        now, savepoints, keep = 50.0, set[CheckpointId](), random.choice((1, 3, 3))
        state = JobState(durable=Durable(job=_JOB, store_id=store.store_id))
        for move in _moves(random, self.length):
            now += move.wait
            event = event_of(move, state, now, store) if move.kind != "restart" else None
            if event is None:
                continue
            pending = state.durable.pending
            state, ready = step(state, event)
            if not ready.facts:
                continue
            store.apply([(state.durable, ready.facts)], at=_AT)
            store.prune([(_JOB, 1 if state.durable.restore is not None else keep)])
            for fact in ready.facts:
                if isinstance(fact, CheckpointCompleted) and pending and pending.kind is CheckpointKind.SAVEPOINT:
                    savepoints.add(fact.checkpoint)
                if isinstance(fact, SavepointReleased):
                    savepoints.discard(fact.checkpoint)
            violation = _read(store, state.durable, savepoints)
            if violation is not None:
                return violation
            if random.random() < 0.1:
                state = restart(store.load_jobs()[0], now)
        return None


def _moves(random: Random, length: int) -> Iterator[Move]:
    """Random moves, with scripted groups in between: an operator resolves open slots, a driver settles and leaves, and
    an operator restores. Random moves alone hardly ever leave a job settled and without a driver, and they halt it
    sooner or later."""
    for move in random_moves(random, length):
        yield move
        if random.random() < 0.03:
            yield from (Move("close", 0.0, 0, 1), Move("resolve", 0.0, 0, 6))
            yield from (Move("go", 0.0, 0, 1) for _ in range(3))
            yield from (Move("close", 0.0, 0, 1), Move("restore", 0.0, 0, random.randint(0, 11)))


def _read(store: Store, durable: Durable, savepoints: set[CheckpointId]) -> Violation | None:
    """Check what a restart would find."""
    (found,) = store.load_jobs()
    if (found.base, found.unreadable) != (durable.base, ""):
        text = f"checkpoint {durable.base} is the newest completed one, and cannot be read: {found.unreadable}"
        return Violation(Invariant.RESTORED, text)
    if found.restore != durable.restore:
        return Violation(Promise.ORDERED, "the checkpoint to go back to is gone")
    if found != durable:
        return Violation(Invariant.REMEMBERED, "another state is read than was written")
    for number in sorted(savepoints):
        try:
            store.completed(_JOB, number)
        except NoSuchCheckpointError:
            return Violation(Promise.SAVEPOINTS, f"savepoint {number} is gone")
    return None
