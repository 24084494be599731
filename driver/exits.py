"""Turn signals into stops and errors into exit codes."""

import contextlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from onceward.common.errors import OncewardError
from onceward.common.printable import printable

_SAME_REQUEST_S = 1.0


class StopFlag:
    """Like ``threading.Event``, but a signal handler can set it while the same thread waits: its lock is reentrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # backed by an RLock
        self._set = False

    def set(self) -> None:
        with self._changed:
            self._set = True
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float) -> bool:
        """Return True as soon as it is set, False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._set, timeout)


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGINT and SIGTERM; a signal more than a second later raises KeyboardInterrupt. Restores the
    former handlers on exit.

    A second signal within that second is the same request: a terminal and a supervisor signal the whole group of
    processes, and a program that started this one passes its own on.

    Does nothing outside the main thread, where Python delivers no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked is None:
            asked = time.monotonic()
            stop()
        elif time.monotonic() - asked > _SAME_REQUEST_S:
            raise KeyboardInterrupt

    former = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def exit_with_codes() -> None:
    """Make an uncaught OncewardError end the process with its exit code and its message instead of a stack trace.

    A program that catches the error is not affected.
    """
    former = sys.excepthook
    if getattr(former, "_onceward", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, OncewardError) and error.exit_code != 1:
            sys.stderr.write(f"{kind.__name__}: {printable(str(error))}\n")
            raise SystemExit(int(error.exit_code))
        if former is sys.__excepthook__:  # its message may hold a record
            sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace))))
        else:
            former(kind, error, trace)

    hook._onceward = True  # type: ignore[attr-defined]
    sys.excepthook = hook
