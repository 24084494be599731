"""The Spark side of a generation, started when it is needed."""

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from onceward.connectors.interfaces import Plan, SinkSession, Source
from onceward.driver import preflight
from onceward.driver.journal import Journal
from onceward.driver.outputs import Votes
from onceward.driver.runtime import THREADS
from onceward.driver.spark.job import CheckpointJob, Path
from onceward.driver.spark.session import (
    Spark,
    check_closures,
    check_context,
    check_retries,
    failures_unlogged,
    is_alive,
    make_context,
    ship,
)
from onceward.executor.functions import BatchesTransform
from onceward.protocol.values import CheckpointId, Generation, JobName, JsonObject, ParticipantName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tasks(Protocol):
    """Runs the tasks of checkpoints, one checkpoint at a time."""

    def start(self) -> None:
        """Prepare everything; called once per generation. A second call does nothing."""

    def alive(self) -> bool:
        """False when tasks can never run again in this process."""

    def run(
        self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan, sinks: Collection[ParticipantName]
    ) -> Votes:
        """Read and transform the plan's splits, and write them to ``sinks``. Return each one's votes, complete and
        ordered by slot. A task writes the same slot of every sink."""

    def inputs(self, plan: Plan, slots: int) -> Sequence[Sequence[JsonObject]]:
        """Return the splits that made each slot."""

    def cancel(self) -> None:
        """Stop the running tasks, from any thread."""

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Log no failures of tasks meanwhile, if the session is not the user's."""


class SparkTasks:
    """Runs tasks on Spark: uses or creates a session, ships the code, checks the plan, runs one job per checkpoint."""

    def __init__(
        self,
        *,
        job: JobName,
        source: Source,
        sink: SinkSession,
        transform: "Callable[[DataFrame], DataFrame] | None",
        transform_batches: BatchesTransform | None,
        spark: "SparkSession | None",
        embedded: bool,
        per_checkpoint_operations: bool,
        journal: Journal,
        stay: bool = False,
    ) -> None:
        """``stay``: the transform must be one that staying tasks can run."""
        self._job = job
        self._source = source
        self._sink = sink
        self._transform = transform
        self._transform_batches = transform_batches
        self._spark = None if spark is None else Spark.of(spark)
        self._made = False
        self._making: Callable[[], tuple[Spark, bool]] | None = None
        self._embedded = embedded
        self._per_checkpoint_operations = per_checkpoint_operations
        self._journal = journal
        self._stay = stay
        self._checkpoint_job: CheckpointJob | None = None

    def begin(self) -> None:
        """Begin to make the session, in a thread of its own: that takes seconds, in which the job is recovered."""
        if self._spark is None:
            self._making = THREADS.beside(self._make)

    def start(self) -> None:
        """Raises PreflightError or ConfigurationError for a session or a transform that cannot be used."""
        if self._checkpoint_job is not None:
            return
        if self._spark is None:
            make, self._making = self._making or self._make, None
            self._spark, self._made = make()
            preflight.require_safe(self._job, check_context(self._spark.context, embedded=self._embedded))
        checkpoint_job = CheckpointJob(
            spark=self._spark,
            job=self._job,
            source=self._source,
            transform=self._transform,
            transform_batches=self._transform_batches,
            sink=self._sink,
            per_checkpoint_operations=self._per_checkpoint_operations,
        )
        checkpoint_job.check()
        if self._stay:
            checkpoint_job.require_in_worker()
            checkpoint_job.reach()  # refuses a port that cannot be one
            preflight.require_safe(self._job, check_closures(self._spark.context.getConf()))
        if checkpoint_job.moving:
            preflight.require_safe(self._job, check_retries(self._spark.session))
        ship(
            self._spark,
            tuple(type(part).__module__ for part in (self._source.read(), self._sink.write())),
            arrow=checkpoint_job.path is Path.DATAFRAME,
        )
        self._checkpoint_job = checkpoint_job
        self._journal.log("planned", path=checkpoint_job.path.value, columns=list(checkpoint_job.columns))

    def alive(self) -> bool:
        return self._spark is None or is_alive(self._spark.context)

    def run(
        self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan, sinks: Collection[ParticipantName]
    ) -> Votes:
        (name,) = sinks
        return {name: self.checkpoint_job.run(generation=generation, checkpoint=checkpoint, plan=plan)}

    def inputs(self, plan: Plan, slots: int) -> Sequence[Sequence[JsonObject]]:
        return self.checkpoint_job.inputs(plan, slots)

    def cancel(self) -> None:
        if self._checkpoint_job is not None:
            self._checkpoint_job.cancel()

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        if self._spark is None or not self._made:
            return contextlib.nullcontext()
        return failures_unlogged(self._spark.context)

    def close(self) -> None:
        """Stop a session that was created here; a given session stays."""
        if self._making is not None:
            with contextlib.suppress(Exception):  # it was not needed
                self._spark, self._made = self._making()
        if self._made and self._spark is not None:
            with contextlib.suppress(Exception):  # a JVM that is gone cannot be stopped
                self._spark.context.stop()

    def _make(self) -> tuple[Spark, bool]:
        with _our_handlers_kept():
            context, made = make_context(self._job, scheduling=self._transform is None)
        spark = Spark(context)
        if self._transform is not None:
            _ = spark.session  # made here, beside the recovery
        return spark, made

    @property
    def checkpoint_job(self) -> CheckpointJob:
        assert self._checkpoint_job is not None, "started before its first checkpoint"
        return self._checkpoint_job


@contextlib.contextmanager
def _our_handlers_kept() -> Iterator[None]:
    """Restore the SIGINT handler: Spark replaces it at its start, and would cancel all jobs and leave."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
