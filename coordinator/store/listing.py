"""What a store lists, whichever connection reads it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from onceward.coordinator.store.reading import (
    LastCompleted,
    checkpoint_description,
    checkpoint_summaries,
    completed_checkpoint,
    generation_summaries,
    history_entries,
    last_completed,
    loss_reports,
    savepoint_count,
    unfinished_checkpoints,
)
from onceward.protocol.values import CheckpointId, CompletedCheckpoint, JobName, ParticipantName
from onceward.wire.rows import (
    CheckpointDescription,
    CheckpointSummary,
    GenerationSummary,
    HistoryEntry,
    LossReport,
)

__all__ = ["Listings"]


class Listings(ABC):
    """The queries. Each is a transaction of its own, and raises StoreError."""

    @abstractmethod
    def _reading(self, doing: str) -> AbstractContextManager[Connection]:
        """A transaction that reads. Raises StoreError."""

    def completed(self, job: JobName, checkpoint: CheckpointId) -> CompletedCheckpoint:
        """A completed checkpoint, to restore from. Raises NoSuchCheckpointError."""
        with self._reading(f"reading checkpoint {checkpoint} of job {job}") as connection:
            return completed_checkpoint(connection, job, checkpoint)

    def last_completed_by_job(self) -> dict[JobName, LastCompleted]:
        """The newest completed checkpoint of each job, without jobs whose record is damaged."""
        with self._reading("listing jobs") as connection:
            return last_completed(connection)

    def last_completed(self, job: JobName) -> LastCompleted:
        """The job's newest completed checkpoint; none when the job's record is damaged."""
        with self._reading(f"describing job {job}") as connection:
            return last_completed(connection, job).get(job, LastCompleted())

    def unfinished(self) -> list[tuple[JobName, CheckpointSummary]]:
        """The checkpoints of all jobs that are undecided, or completed and not settled: at most two of each job."""
        with self._reading("listing unfinished checkpoints") as connection:
            return unfinished_checkpoints(connection)

    def checkpoints(self, job: JobName, limit: int, kept_by: ParticipantName | None = None) -> list[CheckpointSummary]:
        """Checkpoints for listings, newest first. ``kept_by``: each with the state of this participant."""
        with self._reading(f"listing checkpoints of job {job}") as connection:
            return checkpoint_summaries(connection, job, limit, kept_by)

    def savepoints(self, job: JobName) -> int:
        """How many savepoints the job has."""
        with self._reading(f"counting savepoints of job {job}") as connection:
            return savepoint_count(connection, job)

    def checkpoint(self, job: JobName, number: CheckpointId) -> CheckpointDescription | None:
        """Everything stored about one checkpoint; None when it left no row or is no longer retained."""
        with self._reading(f"reading checkpoint {number} of job {job}") as connection:
            return checkpoint_description(connection, job, number)

    def losses(self, of: Sequence[JobName] | None, limit: int, *, acknowledged: bool) -> list[LossReport]:
        """Loss reports, newest first.

        :param of: these jobs; None for all.
        :param acknowledged: include those that a person has acknowledged.
        """
        with self._reading("listing losses") as connection:
            return loss_reports(connection, of, limit, acknowledged=acknowledged)

    def generations(self, job: JobName, limit: int) -> list[GenerationSummary]:
        """Generations for listings, newest first."""
        with self._reading(f"listing generations of job {job}") as connection:
            return generation_summaries(connection, job, limit)

    def history(self, job: JobName, limit: int) -> list[HistoryEntry]:
        """The history for listings, newest first."""
        with self._reading(f"listing the history of job {job}") as connection:
            return history_entries(connection, job, limit)
