"""Who visits: a program sends its token with each request, a browser shows it once and has a session.

A browser never keeps a token: cookies go to every port of a host, and a token may permit more than to view.
"""

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["SESSION_S", "Sessions"]

SESSION_S = 12 * 3600.0
_MAX_SESSIONS = 1000
"""With one more, the oldest ends."""


class Sessions:
    """The tokens of browsers that have shown one. Thread-safe, and only in memory: after a restart of the process,
    browsers show theirs again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def begin(self, token: str) -> str:
        """Return the secret name of a new session."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._known[_digest(name)] = token, self._clock() + SESSION_S
            while len(self._known) > _MAX_SESSIONS:
                self._known.popitem(last=False)
        return name

    def token(self, name: str) -> str:
        """Return the session's token; empty if there is no such session, or it is over."""
        with self._lock:
            token, until = self._known.get(_digest(name), ("", 0.0))
            if self._clock() < until:
                return token
            self._known.pop(_digest(name), None)
            return ""

    def end(self, name: str) -> None:
        with self._lock:
            self._known.pop(_digest(name), None)


def _digest(name: str) -> bytes:
    """The time that a look-up takes says nothing about the names."""
    return hashlib.sha256(name.encode()).digest()
