"""Work that runs in its own thread while a schedule or a run does something else."""

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Background"]


class Background(ABC):
    """A context manager: the work starts on entry and has ended by the exit."""

    def __init__(self, name: str) -> None:
        """``name``: of the thread."""
        self.over = threading.Event()
        """Set when the work has to end."""
        self._thread = threading.Thread(target=self.work, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the work and wait until it has ended. May be called twice."""
        self.over.set()
        self._thread.join()

    @abstractmethod
    def work(self) -> None:
        """Do the work, in the thread, until `over` is set."""
