"""A thread that renews the lease of one session, to show that the driver is alive."""

import threading
import time
from collections.abc import Callable

from onceward.common.errors import OncewardError

__all__ = ["RenewThread"]


class RenewThread:
    """Calls ``renew`` every ``interval_s`` until closed, or until it raises; the error is reported.

    The interval runs from call to call, so that a slow answer does not let the lease expire.
    """

    def __init__(
        self, interval_s: float, *, renew: Callable[[], object], on_error: Callable[[OncewardError], None]
    ) -> None:
        self._interval_s = interval_s
        self._renew = renew
        self._on_error = on_error
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onceward-renew", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop without waiting: a call that is under way is harmless."""
        self._closed.set()

    def _run(self) -> None:
        pause = self._interval_s
        while not self._closed.wait(pause):
            begun = time.monotonic()
            try:
                self._renew()
            except OncewardError as error:
                if not self._closed.is_set():
                    self._on_error(error)
                return
            pause = max(0.0, self._interval_s - (time.monotonic() - begun))
