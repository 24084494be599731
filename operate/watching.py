"""Keep a terminal up to date with a coordinator until Ctrl-C."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError, OncewardError
from onceward.common.printable import printable
from onceward.common.readable import duration
from onceward.coordinator.service.state_dir import StateDirectory, state_directory
from onceward.operate.connecting import CoordinatorLocation, operators
from onceward.operate.tables import console

__all__ = ["watch"]

T = TypeVar("T")

_EVERY_S = 1.0
_SHARE = 5
"""Asking takes at most a fifth of the time: a listing of many jobs costs the coordinator."""
_LATE_S = 3.0
"""A coordinator that has not answered for this long is shown as away."""
_LEAVE_S = 5.0


def watch(
    place: CoordinatorLocation, ask: Callable[[OperatorClient], T], draw: Callable[[T, int], RenderableType]
) -> T:
    """Draw answers on the whole terminal, at least once a second, until Ctrl-C; return the last one. The screen then
    is as before, with the last answer below.

    While the coordinator is away, the last answer stays, with a line that says so. Raises the error of the first
    question.

    :param draw: given an answer and the lines that there are for it.
    """
    screen = console()
    asker = _Asker(place, ask)
    asker.start()
    try:
        asker.wait_for_first()
        with Live(console=screen, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                live.update(Group(asker.header(), draw(asker.answer, screen.height - 1)), refresh=True)
                asker.wait_for_news(_EVERY_S)
    except KeyboardInterrupt:
        pass
    finally:
        with suppress(KeyboardInterrupt):
            asker.leave()
    screen.print(draw(asker.answer, screen.height))
    return asker.answer


class _Asker(threading.Thread, Generic[T]):
    """Asks in a thread of its own: a coordinator that does not answer must not stop the clock of those who wait."""

    def __init__(self, place: CoordinatorLocation, ask: Callable[[OperatorClient], T]) -> None:
        super().__init__(name="onceward-watch", daemon=True)
        self._place = place
        self._ask = ask
        self._news = threading.Condition()
        self._leaving = threading.Event()
        self._answers: list[T] = []
        """The last one, if there is one."""
        self._answered_at = time.monotonic()
        self._trouble: OncewardError | None = None
        self._seen = 0
        self._count = 0

    @property
    def answer(self) -> T:
        if not self._answers:
            raise KeyboardInterrupt  # it came before the first answer
        return self._answers[-1]

    def wait_for_first(self) -> None:
        with self._news:
            while not self._news.wait_for(lambda: self._count, timeout=_EVERY_S):
                pass
            if not self._answers and self._trouble is not None:
                raise self._trouble

    def wait_for_news(self, seconds: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self._count != self._seen, timeout=seconds)
            self._seen = self._count

    def header(self) -> Text:
        silent_s = time.monotonic() - self._answered_at
        if self._trouble is None and silent_s < _LATE_S:
            return Text("Ctrl-C leaves", style="dim")
        said = f"The coordinator has not answered for {duration(silent_s)}; trying again. Below: its last answer."
        if self._trouble is not None:  # last, because a narrow terminal cuts it
            said = printable(f"{said} {self._trouble}").split("\n")[0]
        return Text(said, style="bold red", no_wrap=True, overflow="crop")

    def leave(self) -> None:
        self._leaving.set()
        self.join(_LEAVE_S)

    def run(self) -> None:
        patience = "2s"
        while not self._leaving.is_set():
            try:
                with operators(self._place, patience=patience) as (client, momentary):
                    while not self._leaving.is_set():
                        began = time.monotonic()
                        self._publish(self._ask(client), None)
                        if momentary:
                            break
                        self._leaving.wait(max(_EVERY_S, _SHARE * (time.monotonic() - began)))
                if momentary:
                    self._wait_for_driver()
            except OncewardError as error:
                self._publish(None, error)
                self._leaving.wait(_EVERY_S)
            patience = "0s"

    def _wait_for_driver(self) -> None:
        """Nothing changes in a directory that no process uses, and asking takes it from a job that is about to start.
        So wait until a process has taken it."""
        directory = StateDirectory(state_directory(self._place.state_dir))
        while not self._leaving.wait(_EVERY_S):
            self._answered_at = time.monotonic()
            with suppress(ConfigurationError):
                directory.published()
                return

    def _publish(self, answer: T | None, trouble: OncewardError | None) -> None:
        with self._news:
            if answer is not None:
                self._answers[:] = [answer]
                self._answered_at = time.monotonic()
            self._trouble = trouble
            self._count += 1
            self._news.notify_all()
