"""A blocking call in a thread of its own."""

import threading
from collections.abc import Callable

__all__ = ["InThread"]


class InThread:
    """A :class:`Pending`."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="onceward-offset", daemon=True)
        self._thread.start()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join()

    def result(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - raised by the caller's own thread
            self._error = error
