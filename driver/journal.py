"""The log of a run's protocol transitions: one log line each, and one JSON line each in a file for programs that watch.

``ONCEWARD_EVENTS`` names the file. Each line is appended by one ``write``, so several processes may share the file.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from onceward.common.printable import log_fields, logger

EVENTS_VARIABLE = "ONCEWARD_EVENTS"

_log = logger("onceward.pipeline")


class Journal:
    """Writes ``{"event": ..., "at": seconds since the epoch, "job": ..., ...}``."""

    def __init__(self, job: str, follow: Callable[[str, Mapping[str, Any]], None] | None = None) -> None:
        """``follow``: called with each event and its facts, in the thread that reports it; must not raise."""
        self._job = job
        self._follow = follow
        self._path = os.environ.get(EVENTS_VARIABLE)
        self.generation = 0

    def log(self, event: str, **facts: Any) -> None:
        """Record one transition. Facts are ids, counts and reasons; never records or secrets."""
        line = {"event": event, "job": self._job, "generation": self.generation, **facts}
        _log.info("%s", log_fields(line))
        self.show(event, **facts)
        if self._path:
            text = json.dumps({**line, "at": time.time()}) + "\n"
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)

    def show(self, event: str, **facts: Any) -> None:
        """Show metrics alone what happens, too often or in too much detail for the log."""
        if self._follow is not None:
            self._follow(event, {"generation": self.generation, **facts})
