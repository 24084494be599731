"""A table as commits see it: loaded once, and committed on exactly the state that was loaded."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from onceward.common.errors import OncewardError
from onceward.connections.storage import Storage, StorageError

__all__ = ["CommitRefusedError", "LakeTable", "NoTableError", "PastCommit", "UnsupportedTableError"]


class NoTableError(StorageError):
    """There is no such table."""


class CommitRefusedError(StorageError):
    """Another program has changed the table meanwhile."""


class UnsupportedTableError(OncewardError):
    """The table needs what the library cannot do. Trying again does not help."""


class PastCommit(NamedTuple):
    """A commit of a sink that the history of a table shows."""

    checkpoint: int
    undone: bool
    """Whether the table was restored, or rolled back, to a state before it."""


class LakeTable(Protocol):
    """One state of a table. All methods but ``unfit`` raise StorageError and UnsupportedTableError."""

    @property
    def id(self) -> str:
        """The id that the table gives itself."""

    @property
    def uri(self) -> str:
        """Where the table is."""

    @property
    def state(self) -> str:
        """Which state of which table this is, for people."""

    @property
    def storage(self) -> Storage:
        """The directory of the table."""

    def transaction(self, app: str) -> int | None:
        """The number that the application ``app`` has committed last; None if there is none."""

    def past_commits(self, job: str, sink: str) -> Iterator[PastCommit]:
        """The commits of a sink, the newest first, as far as the history of this state shows them."""

    def file_names(self) -> Collection[str]:
        """The names of all files of this state, without their folders."""

    def unfit(self, wanted: Any) -> Sequence[str]:
        """Return why the files of ``wanted`` do not fit the table any more; empty if they do."""

    def commit(self, files: Iterable[Any], *, app: str, transaction: int, said: Mapping[str, str | int]) -> str:
        """Make the next state, with these files and this number of an application, durably; return what was made, for
        people. Does not try again: if the table has changed since this state was loaded, that must be looked at first.

        :param said: what the table's history shows of the commit.

        If StorageError is raised, it may be made nevertheless."""
