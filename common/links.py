"""Which links of this process do not work now: since when, why, and what waits. For the log and for listings.

A link is the connection to one peer, named for people: ``cluster 'main'``, ``coordinator at localhost:7878``. Its users
report the result of each attempt; this module makes no attempts. What answers and still holds the process back, such as
an open transaction in its input, is reported in the same way.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from onceward.common.printable import log_fields, logger

__all__ = ["Links", "Trouble"]

_log = logger("onceward.links")

LOG_EVERY_S = 10.0
"""Minimum time between reports that one link is down: an unsteady link must not fill the log."""
HELD_LOG_AFTER_S = 60.0
"""Time before what holds this process back is logged first: most of it ends within moments, as it should."""
HELD_LOG_EVERY_S = 600.0
"""Minimum time between two such reports."""
FORGET_AFTER_S = 120.0
"""A link is forgotten after this time without an attempt: a removed broker gets no further requests."""
MAX_LINKS = 64
"""Most links recorded as broken at the same time; others are not reported."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A link that does not work."""

    link: str
    for_s: float
    """Seconds since the first attempt that failed."""
    why: str
    """Reason of the last failure."""
    waiting: str
    """What the last attempt was for."""
    held: bool = False
    """It answers, and holds back what waits."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    since: float
    last: float
    """Time of the last attempt."""
    why: str
    waiting: str
    held: bool = False
    logged: bool = False


class Links:
    """The broken links of one process. Thread-safe. Log lines name the link, since when, and what waits: at the first
    failure, every 10 s while it lasts, and at its end."""

    def __init__(self, *, clock: Callable[[], float] | None = None, wall: Callable[[], datetime] | None = None) -> None:
        self._clock = clock or (lambda: time.monotonic())
        self._wall = wall or (lambda: datetime.now(UTC))
        self._lock = threading.Lock()
        self._broken: dict[str, _Entry] = {}
        self._logged_at: dict[str, float] = {}
        """When the last line about each link was written."""
        self._follow: Callable[[], None] = lambda: None
        self._hanging: set[str] = set()
        self.finished = 0
        """Transactions that hung and that this process has finished."""

    def follow(self, look: Callable[[], None]) -> None:
        """Call ``look`` after each failed attempt and when a link works again, in the thread of the attempt. ``look``
        may call `troubles`; it must be quick and must not raise."""
        self._follow = look

    def failed(self, link: str, why: object, *, waiting: str, news: bool = False, held: bool = False) -> None:
        """Record an attempt without an answer. ``news`` is logged whenever the link was last reported. ``held``: it
        answers, and holds back what waits."""
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
                held=held,
                logged=before is not None and before.logged,
            )
            logs = (not held or now - entry.since >= HELD_LOG_AFTER_S) and self._may_log(link, now, news, held=held)
            self._broken[link] = replace(entry, logged=True) if logs else entry
        if logs:
            event = "held_back" if held else "link_down"
            self._report(event, link, entry, now, waits=waiting, why=entry.why)
        self._follow()

    def worked(self, link: str) -> None:
        """Record an answered attempt."""
        if link not in self._broken:
            return
        now = self._clock()
        with self._lock:
            entry = self._broken.pop(link, None)
            if entry is None:
                return
            if entry.logged:
                self._logged_at[link] = now
        if entry.logged:
            event = "held_no_more" if entry.held else "link_up"
            self._report(event, link, entry, now, lasted_s=round(now - entry.since, 1))
        self._follow()

    @property
    def hanging(self) -> tuple[str, ...]:
        """Transactions that were found hanging and that this process could not finish yet. None is ever forgotten
        without a look: readers wait behind it until it is ended."""
        return tuple(sorted(self._hanging))

    def hangs(self, transaction: str, where: str, why: object) -> None:
        """Record a transaction that its brokers do not end, and that this process cannot finish now. ``where``: what
        waits behind it."""
        with self._lock:
            if len(self._hanging) < MAX_LINKS:
                self._hanging.add(transaction)
        self.failed(_hanging(transaction), why, waiting=where, held=True)

    def hangs_no_more(self, transaction: str, *, by_us: bool) -> None:
        """Record that a transaction was ended after all. ``by_us``: this process has finished it."""
        with self._lock:
            self._hanging.discard(transaction)
            self.finished += by_us
        self.worked(_hanging(transaction))

    def troubles(self) -> tuple[Trouble, ...]:
        """Return the links that do not work now, the oldest trouble first."""
        self._forget()
        now = self._clock()
        with self._lock:
            broken = sorted(self._broken.items(), key=lambda item: item[1].since)
        return tuple(
            Trouble(link=link, for_s=now - entry.since, why=entry.why, waiting=entry.waiting, held=entry.held)
            for link, entry in broken
        )

    def _may_log(self, link: str, now: float, news: bool, *, held: bool) -> bool:
        every = HELD_LOG_EVERY_S if held else LOG_EVERY_S
        if not news and now - self._logged_at.get(link, float("-inf")) < every:
            return False
        self._logged_at = {known: at for known, at in self._logged_at.items() if now - at < HELD_LOG_EVERY_S}
        self._logged_at[link] = now
        return True

    def _forget(self) -> None:
        now = self._clock()
        with self._lock:
            kept = {_hanging(transaction) for transaction in self._hanging}
            unused = {link: entry for link, entry in self._broken.items() if now - entry.last > FORGET_AFTER_S}
            old = {link: entry for link, entry in unused.items() if link not in kept}
            for link in old:
                del self._broken[link]
        for link, entry in old.items():
            if entry.logged:
                self._report("link_unused", link, entry, now, last_why=entry.why)

    def _report(self, event: str, link: str, entry: _Entry, now: float, **facts: object) -> None:
        """Begin and end at one level: a log that shows the one shows the other."""
        since = (self._wall() - timedelta(seconds=now - entry.since)).astimezone().isoformat("T", "seconds")
        _log.warning("%s", log_fields({"event": event, "link": link, "since": since, **facts}))


def _hanging(transaction: str) -> str:
    return f"transaction {transaction}, which the brokers do not end"
