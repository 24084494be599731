"""The public entry point: runs a job from its description to its exit code."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal, Unpack

from onceward.client.session import CoordinatorClient
from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import HasWholeRecords, Sink, SinkSession, Source
from onceward.connectors.letters import DEAD_LETTERS, OUTPUTS, Wanted, back_job
from onceward.driver.checkpoint_tasks import CheckpointTasks, Turn
from onceward.driver.exits import StopFlag, exit_with_codes, stopping_on_signals
from onceward.driver.generations import Generations
from onceward.driver.letters import OF_A_LETTER, DeadLetters, LetterCount, letters_source, outputs_with
from onceward.driver.members import Members
from onceward.driver.opening import Job, OpenJob
from onceward.driver.options import JobOptions, describing_options
from onceward.driver.output import Output, outputs_of, require_whole
from onceward.driver.per_checkpoint import TasksPerCheckpoint
from onceward.driver.runtime import THREADS
from onceward.driver.spark.passes import Pass, passes_of
from onceward.driver.spark.schemas import column_names
from onceward.driver.spark.session import check_session, check_submission, launch
from onceward.driver.spark.tasks import SparkTasks, Tasks
from onceward.driver.staying.checkpoints import CheckpointsOfStayingTasks
from onceward.driver.staying.tasks import StayingTasks, require_followed, require_short_interval, require_stays
from onceward.executor.functions import BatchesTransform, RoutedTransform
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Pipeline(Job):
    """Kafka to Kafka through a DataFrame transform, exactly once.

    >>> Pipeline(
    ...     job="orders-eur",
    ...     source=KafkaSource("localhost:9092", topics=["orders"], start="earliest"),
    ...     transform=lambda df: df.where("value is not null"),
    ...     sink=KafkaSink("localhost:9092", topic="orders-eur"),
    ... ).run()  # doctest: +SKIP
    """

    @describing_options
    def __init__(
        self,
        *,
        job: str,
        source: Source,
        sink: Sink | None = None,
        outputs: Mapping[str, Output] | None = None,
        transform: "Callable[[DataFrame], DataFrame] | None" = None,
        transform_batches: BatchesTransform | RoutedTransform | None = None,
        dead_letters: DeadLetters | None = None,
        spark: "SparkSession | None" = None,
        per_checkpoint_operations: bool = False,
        tasks: Literal["per_checkpoint", "staying"] = "per_checkpoint",
        **options: Unpack[JobOptions],
    ) -> None:
        """Describe a job. Starts nothing and uses no network before :meth:`run`.

        :param job: name, ``[a-z0-9][a-z0-9_-]{0,62}``; generations of one job continue each other.
        :param outputs: instead of ``sink``, several places to write to, decided together: :class:`Output` by a name
            that is the same in every run (docs/how-to/outputs.md).
        :param transform: lazy, DataFrame to DataFrame; without one, key, value and headers are copied.
        :param transform_batches: alternative to ``transform``: iterator of pyarrow.RecordBatch to iterator of
            RecordBatch, with the columns that the DataFrames would have; with several outputs, to pairs of a name and
            a RecordBatch. It runs once per task, in the Python worker that reads and writes.
        :param dead_letters: where the records go for which ``transform_batches`` raises, or that a DataFrame marks,
            instead of stopping the job (docs/how-to/dead-letters.md).
        :param spark: an existing classic session, never changed; without it one is created (``local[*,4]``).
        :param per_checkpoint_operations: allow aggregations, sorts, limits and windows over one checkpoint's rows.
        :param tasks: ``per_checkpoint``: one Spark job per checkpoint. ``staying``: tasks that stay, each on a core of
            its own, for latencies below 100 ms; for copies, choices of columns and ``transform_batches``
            (docs/how-to/low-latency.md).
        :raises ConfigurationError: when an argument cannot be used.
        """
        super().__init__(job, options)
        for argument, function in (("transform", transform), ("transform_batches", transform_batches)):
            if function is not None and not callable(function):
                raise ConfigurationError(f"{argument}: {function!r} is not a function.")
        if transform is not None and transform_batches is not None:
            raise ConfigurationError(
                "transform and transform_batches: give one of them. A function on batches fits into a transform, too: "
                "df.mapInArrow(function, schema)."
            )
        self._outputs = outputs_of(sink, outputs)
        if source.participant.name in self._outputs:
            raise ConfigurationError(f"Source and sink are both called {source.participant.name}; name one of them.")
        if transform_batches is not None:
            require_whole(self._outputs)
        self._dead_letters = dead_letters
        self._outputs, self._letters = outputs_with(
            self._job, dead_letters, self._outputs, alone=sink is not None, on_batches=transform_batches is not None
        )
        if tasks not in ("per_checkpoint", "staying"):
            raise ConfigurationError(f"tasks: {tasks!r} is neither 'per_checkpoint' nor 'staying'.")
        self._stay = tasks == "staying"
        self._transform = transform
        self._transform_batches = transform_batches
        self._source, self._hidden = self._read_for_letters(source)
        self._settings = self._options.settings or CheckpointSettings()
        if self._stay:
            require_short_interval(self._settings)
        self._spark = spark
        self._per_checkpoint_operations = per_checkpoint_operations
        self._running: Generations | None = None

    def _read_for_letters(self, source: Source) -> tuple[Source, Sequence[str]]:
        """Return the source of the job, and its columns that letters keep and a function on batches does not get.
        Raises ConfigurationError if the letters of a DataFrame would lack some."""
        if self._dead_letters is None or not isinstance(source, HasWholeRecords):
            return source, ()
        whole, besides = source.with_whole_records()
        if self._transform_batches is not None:
            return whole, besides
        if self._dead_letters.where is not None and besides:
            raise ConfigurationError(
                f"dead_letters: the source does not read {', '.join(besides)}, which a letter keeps. Nothing was "
                "started. Give KafkaSource(include_headers=True) without columns=; the transform keeps its columns."
            )
        return source, ()

    def _passes(self, sinks: Sequence[SinkSession]) -> Sequence[Pass]:
        dead, outputs = self._dead_letters, self._outputs
        if dead is None or self._letters is None or self._transform_batches is not None:
            return passes_of(outputs, sinks, self._transform)
        columns = column_names(self._source.schema)
        # never empty: then there is a column for each output
        along = [name for name in columns if name in OF_A_LETTER] or OF_A_LETTER
        return passes_of(outputs, sinks, self._transform, unplanned=DEAD_LETTERS, along=along, marks=dead.marks)

    def redrive(
        self,
        *,
        letter_class: str | None = None,
        output: str | None = None,
        since: datetime | None = None,
        attempts: int = 3,
    ) -> "Pipeline":
        """Return the job ``JOB-redrive``, which takes the dead letters of this one through the same transform into the
        same outputs, and ends with the letters that are there when it begins.

        Each letter goes back once, also if ``onceward redrive`` has brought it back into the input. A record that fails
        again becomes a letter again. See docs/how-to/dead-letters.md.

        >>> pipeline.redrive(letter_class="KeyError").run()  # doctest: +SKIP

        :param letter_class: only letters of this class, as ``onceward letters`` names it.
        :param output: only letters that this output has refused.
        :param since: only letters written since then; without a zone it is UTC.
        :param attempts: only records that have failed less often.
        :raises ConfigurationError: for a job whose dead letters cannot be read.
        """
        if self._dead_letters is None:
            raise ConfigurationError(f"Job {self._job} has no dead_letters=, so there is nothing to bring back.")
        at = None if since is None else since if since.tzinfo is not None else since.replace(tzinfo=UTC)
        wanted = Wanted(
            job=self._job,
            into=OUTPUTS,
            attempts=attempts,
            kind=letter_class,
            output=output,
            since=None if at is None else round(at.timestamp() * 1000),
        )
        again = copy(self)
        again._job = back_job(self._job)
        again._source, again._hidden = again._read_for_letters(
            letters_source(self._dead_letters, wanted, column_names(self._source.schema))
        )
        # what the job itself serves stays its own, and the run ends
        again._options = replace(self._options, metrics=None, web=None)
        again._stay = False
        again._stopping = StopFlag()
        return again

    def stop(self) -> None:
        """Leave after settling the running checkpoint; callable from any thread and from signal handlers."""
        self._stopping.set()
        if self._running is not None:
            self._running.stop()

    def run(self) -> CloseReason:
        """Run until the bounded input is used up, a signal or :meth:`stop` ends the job, or a person must act.

        Failures restart the job as the next generation. Final errors are raised: PreflightError, HaltedError,
        FencedError, CoordinatorLostError, RefusedError, ConfigurationError. Uncaught, they end the process with their
        exit codes (3, 4, 5, 6, 2, 2).
        """
        exit_with_codes()
        with contextlib.ExitStack() as stack:
            stack.callback(self._stopping.clear)
            self._launch()
            embedded = self._options.access.embedded
            findings = (
                check_submission(embedded=embedded)
                if self._spark is None
                else check_session(self._spark, embedded=embedded)
            )
            sinks = [output.sink for output in self._outputs.values()]
            opened = self._open_job(stack, self._source, sinks, self._settings, findings)
            stack.enter_context(stopping_on_signals(self.stop))
            tasks = self._tasks(stack, opened)
            client = self._connect(stack, opened)
            count = None if self._letters is None else LetterCount(self._letters.limits)
            branches = [name for name, output in self._outputs.items() if output.transform]
            members = opened.members(stack, tasks, self._checkpoint_tasks(tasks, opened.sinks), count, branches)
            return self._generations(members, client)

    def _launch(self) -> None:
        """Launch Spark's JVM beside what is done before it is needed."""
        if self._spark is None and not self._stopping.is_set():
            plans = self._transform is not None or any(output.plans for output in self._outputs.values())
            THREADS.beside(lambda: launch(scheduling=not plans))

    def _connect(self, stack: contextlib.ExitStack, opened: OpenJob) -> CoordinatorClient:
        return opened.connect(stack)

    def _tasks(self, stack: contextlib.ExitStack, opened: OpenJob) -> Tasks:
        if self._stay:  # refuse what cannot be done before Spark starts
            require_followed(opened.source).follow()
            for sink in opened.sinks:
                require_stays(sink)
        tasks = SparkTasks(
            job=self._job,
            source=self._source,
            passes=self._passes(opened.sinks),
            transform_batches=self._transform_batches,
            spark=self._spark,
            embedded=self._options.access.embedded,
            per_checkpoint_operations=self._per_checkpoint_operations,
            journal=opened.journal,
            stay=self._stay,
            letters=self._letters,
            hidden=self._hidden,
        )
        stack.callback(tasks.close)
        if self._spark is not None:
            tasks.start()
        elif not self._stopping.is_set():
            tasks.begin()
        return tasks

    def _checkpoint_tasks(
        self, tasks: Tasks, sinks: Sequence[SinkSession]
    ) -> Callable[[Members, Turn], CheckpointTasks]:
        if not self._stay:
            return TasksPerCheckpoint
        return partial(CheckpointsOfStayingTasks, self._staying(tasks, sinks))

    def _staying(self, tasks: Tasks, sinks: Sequence[SinkSession]) -> StayingTasks:
        assert isinstance(tasks, SparkTasks)
        return StayingTasks(
            job=self._job,
            source=require_followed(self._source),
            sinks=sinks,
            settings=self._settings,
            staying_job=lambda: tasks.staying_job,
        )

    def _generations(self, members: Members, client: CoordinatorClient) -> CloseReason:
        self._running = Generations(
            members,
            client,
            self._options.restart,
            self._stopping,
            # the lock on the embedded coordinator's directory replaces the lease
            takeover=self._options.access.embedded,
        )
        return self._running.run()
