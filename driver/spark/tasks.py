"""The Spark side of a generation, started when it is needed."""

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Plan, Source
from onceward.connectors.tasks import Vote
from onceward.driver import preflight
from onceward.driver.journal import Journal
from onceward.driver.outputs import Inputs, Votes
from onceward.driver.runtime import THREADS
from onceward.driver.spark.job import CheckpointJob, Path
from onceward.driver.spark.passes import Pass
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
from onceward.executor.functions import BatchesTransform, RoutedTransform
from onceward.executor.letters import Rules
from onceward.protocol.values import CheckpointId, Generation, JobName, JsonObject, ParticipantName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    def inputs(self, plan: Plan, votes: Votes) -> Inputs:
        """Return the splits that made each slot that voted."""

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
        passes: Sequence[Pass],
        transform_batches: BatchesTransform | RoutedTransform | None,
        spark: "SparkSession | None",
        embedded: bool,
        per_checkpoint_operations: bool,
        journal: Journal,
        stay: bool = False,
        letters: Rules | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        """``passes``: run one after the other for each checkpoint. ``stay``: there must be one, whose transform staying
        tasks can run. ``letters``: what is written to :data:`DEAD_LETTERS`. ``hidden``: columns of the source for
        letters alone."""
        self._job = job
        self._source = source
        self._passes = passes
        self._transform_batches = transform_batches
        self._spark = None if spark is None else Spark.of(spark)
        self._made = False
        self._making: Callable[[], tuple[Spark, bool]] | None = None
        self._embedded = embedded
        self._per_checkpoint_operations = per_checkpoint_operations
        self._journal = journal
        self._stay = stay
        self._letters = letters
        self._hidden = hidden
        self._jobs: Sequence[CheckpointJob] = ()
        """One for each pass; none before the start."""

    def begin(self) -> None:
        """Begin to make the session, in a thread of its own: that takes seconds, in which the job is recovered."""
        if self._spark is None:
            self._making = THREADS.beside(self._make)

    def start(self) -> None:
        """Raises PreflightError or ConfigurationError for a session or a transform that cannot be used."""
        if self._jobs:
            return
        if self._spark is None:
            make, self._making = self._making or self._make, None
            self._spark, self._made = make()
            preflight.require_safe(self._job, check_context(self._spark.context, embedded=self._embedded))
        if self._stay and len(self._passes) > 1:
            raise ConfigurationError(
                'tasks="staying": outputs with a transform of their own read the input again, in a Spark job for '
                'each checkpoint. Nothing was started. Use transform_batches, or leave out tasks="staying".'
            )
        jobs = [self._checked(self._spark, work) for work in self._passes]
        writers = [share.sink.write() for work in self._passes for share in work.shares]
        ship(
            self._spark,
            (self._source.read(), *writers),
            arrow=any(job.path is Path.DATAFRAME for job in jobs),
        )
        self._jobs = jobs
        for job in jobs:
            self._journal.log("planned", path=job.path.value, columns=list(job.columns), outputs=sorted(job.sinks))

    def _checked(self, spark: Spark, work: Pass) -> CheckpointJob:
        """Raises ConfigurationError or PreflightError for a pass that cannot be used."""
        job = CheckpointJob(
            spark=spark,
            job=self._job,
            source=self._source,
            work=work,
            transform_batches=self._transform_batches,
            per_checkpoint_operations=self._per_checkpoint_operations,
            letters=self._letters,
            hidden=self._hidden,
        )
        job.check()
        if self._stay:
            job.require_in_worker()
            job.reach()  # refuses a port that cannot be one
            preflight.require_safe(self._job, check_closures(spark.context.getConf()))
        if job.moving:
            preflight.require_safe(self._job, check_retries(spark.session))
        return job

    def alive(self) -> bool:
        return self._spark is None or is_alive(self._spark.context)

    def run(
        self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan, sinks: Collection[ParticipantName]
    ) -> Votes:
        votes: dict[ParticipantName, Sequence[Vote]] = {}
        for job in self._jobs:
            if writing := [name for name in job.sinks if name in sinks]:
                votes |= job.run(generation=generation, checkpoint=checkpoint, plan=plan, sinks=writing)
        return votes

    def inputs(self, plan: Plan, votes: Votes) -> Inputs:
        inputs: dict[ParticipantName, Sequence[Sequence[JsonObject]]] = {}
        for job in self._jobs:
            if written := [name for name in job.sinks if name in votes]:
                inputs |= dict.fromkeys(written, job.inputs(plan, len(votes[written[0]])))
        return inputs

    def cancel(self) -> None:
        for job in self._jobs[:1]:  # the jobs of all passes are in one group
            job.cancel()

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
            context, made = make_context(self._job, scheduling=not self._plans)
        spark = Spark(context)
        if self._plans:
            _ = spark.session  # made here, beside the recovery
        return spark, made

    @property
    def _plans(self) -> bool:
        """Spark SQL is needed for certain: there is a transform of DataFrames."""
        return any(work.plans for work in self._passes)

    @property
    def staying_job(self) -> CheckpointJob:
        """The job whose tasks stay."""
        (job,) = self._jobs
        return job


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
