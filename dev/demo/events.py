"""Events that the drivers write while they run, one JSON object per line: for the screen, not for the check."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["EVENTS_VARIABLE", "Event", "EventReader"]

EVENTS_VARIABLE = "ONCEWARD_EVENTS"

Event: TypeAlias = Mapping[str, Any]


class EventReader:
    """Reads the file as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[Event]:
        """Yield the events since the last call. Whole lines only: the last one may be incomplete."""
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
