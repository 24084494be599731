"""A sink of your own: appends files to a directory, exactly once.

    python examples/custom_sink.py

Needs a broker at localhost:9092 with the topic ``new-orders``. Each task of a checkpoint adds one file to ``orders``, a
line for each record.

The two phases of a commit, for a system that can rename:
    pre-commit  the task writes and flushes a file that readers do not see: in the directory ``.staged``
    commit      the file is renamed into the directory that they see. Repeating that changes nothing
    abort       the staged file is deleted
    outcome     found by looking: a visible file is committed, and a staged one can still be committed

Readers must leave the files in place until ``onceward jobs`` shows their checkpoint as settled.
"""

import fcntl
import json
import os
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onceward import KafkaSource, Pipeline
from onceward.connectors import (
    Author,
    CheckpointFailedError,
    CheckpointId,
    Chosen,
    Claim,
    ClaimChangedError,
    Committable,
    ConfigurationError,
    Document,
    FencedError,
    Finding,
    Generation,
    HaltedError,
    JobContext,
    JobName,
    OpenTransaction,
    Origin,
    Outcome,
    Participant,
    ParticipantName,
    Place,
    PreCommitted,
    Resource,
    Role,
    Settlement,
    Sink,
    SinkSession,
    SlotContext,
    SlotWriter,
    System,
    Vote,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class FileWriter:
    """Opens slots. It is pickled and runs on executors, in whose directories it needs the same path."""

    staged: str

    def open(self, context: SlotContext) -> "StagedFile":
        return StagedFile(self.staged, context)


class StagedFile:
    """A slot: the task hands it its batches, then lets it finish, or abandon what it wrote."""

    def __init__(self, directory: str, context: SlotContext) -> None:
        task = context.task
        # unique for every attempt, so that no two processes ever write the same file
        by = f"{task.job}.{context.sink}.{task.generation}"
        self._name = f"{by}.{task.checkpoint}.{context.slot}.{context.attempt}"
        self._context = context
        self._records = 0
        self._file = open(os.path.join(directory, self._name), "xb")  # noqa: SIM115 - closed by finish and abandon

    def write(self, batch: "pa.RecordBatch") -> None:
        self._file.writelines(value + b"\n" for value in batch.column("value").to_pylist())
        self._records += batch.num_rows

    def finish(self) -> Vote:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        body = {"file": self._name} if self._records else {}
        return Vote(
            slot=self._context.slot, attempt=self._context.attempt, records=self._records, bytes=size, body=body
        )

    def abandon(self) -> None:
        self._file.close()  # the driver sweeps it


class DirectorySystem(System):
    """Ends what any process has staged. It keeps only generation and job: a restarted driver has nothing else."""

    def __init__(self, directory: Path) -> None:
        self._visible, self._staged = directory, directory / ".staged"
        self.generation = Generation(0)
        """The newest generation whose leftovers it may delete."""
        self._job: JobName
        """The job that it has claimed."""

    def id(self) -> str:
        return str(self._visible.absolute())

    def place(self, committable: Committable) -> Place:
        return Place(id=str(committable.document.body["directory"]))

    def commit(
        self,
        author: Author,
        committables: Sequence[Committable],
        *,
        give_up: Callable[[], bool] = lambda: False,
        known: PreCommitted | None = None,
    ) -> Sequence[Settlement]:
        for name in _own_files(author, committables):
            with suppress(FileNotFoundError):  # it was renamed before
                os.rename(self._staged / name, self._visible / name)
        _flush(self._visible)
        return [self.outcome(committable) for committable in committables]

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        for name in _own_files(author, committables):
            (self._staged / name).unlink(missing_ok=True)

    def outcome(self, committable: Committable) -> Settlement:
        name = _file(committable)
        # in this order: between the two looks, a commit may rename it
        for place, outcome in ((self._staged, Outcome.IN_DOUBT), (self._visible, Outcome.COMMITTED)):
            if (place / name).exists():
                return Settlement(slot=committable.slot, outcome=outcome, evidence=f"{place / name} exists")
        return Settlement(slot=committable.slot, outcome=Outcome.LOST, evidence=f"{name} is neither staged nor visible")

    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        kept = set(map(_file, keep))
        # a name of a job has no dot; a newer generation's files are not ours to delete
        staged = (path.name for path in self._staged.glob(f"{job}.*.*.*.*.*"))
        return sorted(name for name in staged if name not in kept and int(name.split(".")[2]) <= self.generation)

    def sweep(
        self,
        job: JobName,
        *,
        keep: Collection[Committable] = (),
        staying: Collection[str] = (),
        known: Sequence[PreCommitted] = (),
    ) -> Sequence[str]:
        swept = self.leftovers(job, keep=keep)
        for name in swept:
            (self._staged / name).unlink(missing_ok=True)
        return swept

    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        return ()  # readers wait for nothing here

    # The claim says which store and generation own the job. It stops a second driver that knows nothing of the first,
    # and a store that was restored from an old copy.

    def read_claim(self, job: JobName, *, certain: bool = False) -> Claim | None:
        with suppress(FileNotFoundError):
            return Claim(**json.loads(self._claim(job).read_text()))
        return None

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        with self._locked(job):
            found = self.read_claim(job)
            if found not in (None, claim, *seen):
                raise ClaimChangedError(f"Job {job} was claimed by {found}. Nothing was changed.")
            self._write_claim(job, claim)
        self._job = job

    def renew_claim(
        self, claim: Claim, *, give_up: Callable[[], bool] = lambda: False, known: PreCommitted | None = None
    ) -> bool:
        with self._locked(self._job):
            found = self.read_claim(self._job)
            if found is None or (found.store_id, found.holder) != (claim.store_id, claim.holder):
                raise FencedError(f"Job {self._job} was claimed by {found}. Nothing further is committed.")
            self._write_claim(self._job, claim)
        return True

    def close(self) -> None:
        pass

    def _claim(self, job: JobName) -> Path:
        return self._staged / f"{job}.claim"

    def _write_claim(self, job: JobName, claim: Claim) -> None:
        new = self._claim(job).with_suffix(".new")
        with new.open("w") as file:
            json.dump(asdict(claim), file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._claim(job))
        _flush(self._staged)

    @contextmanager
    def _locked(self, job: JobName) -> Iterator[None]:
        with (self._staged / f"{job}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class DirectorySink(Sink):
    """Writes the column ``value`` of each record as a line. All executors must share the directory's filesystem."""

    def __init__(self, directory: str, *, name: str = "sink") -> None:
        self.participant = Participant(name=ParticipantName(name), role=Role.SINK, kind="directory")
        self.directory = Path(directory).absolute()

    def connect(self, context: JobContext) -> SinkSession:
        return DirectorySession(self)


class DirectorySession(SinkSession):
    """The sink for one run of a job."""

    def __init__(self, sink: DirectorySink) -> None:
        self.participant = sink.participant
        self._directory, self._staged = sink.directory, sink.directory / ".staged"
        self._staged.mkdir(parents=True, exist_ok=True)
        self._system = DirectorySystem(sink.directory)

    def preflight(self) -> Sequence[Finding]:
        return ()

    def writes(self) -> Collection[Resource]:
        return [Resource(kind="directory", cluster=socket.gethostname(), name=str(self._directory))]

    def begin_generation(self, generation: Generation) -> None:
        self._system.generation = generation

    def choose(self, columns: Sequence[tuple[str, str]]) -> Sequence[Chosen]:
        kind = dict(columns).get("value")
        if kind not in ("string", "binary"):
            raise ConfigurationError(f"value: must be text or binary, and is {kind or 'missing'}. Nothing was read.")
        return [Chosen(column="value", name="value", cast=None if kind == "binary" else "binary")]

    def write(self) -> SlotWriter:
        return FileWriter(str(self._staged))

    def hides_until_decided(self) -> bool:
        return True

    def pre_commit(
        self, checkpoint: CheckpointId, votes: Sequence[Vote], origins: Sequence[Origin], *, leftovers: bool
    ) -> PreCommitted:
        committables = tuple(
            Committable(
                slot=vote.slot,
                document=Document(kind="staged-file", version=1, body={**vote.body, "directory": self._system.id()}),
            )
            for vote in votes
            if vote.body
        )
        _flush(self._staged)
        for name in map(_file, committables):
            if not (self._staged / name).exists():
                raise CheckpointFailedError(f"{name} is gone. Nothing is visible; its records are read again.")
        return PreCommitted(committables=committables)

    def on_settled(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        pass

    def system(self) -> System:
        return self._system

    def close(self) -> None:
        pass


def _file(committable: Committable) -> str:
    return str(committable.document.body["file"])


def _own_files(author: Author, committables: Sequence[Committable]) -> list[str]:
    """Return the files of committables. A forged one must not rename or delete the file of another."""
    names = [_file(committable) for committable in committables]
    own = tuple(f"{author.job}.{author.participant}.{generation}." for generation in author.generations)
    for name in names:
        if "/" in name or not name.startswith(own):
            raise HaltedError(f"{name!r} is no file of {author}. Nothing was renamed or deleted for it.")
    return names


def _flush(directory: Path) -> None:
    """Make the names in the directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    Pipeline(
        job="orders-to-files",
        source=KafkaSource("localhost:9092", topics=["new-orders"], start="earliest"),
        transform=lambda df: df.where("value is not null"),
        sink=DirectorySink("orders"),
    ).run()
