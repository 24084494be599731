"""Which links of this process do not work now: since when, why, and what waits. For the log, and for listings.

A link is the way to one peer, in words for people: ``cluster 'main'``, ``coordinator at localhost:7878``. Whoever uses
it says after each attempt how it went; nothing is asked here.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from onceward.coordinator.printable import logger

__all__ = ["Links", "Trouble"]

_log = logger("onceward.links")

TELL_EVERY_S = 10.0
"""Lines about one link, at most: one that comes and goes all the time must not fill the log."""
FORGET_AFTER_S = 120.0
"""Without another attempt: a broker that was removed is never asked again."""
MAX_LINKS = 64
"""Broken at the same time; others are not told."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A link that does not work."""

    link: str
    for_s: float
    """Seconds since the first attempt that failed."""
    why: str
    """Of the last attempt."""
    waiting: str
    """What the last attempt was for."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    since: float
    last: float
    """Attempt."""
    why: str
    waiting: str
    told: bool = False


class Links:
    """The broken links of one process. Thread-safe. Log lines name the link, since when, and what waits: when it
    begins, every 10 s while it lasts, and when it is over."""

    def __init__(self, *, clock: Callable[[], float] | None = None, wall: Callable[[], datetime] | None = None) -> None:
        self._clock = clock or (lambda: time.monotonic())
        self._wall = wall or (lambda: datetime.now(UTC))
        self._lock = threading.Lock()
        self._broken: dict[str, _Entry] = {}
        self._told: dict[str, float] = {}
        """When a line about a link was written last."""
        self._follow: Callable[[], None] = lambda: None

    def follow(self, look: Callable[[], None]) -> None:
        """``look`` is called after each attempt that failed and when a trouble is over, by the thread of the attempt;
        it may ask for `troubles`, must be quick, and must not raise."""
        self._follow = look

    def failed(self, link: str, why: object, *, waiting: str) -> None:
        """An attempt was not answered."""
        now = self._clock()
        with self._lock:
            before = self._broken.get(link)
            if before is None and len(self._broken) >= MAX_LINKS:
                return
            entry = _Entry(
                since=now if before is None else before.since,
                last=now,
                why=str(why),
                waiting=waiting,
                told=before is not None and before.told,
            )
            tells = self._may_tell(link, now)
            self._broken[link] = replace(entry, told=True) if tells else entry
        if tells:
            self._tell(logging.WARNING, "link_down", link, entry, now, waits=waiting, why=entry.why)
        self._follow()

    def worked(self, link: str) -> None:
        """An attempt was answered."""
        if link not in self._broken:
            return
        now = self._clock()
        with self._lock:
            entry = self._broken.pop(link, None)
            if entry is None:
                return
            if entry.told:
                self._told[link] = now
        if entry.told:
            self._tell(logging.INFO, "link_up", link, entry, now, lasted_s=round(now - entry.since, 1))
        self._follow()

    def troubles(self) -> tuple[Trouble, ...]:
        """The links that do not work now, the oldest trouble first."""
        self._forget()
        now = self._clock()
        with self._lock:
            broken = sorted(self._broken.items(), key=lambda item: item[1].since)
        return tuple(
            Trouble(link=link, for_s=now - entry.since, why=entry.why, waiting=entry.waiting) for link, entry in broken
        )

    def _may_tell(self, link: str, now: float) -> bool:
        if now - self._told.get(link, float("-inf")) < TELL_EVERY_S:
            return False
        self._told = {known: at for known, at in self._told.items() if now - at < TELL_EVERY_S}
        self._told[link] = now
        return True

    def _forget(self) -> None:
        now = self._clock()
        with self._lock:
            old = {link: entry for link, entry in self._broken.items() if now - entry.last > FORGET_AFTER_S}
            for link in old:
                del self._broken[link]
        for link, entry in old.items():
            if entry.told:
                self._tell(logging.INFO, "link_unused", link, entry, now, last_why=entry.why)

    def _tell(self, level: int, event: str, link: str, entry: _Entry, now: float, **facts: object) -> None:
        since = (self._wall() - timedelta(seconds=now - entry.since)).astimezone().isoformat("T", "seconds")
        shown = " ".join(f"{name}={value!r}" for name, value in facts.items())
        _log.log(level, "event=%s link=%r since=%s %s", event, link, since, shown)
