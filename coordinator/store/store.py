"""The store of one coordinator: durable facts in, state for a restart and listings out."""

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

from onceward.coordinator.printable import logger
from onceward.coordinator.protocol.answers import Note
from onceward.coordinator.protocol.durable import Durable
from onceward.coordinator.protocol.facts import Fact
from onceward.coordinator.protocol.values import CheckpointId, CompletedCheckpoint, JobName
from onceward.coordinator.store.engine import checkpoint, connect, file_of
from onceward.coordinator.store.errors import PUT_BACK, StoreDamagedError, StoreError, StoreUnusableError
from onceward.coordinator.store.filesystem import refuse_network_filesystem
from onceward.coordinator.store.lock import StoreLock
from onceward.coordinator.store.reading import (
    checkpoint_details,
    checkpoint_records,
    completed_checkpoint,
    durable_jobs,
    generation_records,
    history_records,
    job_records,
    loss_records,
)
from onceward.coordinator.store.records import (
    CheckpointDetails,
    CheckpointRecord,
    GenerationRecord,
    HistoryRecord,
    JobRecord,
    LossRecord,
)
from onceward.coordinator.store.retention import prune
from onceward.coordinator.store.schema import SCHEMA_VERSION, checksum, meta, metadata, unsealed
from onceward.coordinator.store.writing import write_notes, write_steps

__all__ = ["Store"]

_log = logger("onceward.store")


class Store:
    """One SQLite file with one writer. Not for several threads at once.

    Any failure of a read or a write raises StoreError and ends the store's usefulness: whether the last write happened
    is unknown, so every later call raises too. Leave the process, or open the store anew.
    """

    def __init__(self, *, engine: Engine, connection: Connection, lock: StoreLock, store_id: str) -> None:
        self._engine = engine
        self._connection = connection
        self._lock = lock
        self._failure: StoreError | None = None
        self.store_id = store_id
        """Random; given to the store when it was created, and part of every claim."""

    @classmethod
    def open(cls, url: str) -> Self:
        """Open or create. Raises StoreUnusableError (in use, other schema, network filesystem), StoreDamagedError."""
        file = file_of(url)
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_network_filesystem(file.parent)
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
        """Every job as a restart needs it, by name; one whose record is damaged says so."""
        with self._using("reading the jobs") as connection:
            return durable_jobs(connection, self.store_id)

    def apply(self, steps: Sequence[tuple[Durable, Sequence[Fact]]], *, at: datetime) -> None:
        """Make several steps durable in one transaction, in their order: all of them or none.

        The disk is waited for once, and that is nearly all that a small step costs. When this returns they are on disk.
        """
        jobs = ", ".join(sorted({str(durable.job) for durable, _ in steps}))
        with self._using(f"writing {sum(len(facts) for _, facts in steps)} facts of {jobs}") as connection:
            write_steps(connection, steps, _milliseconds(at))

    def note(self, job: JobName, notes: Sequence[tuple[Note, int]], *, at: datetime) -> None:
        """Keep calls that were not accepted, each with how often, in the history."""
        with self._using(f"noting refused calls of job {job}") as connection:
            write_notes(connection, job, _milliseconds(at), notes)

    def prune(self, jobs: Sequence[tuple[JobName, int]]) -> bool:
        """Remove what retention does not keep, for several jobs in one transaction. Of each job the second number is
        how many completed checkpoints stay beside savepoints.

        Best effort: a failed prune is rolled back, logged and retried by the next one. False then.
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
        """A completed checkpoint to go back to. Raises NoSuchCheckpointError."""
        with self._using(f"reading checkpoint {checkpoint} of job {job}") as connection:
            return completed_checkpoint(connection, job, checkpoint)

    def jobs(self) -> dict[JobName, JobRecord]:
        """For listings; without jobs whose record is damaged."""
        with self._using("listing jobs") as connection:
            return job_records(connection)

    def job(self, job: JobName) -> JobRecord:
        """For listings; empty when the job's record is damaged."""
        with self._using(f"describing job {job}") as connection:
            return job_records(connection, job).get(job, JobRecord())

    def checkpoints(self, job: JobName, limit: int) -> list[CheckpointRecord]:
        """For listings, newest first."""
        with self._using(f"listing checkpoints of job {job}") as connection:
            return checkpoint_records(connection, job, limit)

    def checkpoint(self, job: JobName, number: CheckpointId) -> CheckpointDetails | None:
        """Everything stored about one checkpoint; None when it left no row or is retained no longer."""
        with self._using(f"reading checkpoint {number} of job {job}") as connection:
            return checkpoint_details(connection, job, number)

    def losses(self, job: JobName | None, limit: int, *, acknowledged: bool) -> list[LossRecord]:
        """Reports of records that were given up, of one job or of all, newest first.

        :param acknowledged: those too that a person has acknowledged.
        """
        with self._using("listing losses") as connection:
            return loss_records(connection, job, limit, acknowledged=acknowledged)

    def generations(self, job: JobName, limit: int) -> list[GenerationRecord]:
        """For listings, newest first."""
        with self._using(f"listing generations of job {job}") as connection:
            return generation_records(connection, job, limit)

    def history(self, job: JobName, limit: int) -> list[HistoryRecord]:
        """For listings, newest first."""
        with self._using(f"listing the history of job {job}") as connection:
            return history_records(connection, job, limit)

    def close(self) -> None:
        """Release file and lock. Never raises: everything applied is on disk already."""
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
        # the module for SQLite cannot even say what is wrong when it has to quote damaged text
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


def _unopened(file: Path, error: OSError) -> StoreUnusableError:
    return StoreUnusableError(
        f"The store {file} cannot be opened: {error.strerror}: {error.filename}. Nothing was started. "
        "Give the process a directory and a file that it may read and write."
    )


def _identify(connection: Connection, file: Path) -> str:
    """The store's id, after checking its schema; creates both in a new file."""
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
        # In the file itself, so that a lost log leaves an old store of the same id, which the claim finds out.
        checkpoint(cast(sqlite3.Connection, connection.connection.dbapi_connection))
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
    """The new file's name must survive a power cut as well as its content."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
