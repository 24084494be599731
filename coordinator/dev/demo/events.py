"""What the drivers wrote down about transactions, one JSON object per line (``ONCEWARD_EVENTS``)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["EVENTS_VARIABLE", "Event", "EventReader", "Told", "told_by"]

Event: TypeAlias = Mapping[str, Any]

EVENTS_VARIABLE = "ONCEWARD_EVENTS"


@dataclass(frozen=True, kw_only=True)
class Told:
    """Sums over all generations."""

    generations: int
    resumed: int
    """Transactions of completed checkpoints that a later generation committed."""
    completed: int
    """Checkpoints."""
    aborted: int
    """Checkpoints."""


class EventReader:
    """Reads the file as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[Event]:
        """Events since the last call. Whole lines only."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def told_by(path: Path) -> Told:
    """Sum up the events written so far."""
    resumed = 0
    by_kind: dict[str, set[int]] = {"completed": set(), "aborted": set()}
    generations: set[int] = set()
    for event in EventReader(path).new():
        generations.add(int(event.get("generation", 0)))
        kind = event.get("event")
        if kind == "recovered":
            resumed += int(event.get("resumed", 0))
        elif kind in by_kind:
            by_kind[kind].add(int(event["checkpoint"]))
    return Told(
        generations=len(generations - {0}),
        resumed=resumed,
        completed=len(by_kind["completed"]),
        aborted=len(by_kind["aborted"]),
    )
