"""Work that goes on in a thread of its own while a schedule or a run does something else."""

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Background"]


class Background(ABC):
    """A context manager: the work begins with it and is over with it at the latest."""

    def __init__(self, name: str) -> None:
        """``name``: of the thread."""
        self.over = threading.Event()
        """When the work has to end."""
        self._thread = threading.Thread(target=self.work, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the work, and return when it has ended. May be called twice."""
        self.over.set()
        self._thread.join()

    @abstractmethod
    def work(self) -> None:
        """In the thread, until `over` is set."""
