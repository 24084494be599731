"""What tests of commits need of a table, whatever its kind."""

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from onceward.connectors.interfaces import Sink
from onceward.dev.promises.sink_case import Jobs, SinkCase
from onceward.protocol.committing import System

__all__ = ["LARGE", "LakePlace", "in_processes", "once_before", "run_python"]

LARGE = bytes(2**19)
"""A value that no vote has: its slot writes a file."""


class LakePlace(ABC):
    """A table with one column ``value``, of bytes."""

    kind: ClassVar[str]
    loaded: ClassVar[type[Any]]
    """The sink's own class for a loaded table."""
    named: ClassVar[str]
    """The key of a file's name in the documents of committables."""
    path: Path
    files_in: Path
    """Where the data files are."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it is, as text for another process: what a file of systems has, as JSON."""

    @classmethod
    @abstractmethod
    def at(cls, place: str) -> Self:
        """Return the table that another process has made."""

    def case(self) -> SinkCase:
        """Jobs that write to the table."""
        return SinkCase(sink=self.sink, system=self.system, visible=self.values, together=True)

    def jobs(self) -> Jobs:
        """Drivers of such jobs."""
        return Jobs(self.case())

    @abstractmethod
    def sink(self, name: str = "sink", **arguments: Any) -> Sink: ...

    @abstractmethod
    def system(self) -> System: ...

    @abstractmethod
    def commits(self) -> int:
        """How many commits the table has, without the one that made it."""

    @abstractmethod
    def files_in_it(self) -> set[str]:
        """The names of the data files that the table has."""

    @abstractmethod
    def values(self) -> list[bytes]:
        """What a reader finds that shares no code with the sink, sorted."""

    @abstractmethod
    def append(self, *values: bytes) -> None:
        """Write as another program does."""

    @abstractmethod
    def remove_unused(self) -> None:
        """Delete the files that the table does not have, as programs do that clean up."""

    @abstractmethod
    def replace(self) -> None:
        """Replace the table by another one in the same place, beside the same files."""

    @abstractmethod
    def state(self) -> int:
        """The table's present state, for :meth:`restore`."""

    @abstractmethod
    def restore(self, state: int) -> None:
        """Restore the table to an earlier state, by the means of its kind."""

    @abstractmethod
    def saves(self) -> Callable[[], None]:
        """Copy what names the table's state; what is returned puts the copy back."""

    def files(self) -> set[str]:
        """The names of the data files that the sink has written."""
        return {one.name for one in self.files_in.glob("part-onceward-*.parquet")}


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in another process."""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


def in_processes(code: str, arguments: Sequence[Sequence[str]]) -> list[str]:
    """Run code in several processes at the same time; return what each printed."""
    running = [
        subprocess.Popen([sys.executable, "-c", code, *each], stdout=subprocess.PIPE, text=True) for each in arguments
    ]
    outputs = [each.communicate(timeout=120)[0].strip() for each in running]
    assert [each.returncode for each in running] == [0] * len(running)
    return outputs


def once_before(monkeypatch: pytest.MonkeyPatch, kind: type[Any], method: str, happens: Callable[[], None]) -> None:
    """Make something happen once before a method of any object of a class."""
    original, waiting = getattr(kind, method), [happens]

    def later(itself: Any, *arguments: Any, **named: Any) -> Any:
        if waiting:
            waiting.pop()()
        return original(itself, *arguments, **named)

    monkeypatch.setattr(kind, method, later)
