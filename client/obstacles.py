"""What keeps this process from its coordinators as far as TLS goes. Certificates expire while a job runs, and a renewed
file ends the trouble: so it is looked for beside the calls, which are retried meanwhile."""

import threading
import time
from collections.abc import Callable

from onceward.client.tls import CoordinatorTls, diagnose
from onceward.common.backoff import Backoff
from onceward.common.errors import ConfigurationError

__all__ = ["Obstacles"]

_REPEAT_S = 60.0
"""Minimum time until the same reason is reported again."""


class Obstacles:
    """Of the addresses of a client. Thread-safe.

    :param report: takes a reason.
    """

    def __init__(
        self, addresses: Callable[[], list[str]], tls: CoordinatorTls | None, report: Callable[[str], None]
    ) -> None:
        self._addresses = addresses
        self._tls = tls
        self._give = report
        self._changed = threading.Condition()
        self._known: dict[str, str | None] = {}
        self._looking: set[str] = set()
        self._pause = Backoff(first=1.0, longest=5.0)
        self._next = float("-inf")
        self._round = 0
        """Rises when a call is answered: what was looked for before is over."""
        self._reported: dict[str, float] = {}

    @property
    def why(self) -> str:
        """What is known; empty if nothing is."""
        with self._changed:
            found = {address: why for address, why in self._known.items() if why}
            everywhere = len(found) == len(self._known)
        if everywhere and len(set(found.values())) == 1:
            return next(iter(found.values()))
        return "; ".join(f"{address}: {why}" for address, why in found.items())

    @property
    def insurmountable(self) -> bool:
        """True when no address can become usable as long as all files and settings stay the same."""
        with self._changed:
            known = list(self._known.values())
        return any(known) and (all(known) or (self._tls is not None and self._tls.expired() is not None))

    def look(self, limit_s: float) -> None:
        """Look now, and wait for the result: at most ``limit_s``, or a few seconds for a single address."""
        addresses, begun = self._begin()
        if len(addresses) == 1:
            self._ask(addresses[0], begun)
        else:
            self._ask_all(addresses, begun)
        with self._changed:
            self._changed.wait_for(lambda: not self._looking, limit_s)

    def look_aside(self) -> None:
        """Look in another thread, unless that was done lately. It reports what it finds."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._pause.next()
            self._ask_all(*self._begin(), report=True)

    def report(self) -> None:
        """Report what is known, unless that was done lately."""
        why, now = self.why, time.monotonic()
        with self._changed:
            self._reported = {text: at for text, at in self._reported.items() if now - at < _REPEAT_S}
            if not why or why in self._reported:
                return
            self._reported[why] = now
        self._give(why)

    def worked(self) -> None:
        """A call was answered."""
        if self._known:
            with self._changed:
                self._known = {}
                self._round += 1
                self._next = float("-inf")
                self._pause.reset()

    def _begin(self) -> tuple[list[str], int]:
        """The addresses to ask, none while others are being asked; and the round."""
        with self._changed:
            if self._looking:
                return [], self._round
            addresses = list(dict.fromkeys(self._addresses()))
            self._looking = set(addresses)
            self._known = {address: self._known.get(address) for address in addresses}
            return addresses, self._round

    def _ask_all(self, addresses: list[str], begun: int, *, report: bool = False) -> None:
        for address in addresses:
            threading.Thread(
                target=self._ask, args=(address, begun, report), name=f"onceward-tls-{address}", daemon=True
            ).start()

    def _ask(self, address: str, begun: int, report: bool = False) -> None:
        try:
            found = diagnose(address, self._tls)
        except ConfigurationError as error:
            found = str(error).rstrip(".")
        with self._changed:
            self._looking.discard(address)
            self._changed.notify_all()
            if begun != self._round:
                return
            self._known[address] = found
        if report:
            self.report()
