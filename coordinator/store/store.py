"""The store of one coordinator: writes durable facts, reads the state for a restart and for listings."""

import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Self, cast

from sqlalchemy import Connection, Engine, Table, insert, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from onceward.coordinator.listings import (
    CheckpointDescription,
    CheckpointSummary,
    GenerationSummary,
    HistoryEntry,
    LossReport,
)
from onceward.coordinator.printable import logger
from onceward.coordinator.protocol.answers import Note
from onceward.coordinator.protocol.durable import Durable
from onceward.coordinator.protocol.facts import Fact
from onceward.coordinator.protocol.values import CheckpointId, CompletedCheckpoint, JobName
from onceward.coordinator.store.engine import connect, file_of, truncate_wal
from onceward.coordinator.store.errors import PUT_BACK, StoreDamagedError, StoreError, StoreUnusableError
from onceward.coordinator.store.filesystem import refuse_network_filesystem
from onceward.coordinator.store.lock import StoreLock
from onceward.coordinator.store.private import make_private_directory, make_private_file
from onceward.coordinator.store.reading import (
    LastCompleted,
    checkpoint_description,
    checkpoint_summaries,
    completed_checkpoint,
    durable_jobs,
    generation_summaries,
    history_entries,
    last_completed,
    loss_reports,
)
from onceward.coordinator.store.retention import prune
from onceward.coordinator.store.schema import SCHEMA_VERSION, checksum, meta, metadata, unsealed
from onceward.coordinator.store.writing import write_notes, write_steps

__all__ = ["Store"]

_log = logger("onceward.store")


class Store:
    """One SQLite file with one writer. Not thread-safe.

    Any failure of a read or a write raises StoreError. Whether the last write happened is unknown then, so every later
    call raises too. Leave the process, or open the store again.
    """

    def __init__(self, *, engine: Engine, connection: Connection, lock: StoreLock, store_id: str) -> None:
        self._engine = engine
        self._connection = connection
        self._lock = lock
        self._failure: StoreError | None = None
        self.store_id = store_id
        """Random id, assigned when the store is created. Part of every claim."""

    @classmethod
    def open(cls, url: str) -> Self:
        """Open or create a store. Raises StoreUnusableError (in use, other schema, network filesystem),
        StoreDamagedError."""
        file = file_of(url)
        try:
            make_private_directory(file.parent)
            refuse_network_filesystem(file.parent)
            for name in (file.name + ".lock", file.name, *_left_by_sqlite(file)):
                make_private_file(file.with_name(name))
            lock = StoreLock(file.with_name(file.name + ".lock"))
        except OSError as error:
            raise _unopened(file, error) from None
        try:
            with _translated("opening the store"):
                engine, connection = connect(file)
                try:
                    store_id = _identify(connection, file)
                except BaseException:
                    connection.close()
                    engine.dispose()
                    raise
                return cls(engine=engine, connection=connection, lock=lock, store_id=store_id)
        except OSError as error:
            lock.release()
            raise _unopened(file, error) from None
        except BaseException:
            lock.release()
            raise

    def load_jobs(self) -> list[Durable]:
        """Every job with the state that a restart needs, by name. A job whose record is damaged is marked as such."""
        with self._using("reading the jobs") as connection:
            return durable_jobs(connection, self.store_id)

    def apply(self, steps: Sequence[tuple[Durable, Sequence[Fact]]], *, at: datetime) -> None:
        """Write several steps in one transaction, in order: all or none. They are on disk when this returns.

        One wait for the disk serves all steps; it is nearly the whole cost of a small step.
        """
        jobs = ", ".join(sorted({str(durable.job) for durable, _ in steps}))
        with self._using(f"writing {sum(len(facts) for _, facts in steps)} facts of {jobs}") as connection:
            write_steps(connection, steps, _milliseconds(at))

    def note(self, job: JobName, notes: Sequence[tuple[Note, int]], *, at: datetime) -> None:
        """Write calls that were not accepted to the history, each with its count."""
        with self._using(f"noting refused calls of job {job}") as connection:
            write_notes(connection, job, _milliseconds(at), notes)

    def prune(self, jobs: Sequence[tuple[JobName, int]]) -> bool:
        """Delete what retention does not keep, for several jobs in one transaction.

        Best effort: a failed prune is rolled back, logged and retried by the next one. Returns False then.

        :param jobs: each job with the number of completed checkpoints to keep besides savepoints.
        """
        if self._failure is not None:
            raise self._failure
        try:
            with self._connection.begin():
                for job, keep in jobs:
                    prune(self._connection, job, keep)
        except SQLAlchemyError as error:
            names = ",".join(job for job, _ in jobs)
            _log.warning("job=%s event=retention_failed detail=%r", names, str(getattr(error, "orig", None) or error))
            return False
        return True

    def completed(self, job: JobName, checkpoint: CheckpointId) -> CompletedCheckpoint:
        """A completed checkpoint, to restore from. Raises NoSuchCheckpointError."""
        with self._using(f"reading checkpoint {checkpoint} of job {job}") as connection:
            return completed_checkpoint(connection, job, checkpoint)

    def last_completed_by_job(self) -> dict[JobName, LastCompleted]:
        """The newest completed checkpoint of each job, without jobs whose record is damaged."""
        with self._using("listing jobs") as connection:
            return last_completed(connection)

    def last_completed(self, job: JobName) -> LastCompleted:
        """The job's newest completed checkpoint; none when the job's record is damaged."""
        with self._using(f"describing job {job}") as connection:
            return last_completed(connection, job).get(job, LastCompleted())

    def checkpoints(self, job: JobName, limit: int) -> list[CheckpointSummary]:
        """Checkpoints for listings, newest first."""
        with self._using(f"listing checkpoints of job {job}") as connection:
            return checkpoint_summaries(connection, job, limit)

    def checkpoint(self, job: JobName, number: CheckpointId) -> CheckpointDescription | None:
        """Everything stored about one checkpoint; None when it left no row or is no longer retained."""
        with self._using(f"reading checkpoint {number} of job {job}") as connection:
            return checkpoint_description(connection, job, number)

    def losses(self, job: JobName | None, limit: int, *, acknowledged: bool) -> list[LossReport]:
        """Loss reports of one job or of all, newest first.

        :param acknowledged: include those that a person has acknowledged.
        """
        with self._using("listing losses") as connection:
            return loss_reports(connection, job, limit, acknowledged=acknowledged)

    def generations(self, job: JobName, limit: int) -> list[GenerationSummary]:
        """Generations for listings, newest first."""
        with self._using(f"listing generations of job {job}") as connection:
            return generation_summaries(connection, job, limit)

    def history(self, job: JobName, limit: int) -> list[HistoryEntry]:
        """The history for listings, newest first."""
        with self._using(f"listing the history of job {job}") as connection:
            return history_entries(connection, job, limit)

    def close(self) -> None:
        """Release the file and the lock. Never raises: everything applied is already on disk."""
        try:
            self._connection.close()
            self._engine.dispose()
        except SQLAlchemyError:
            pass
        finally:
            self._lock.release()

    @contextmanager
    def _using(self, doing: str) -> Iterator[Connection]:
        if self._failure is not None:
            raise self._failure
        try:
            with _translated(doing), self._connection.begin():
                yield self._connection
        except StoreError as error:
            self._failure = error
            raise


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
        cause = getattr(error, "orig", None) or error
        text = str(cause)
        # the sqlite3 module raises UnicodeDecodeError when its message quotes damaged text
        if isinstance(error, UnicodeDecodeError) or "not a database" in text or "malformed" in text:
            raise StoreDamagedError(
                f"The store's file is damaged ({text}), seen while {doing}. Nothing was guessed. {PUT_BACK}"
            ) from error
        if "locked" in text:
            raise StoreUnusableError(
                f"The store's file is locked by another process, seen while {doing}. Stop that process."
            ) from error
        raise StoreError(
            f"The store failed while {doing}: {text}. Whether the last write happened is unknown, so nothing is built "
            "on it: the coordinator ends, and its next start reads what is on disk. Look at the disk's space and "
            "health."
        ) from error


def _left_by_sqlite(file: Path) -> list[str]:
    """What an earlier process may have left beside the file, and SQLite reads. It makes them with the file's mode."""
    names = [file.name + suffix for suffix in ("-wal", "-shm", "-journal")]
    return [name for name in names if os.path.lexists(file.with_name(name))]


def _unopened(file: Path, error: OSError) -> StoreUnusableError:
    return StoreUnusableError(
        f"The store {file} cannot be opened: {error.strerror}: {error.filename}. Nothing was started. "
        "Give the process a directory and a file that it may read and write."
    )


def _identify(connection: Connection, file: Path) -> str:
    """The store's id, after checking its schema. Creates both in a new file."""
    with connection.begin():
        tables = set(inspect(connection).get_table_names())
        if not tables:
            metadata.create_all(connection)
            store_id = str(uuid.uuid4())
            for key, value in (("schema_version", str(SCHEMA_VERSION)), ("store_id", store_id)):
                row = {"key": key, "value": value}
                connection.execute(insert(meta), {**row, "checksum": checksum(meta, row)})
            created = True
        else:
            store_id = _known_id(connection, file, tables)
            created = False
    if created:
        # Write the id into the file itself. If the log is lost, the store keeps its id, and the claim shows that it is
        # old.
        truncate_wal(cast(sqlite3.Connection, connection.connection.dbapi_connection))
        _flush_directory(file.parent)
    return store_id


def _known_id(connection: Connection, file: Path, tables: set[str]) -> str:
    if meta.name not in tables:
        raise StoreUnusableError(
            f"{file} is a database of something else (tables {', '.join(sorted(tables)[:5])}). Nothing was changed. "
            "Give the store its own file."
        )
    rows = list(connection.execute(select(meta)).mappings())
    for row in rows:
        if unsealed(meta, row):
            raise StoreDamagedError(
                f"The store's own record {row['key']} is not what was written: its checksum differs. Nothing was "
                f"changed or guessed. {PUT_BACK}"
            )
    values = {row["key"]: row["value"] for row in rows}
    version = values.get("schema_version", "none")
    if version != str(SCHEMA_VERSION):
        raise StoreUnusableError(
            f"The store {file} has schema version {version}, this program knows version {SCHEMA_VERSION}. Nothing was "
            "changed. Use the version of onceward that wrote the store, or a newer one."
        )
    missing = {_name(table) for table in metadata.sorted_tables} - tables
    if missing or "store_id" not in values:
        raise StoreDamagedError(
            f"The store {file} lacks {', '.join(sorted(missing)) or 'its identifier'}. Nothing was changed. {PUT_BACK}"
        )
    return str(values["store_id"])


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _name(table: Table) -> str:
    return str(table.name)


def _flush_directory(directory: Path) -> None:
    """Flush the directory, so that a new file's name survives a power cut like its content."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
