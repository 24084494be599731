"""The public entry point: runs a job from its description to its exit code."""

import contextlib
import os
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Literal

from onceward.client.access import CoordinatorAccess
from onceward.client.session import CoordinatorClient
from onceward.client.tls import CoordinatorTls
from onceward.common.errors import ConfigurationError
from onceward.common.links import Links
from onceward.connectors.interfaces import Sink, Source
from onceward.coordinator.service.observer import observers
from onceward.driver import preflight
from onceward.driver.checkpoint_tasks import CheckpointTasks, Turn
from onceward.driver.exits import StopFlag, exit_with_codes, stopping_on_signals
from onceward.driver.generations import Generations
from onceward.driver.journal import Journal
from onceward.driver.measuring import NOT_MEASURED, measure
from onceward.driver.members import Members
from onceward.driver.opening import connect_to, open_page, open_participants, require_job
from onceward.driver.per_checkpoint import TasksPerCheckpoint
from onceward.driver.restarts import Restart
from onceward.driver.runtime import THREADS
from onceward.driver.spark.session import check_session, check_submission, launch
from onceward.driver.spark.tasks import SparkTasks, Tasks
from onceward.driver.staying.checkpoints import CheckpointsOfStayingTasks
from onceward.driver.staying.tasks import StayingTasks, require_short_interval
from onceward.driver.tracing import NOT_TRACED, trace
from onceward.executor.functions import BatchesTransform
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.watch.metrics.endpoint import MetricsEndpoint, as_endpoint
from onceward.watch.traces.installed import wanted
from onceward.watch.web.page import Page, place_in_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Pipeline:
    """Kafka to Kafka through a DataFrame transform, exactly once.

    >>> Pipeline(
    ...     job="orders-eur",
    ...     source=KafkaSource("localhost:9092", topics=["orders"], start="earliest"),
    ...     transform=lambda df: df.where("value is not null"),
    ...     sink=KafkaSink("localhost:9092", topic="orders-eur"),
    ... ).run()  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        job: str,
        source: Source,
        sink: Sink,
        transform: "Callable[[DataFrame], DataFrame] | None" = None,
        transform_batches: BatchesTransform | None = None,
        coordinator: str | None = None,
        tls: CoordinatorTls | None = None,
        token: str | None = None,
        settings: CheckpointSettings | None = None,
        spark: "SparkSession | None" = None,
        per_checkpoint_operations: bool = False,
        tasks: Literal["per_checkpoint", "staying"] = "per_checkpoint",
        restart: Restart | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        metrics: str | MetricsEndpoint | None = None,
        web: str | None = None,
        traces: bool = False,
        accept_risks: Collection[str] = (),
    ) -> None:
        """Describe a job. Starts nothing and uses no network before :meth:`run`.

        :param job: name, ``[a-z0-9][a-z0-9_-]{0,62}``; generations of one job continue each other.
        :param transform: lazy, DataFrame to DataFrame; without one, key, value and headers are copied.
        :param transform_batches: alternative to ``transform``: iterator of pyarrow.RecordBatch to iterator of
            RecordBatch, with the columns that the DataFrames would have. It runs once per task, in the Python worker
            that reads and writes.
        :param coordinator: ``host:port`` of ``onceward serve``; without it a coordinator runs inside this process.
        :param tls: for a coordinator with TLS; without it, what ``ONCEWARD_TLS_CA`` and its siblings name, if set.
        :param token: for a coordinator that knows its peers by tokens: ``env:NAME`` or ``file:PATH``; without it, what
            ``ONCEWARD_TOKEN`` says.
        :param spark: an existing classic session, never changed; without it one is created (``local[*,4]``).
        :param per_checkpoint_operations: allow aggregations, sorts, limits and windows over one checkpoint's rows.
        :param tasks: ``per_checkpoint``: one Spark job per checkpoint. ``staying``: tasks that stay, each on a core of
            its own, for latencies below 100 ms; for copies, choices of columns and ``transform_batches``
            (docs/how-to/low-latency.md).
        :param restart: delays between generations after failures; None = Flink's exponential delay.
        :param state_dir: the embedded coordinator's directory (default ``$ONCEWARD_STATE_DIR`` or ``./.onceward``).
        :param metrics: where to serve metrics for Prometheus, for example ``127.0.0.1:9464``; None = nowhere.
        :param web: where to serve the page of the coordinator in this process, ``127.0.0.1:PORT`` (``onceward[web]``);
            port 0 for any free one.
        :param traces: export OpenTelemetry traces of checkpoints, as the variables ``OTEL_*`` say.
        :param accept_risks: warnings of the preflight that are known and not shown: ``replication``.
        :raises ConfigurationError: when an argument cannot be used.
        """
        self._job = require_job(job, coordinator)
        for argument, function in (("transform", transform), ("transform_batches", transform_batches)):
            if function is not None and not callable(function):
                raise ConfigurationError(f"{argument}: {function!r} is not a function.")
        if transform is not None and transform_batches is not None:
            raise ConfigurationError(
                "transform and transform_batches: give one of them. A function on batches fits into a transform, too: "
                "df.mapInArrow(function, schema)."
            )
        if source.participant.name == sink.participant.name:
            raise ConfigurationError(f"Source and sink are both called {source.participant.name}; name one of them.")
        if tasks not in ("per_checkpoint", "staying"):
            raise ConfigurationError(f"tasks: {tasks!r} is neither 'per_checkpoint' nor 'staying'.")
        self._stay = tasks == "staying"
        self._source = source
        self._sink = sink
        self._transform = transform
        self._transform_batches = transform_batches
        self._access = CoordinatorAccess(address=coordinator, tls=tls, token=token, state_dir=state_dir)
        self._settings = settings or CheckpointSettings()
        if self._stay:
            require_short_interval(self._settings)
        self._spark = spark
        self._per_checkpoint_operations = per_checkpoint_operations
        self._restart = restart or Restart()
        self._metrics = as_endpoint(metrics)
        self._web = place_in_driver(web, self._access)
        self._page: Page | None = None
        self._wants_traces = wanted(traces)
        self._accepted = preflight.accepted_risks(accept_risks)
        self._measured = NOT_MEASURED
        self._traced = NOT_TRACED
        self._stopping = StopFlag()
        self._running: Generations | None = None

    @property
    def metrics_url(self) -> str | None:
        """Where the metrics are served; None without ``metrics`` and while the job does not run."""
        return self._measured.url

    @property
    def page_url(self) -> str | None:
        """Where the page is served; None without ``web`` and while the job does not run."""
        return self._page.url if self._page is not None else None

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
            links, progress = open_participants(
                stack, self._job, self._source, self._sink, self._settings, self._access
            )
            findings = preflight.examine(self._source, self._sink)
            embedded = self._access.embedded
            if self._spark is not None:
                findings += check_session(self._spark, embedded=embedded)
            else:
                findings += check_submission(embedded=embedded)
            preflight.require_safe(self._job, findings, self._accepted)
            self._measured = measure(stack, self._metrics, self._job, links, self._access)
            stack.callback(setattr, self, "_measured", NOT_MEASURED)
            self._traced = trace(stack, self._wants_traces, self._job, embedded=embedded)
            self._page = open_page(stack, self._web, progress)
            stack.callback(setattr, self, "_page", None)
            stack.enter_context(stopping_on_signals(self.stop))
            journal = Journal(self._job, self._measured.follow)
            tasks = self._tasks(stack, journal)
            client = self._connect(stack, links)
            committer = self._sink.committer()
            stack.callback(committer.close)
            members = Members(
                job=self._job,
                source=self._source,
                sink=self._sink,
                committer=committer,
                tasks=tasks,
                settings=self._settings,
                journal=journal,
                progress=progress,
                traces=self._traced.traces,
                checkpoint_tasks=self._checkpoint_tasks(tasks),
            )
            return self._generations(members, client)

    def _launch(self) -> None:
        """Launch Spark's JVM beside what is done before it is needed."""
        if self._spark is None and not self._stopping.is_set():
            THREADS.beside(lambda: launch(scheduling=self._transform is None))

    def _connect(self, stack: contextlib.ExitStack, links: Links) -> CoordinatorClient:
        return connect_to(
            stack,
            self._access,
            links,
            observer=observers(self._measured.observer, self._traced.observer),
            page=self._page,
        )

    def _tasks(self, stack: contextlib.ExitStack, journal: Journal) -> Tasks:
        if self._stay:
            self._source.follow()  # refuses what it cannot do before Spark starts
        tasks = SparkTasks(
            job=self._job,
            source=self._source,
            sink=self._sink,
            transform=self._transform,
            transform_batches=self._transform_batches,
            spark=self._spark,
            embedded=self._access.embedded,
            per_checkpoint_operations=self._per_checkpoint_operations,
            journal=journal,
            stay=self._stay,
        )
        stack.callback(tasks.close)
        if self._spark is not None:
            tasks.start()
        elif not self._stopping.is_set():
            tasks.begin()
        return tasks

    def _checkpoint_tasks(self, tasks: Tasks) -> Callable[[Members, Turn], CheckpointTasks]:
        if not self._stay:
            return TasksPerCheckpoint
        return partial(CheckpointsOfStayingTasks, self._staying(tasks))

    def _staying(self, tasks: Tasks) -> StayingTasks:
        assert isinstance(tasks, SparkTasks)
        return StayingTasks(
            job=self._job,
            source=self._source,
            sink=self._sink,
            settings=self._settings,
            checkpoint_job=lambda: tasks.checkpoint_job,
        )

    def _generations(self, members: Members, client: CoordinatorClient) -> CloseReason:
        self._running = Generations(
            members,
            client,
            self._restart,
            self._stopping,
            takeover=self._access.embedded,  # the lock on the embedded coordinator's directory replaces the lease
        )
        return self._running.run()
