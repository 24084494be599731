"""One process's way to the modelled table: its directory as a `Storage`, and the table at one version."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from onceward.connections.storage import NewFile, StorageError
from onceward.sinks.kafka.control.control_plane import NoAnswer
from onceward.sinks.lake.control.tables import CommitRefusedError, PastCommit
from tests.simulation.scheduler import Process
from tests.simulation.wire import Wire
from tests.support.table_documents import TableFile, TableFiles

if TYPE_CHECKING:
    from tests.simulation.lake import Lake

__all__ = ["Asked", "LoadedVersion", "ModelStorage", "Version", "load"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request on its way."""

    request: str
    act: Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Version:
    """A state of the table."""

    number: int
    transactions: Mapping[str, int]
    """By application."""
    files: frozenset[str]
    """Names, without their folder."""


def load(lake: "Lake", process: Process) -> "LoadedVersion":
    return LoadedVersion(lake, process, ModelStorage(lake, process).ask("loads the table", lambda: lake.version))


class ModelStorage:
    """The directory, as one process reaches it. Each call takes a while. It may fail before or after it took effect."""

    def __init__(self, lake: "Lake", process: Process, looked: Callable[[str], None] = lambda _path: None) -> None:
        """``looked`` receives each name whose size is asked for."""
        self.lake = lake
        self._process = process
        self._looked = looked

    def ask(
        self, request: str, act: Callable[[], T], *, late: bool = True, check: Callable[[], None] = lambda: None
    ) -> T:
        """Let ``act`` happen when the request arrives. ``late``: also if it arrives, or arrives again, when the process
        has given up. ``check`` is called when it is sent. Raises StorageError if there is no answer."""
        over = False

        def arrive() -> tuple[T] | NoAnswer:
            if over and not late:
                return NoAnswer(why="the connection is closed")
            self.lake.late += over
            return (act(),)

        self.lake.step(request)
        check()
        try:
            (answer,) = Wire(self.lake, self._process).send([Asked(request=request, act=arrive)])
        finally:
            over = True
        if isinstance(answer, NoAnswer):
            raise StorageError(f"{request}: {answer.why}")
        result: tuple[T] = answer
        return result[0]

    def create(self, name: str, content: bytes) -> bool:
        return self.ask(f"creates {name}", lambda: self.lake.create(name, content))

    def put(self, name: str, content: bytes) -> None:
        self.ask(f"puts {name}", lambda: self.lake.write(name, content))

    def read(self, name: str) -> bytes | None:
        return self.ask(f"reads {name}", lambda: self.lake.content(name))

    def names(self, folder: str) -> Sequence[str]:
        """What appears or disappears meanwhile may be listed or not."""
        before = self.ask(f"begins to list {folder}", lambda: self.lake.names(folder))
        after = self.ask(f"lists {folder}", lambda: self.lake.names(folder))
        random = self.lake.clock.random
        return [one for one in sorted(before | after) if one in before & after or random.random() < 0.5]

    def size(self, name: str) -> int | None:
        self._looked(name)
        content = self.read(name)
        return None if content is None else len(content)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.ask(f"deletes {name}", partial(self.lake.delete, name), check=partial(self.lake.deletes, name))

    def open(self, name: str) -> NewFile:
        self.ask(f"opens {name}", lambda: self.lake.make(name, self._process), late=False)
        return _Writing(self, name)

    def flush(self, name: str) -> None:
        self.ask(f"flushes {name}", lambda: None)

    def flush_all(self) -> None:
        self.ask("flushes", lambda: None)


class _Writing:
    def __init__(self, storage: ModelStorage, name: str) -> None:
        self.file: BinaryIO = BytesIO()
        self._storage = storage
        self._name = name

    def close(self) -> int:
        self.file.seek(0)
        content, name, lake = self.file.read(), self._name, self._storage.lake
        # A file that was deleted while it was written stays deleted, as in a directory.
        self._storage.ask(f"closes {name}", lambda: lake.fill(name, content), late=False)
        return len(content)

    def discard(self) -> None:
        self._storage.lake.clock.require_alive()
        self._storage.lake.delete(self._name)


class LoadedVersion:
    id = "simulated-table"
    uri = "memory:table"

    def __init__(self, lake: "Lake", process: Process, version: Version) -> None:
        self._lake = lake
        self._version = version
        self.looked: set[str] = set()
        """The names of files that a commit is about to add."""
        self.storage = ModelStorage(lake, process, lambda path: self.looked.add(path.rpartition("/")[2]))
        lake.look(self)

    @property
    def state(self) -> str:
        return f"version {self._version.number}"

    def transaction(self, app: str) -> int | None:
        return self._version.transactions.get(app)

    def past_commits(self, job: str, sink: str) -> Iterator[PastCommit]:
        return iter(())

    def file_names(self) -> Collection[str]:
        return self._version.files

    def unfit(self, wanted: TableFiles) -> Sequence[str]:
        return ()

    def commit(self, files: Iterable[TableFile], *, app: str, transaction: int, said: Mapping[str, str | int]) -> str:
        before, lake, added = self._version, self._lake, tuple(files)
        made = Version(
            number=before.number + 1,
            transactions={**before.transactions, app: transaction},
            files=before.files.union(one.name for one in added),
        )
        what = f"commits {transaction} with {len(added)} files in version {made.number}"
        landed = self.storage.ask(
            what,
            lambda: lake.land(before, made, transaction, added),
            check=lambda: lake.commits(transaction, added, str(said["sink"])),
        )
        if not landed:
            raise CommitRefusedError(f"there is a version {made.number} already")
        return f"version {made.number}"
