"""Which transactional ids workers may reuse, and which are no longer used.

Spark ends a worker process that idles for a minute, without notice, so its ids would be offered forever. Therefore only
a bounded number of ids is offered, the most recently used ones. An id that is no longer offered is never used again;
its receipt can be deleted once every run of tasks that was offered the id is over.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping

from onceward.sinks.kafka.control.hanging import LAST_EPOCH

__all__ = ["ROOM", "ReusableIds"]

_KEPT_PER_SLOT = 4
"""A slot uses one id while the previous one settles, and its worker holds a third one ready."""
_KEPT_AT_LEAST = 16
ROOM = 64
"""Epochs between an id's last use and the last: its end and each attempt to write skipped markers may raise
the epoch. At the last epoch the id may get another producer id, and none could be written."""


class ReusableIds:
    """The reusable ids of one generation of a sink. Called by the driver's main thread and by the settling thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs = 0
        self._offers: dict[int, int] = {}
        """Run -> the checkpoint after which its tasks use what it was offered, for each run that may not be over."""
        self._last_run: dict[int, int] = {}
        """Checkpoint -> the last run of tasks that wrote for it, until the checkpoint is settled."""
        self._pairs: dict[str, tuple[int, int]] = {}
        """Id suffix -> (producer id, epoch) of its last settled transaction, for every id that was offered."""
        self._free: OrderedDict[str, int] = OrderedDict()
        """Id suffix -> the checkpoint that last used it, settled as committed; least recently used first."""
        self._dropped: dict[str, int] = {}
        """Id suffix -> the last run that may have been offered the id."""
        self._most_slots = 0

    def offered(self, after: int = 0) -> dict[str, int]:
        """Start a run, whose tasks use the offer once ``after`` is written; return the ids that they may reuse: id
        suffix -> the checkpoint that last used it."""
        with self._lock:
            self._runs += 1
            self._offers[self._runs] = after
            return dict(self._free)

    def written(self, checkpoint: int) -> None:
        """Record that `checkpoint` was written: the last run whose offer was used for it is over."""
        with self._lock:
            run = max((run for run, after in self._offers.items() if after < checkpoint), default=0)
            self._last_run[checkpoint] = run
            self._offers = {other: after for other, after in self._offers.items() if other >= run}

    def pair(self, suffix: str) -> tuple[int, int] | None:
        """Return (producer id, epoch) of the id's last settled transaction; None if it is new."""
        with self._lock:
            return self._pairs.get(suffix)

    def settled(self, checkpoint: int, used: Mapping[str, tuple[int, int]]) -> list[str]:
        """Record that `checkpoint` is settled, and every earlier one settled or aborted, which frees the ids ``used``:
        id suffix -> (producer id, epoch). Returns ids that are no longer used, each only once."""
        with self._lock:
            self._most_slots = max(self._most_slots, len(used))
            self._pairs.update(used)
            for suffix in used:
                self._dropped.pop(suffix, None)
                self._free[suffix] = checkpoint
                self._free.move_to_end(suffix)
            run = self._last_run.get(checkpoint, 0)
            self._last_run = {other: at for other, at in self._last_run.items() if other > checkpoint}
            unused = [suffix for suffix, last in self._dropped.items() if last <= run]
            for suffix in unused:
                del self._dropped[suffix], self._pairs[suffix]
            for suffix in [suffix for suffix, (_, epoch) in used.items() if epoch + ROOM >= LAST_EPOCH]:
                del self._free[suffix]
                self._dropped[suffix] = self._runs
            while len(self._free) > max(_KEPT_AT_LEAST, _KEPT_PER_SLOT * self._most_slots):
                self._dropped[self._free.popitem(last=False)[0]] = self._runs
            return unused
