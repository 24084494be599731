"""The public entry point for a program that is one Structured Streaming query."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.common.printable import logger
from onceward.connectors.interfaces import Sink
from onceward.driver import preflight
from onceward.driver.exits import exit_with_codes, stopping_on_signals
from onceward.driver.letters import DeadLetters, outputs_with
from onceward.driver.opening import Job
from onceward.driver.options import JobOptions, describing_options
from onceward.driver.output import Output, outputs_of, require_one_pass
from onceward.driver.restarts import FINAL, Restarts
from onceward.driver.spark.session import check_submission, is_alive, make_session
from onceward.driver.streaming.sink import StreamSink
from onceward.protocol.events import CloseReason
from onceward.protocol.values import JobName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StreamingPipeline"]

_log = logger("onceward.pipeline")

_OUTPUT_MODES = ("append", "update", "complete")
_TRIGGERS = ("availableNow", "once", "processingTime")


class StreamingPipeline(Job):
    """A Structured Streaming query to Kafka, exactly once, with the restarts and exit codes of a ``Pipeline``.

    >>> StreamingPipeline(
    ...     job="totals",
    ...     query=lambda spark: spark.readStream.format("kafka")...,
    ...     sink=KafkaSink("localhost:9092", topic="totals"),
    ...     checkpoint_location="/data/totals",
    ...     output_mode="update",
    ... ).run()  # doctest: +SKIP
    """

    @describing_options
    def __init__(
        self,
        *,
        job: str,
        query: "Callable[[SparkSession], DataFrame]",
        sink: Sink | None = None,
        outputs: Mapping[str, Output] | None = None,
        dead_letters: DeadLetters | None = None,
        checkpoint_location: str | os.PathLike[str],
        output_mode: str = "append",
        trigger: Mapping[str, Any] | None = None,
        spark: "SparkSession | None" = None,
        allow_complete_mode: bool = False,
        allow_different_state: bool | int = False,
        continue_at: int | None = None,
        **options: Unpack[JobOptions],
    ) -> None:
        """Describe a query. Starts nothing and uses no network before :meth:`run`.

        :param job: name, ``[a-z0-9][a-z0-9_-]{0,62}``; one job for each query.
        :param query: function of a session that returns a streaming DataFrame; called at each start of the query.
        :param outputs: as for :class:`StreamSink`.
        :param dead_letters: as for :class:`StreamSink`.
        :param checkpoint_location: where Spark keeps the query's offsets and state.
        :param output_mode: ``append``, ``update`` or ``complete``.
        :param trigger: one argument of Spark's ``trigger``, for example ``{"processingTime": "1 second"}``; None = a
            batch follows the last one at once.
        :param spark: an existing classic session, never changed; without it one is created (``local[*,4]``).
        :param allow_complete_mode: accept ``output_mode="complete"``: each batch writes the whole result.
        :param allow_different_state: as for :class:`StreamSink`.
        :param continue_at: as for :class:`StreamSink`.
        :raises ConfigurationError: when an argument cannot be used.
        """
        problems = _problems(query, output_mode, trigger, allow_complete_mode)
        try:
            JobName(job)
        except (ValueError, TypeError) as error:
            problems.append(f"job: {error}")
        if problems:
            raise ConfigurationError(
                "This StreamingPipeline cannot be used; nothing was started. Change these arguments:\n"
                + "\n".join(f"  - {problem}" for problem in problems)
            )
        super().__init__(job, options)
        self._given = options
        self._query = query
        self._sink, self._outputs, self._dead_letters = sink, outputs, dead_letters
        every = outputs_of(sink, outputs)
        require_one_pass(every)
        outputs_with(self._job, dead_letters, every, alone=sink is not None)
        self._checkpoint_location = os.fspath(checkpoint_location)
        self._output_mode = output_mode
        self._trigger = dict(trigger or {})
        self._spark = spark
        self._allow_complete_mode = allow_complete_mode
        self._allow_different_state = allow_different_state
        self._continue_at = continue_at
        self._running: StreamSink | None = None

    def stop(self) -> None:
        """End the query after its running batch is settled; callable from any thread and from signal handlers."""
        self._stopping.set()
        if self._running is not None:
            self._running.stop()

    def run(self) -> CloseReason:
        """Run until the query has processed what is available, a signal or :meth:`stop` ends it, or a person must act.

        A query that fails is started again, with Spark's checkpointLocation, after the delays of ``restart``. Final
        errors are raised as by ``Pipeline.run``, and what keeps the first query from being made or started as it is.
        """
        exit_with_codes()
        with contextlib.ExitStack() as stack:
            stack.callback(self._stopping.clear)
            spark = self._session(stack)
            sink = stack.enter_context(
                StreamSink(
                    spark,
                    job=self._job,
                    sink=self._sink,
                    outputs=self._outputs,
                    dead_letters=self._dead_letters,
                    allow_complete_mode=self._allow_complete_mode,
                    allow_different_state=self._allow_different_state,
                    continue_at=self._continue_at,
                    **self._given,
                )
            )
            self._running, self._opened = sink, sink._opened
            stack.callback(setattr, self, "_opened", None)
            stack.enter_context(stopping_on_signals(self.stop))
            return self._queries(spark, sink)

    def _session(self, stack: contextlib.ExitStack) -> "SparkSession":
        if self._spark is not None:
            return self._spark
        preflight.require_safe(self._job, check_submission(embedded=self._options.access.embedded))
        spark, made = make_session(self._job)
        if made:
            stack.callback(spark.stop)
        return spark

    def _queries(self, spark: "SparkSession", sink: StreamSink) -> CloseReason:
        """Run the query again and again until it ends without an error, or with a final one."""
        restarts = Restarts(self._options.restart)
        query: StreamingQuery | None = None
        while not self._stopping.is_set():
            began, before = time.monotonic(), sink.batches
            try:
                query = self._start(spark, sink)
                return sink.await_termination(query)
            except FINAL:
                raise
            except Exception as error:
                if not is_alive(spark.sparkContext):
                    raise OncewardError(
                        "Spark's JVM is gone. Completed batches are committed now or at the next start; the running "
                        "batch is run again by the next start. Start the program again."
                    ) from error
                following = restarts.after(
                    error, settled=sink.batches - before, failed=1, lasted=time.monotonic() - began
                )
                if sink.ended or following.delay is None or query is None:  # never started: the program is wrong
                    raise
                _log.warning("job %s: starting the query again in %.1f s: %s", self._job, following.delay, error)
                self._stopping.wait(following.delay)
        return CloseReason.STOPPED

    def _start(self, spark: "SparkSession", sink: StreamSink) -> "StreamingQuery":
        query = self._query(spark)
        sink.check(query)
        writer = query.writeStream.outputMode(self._output_mode)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        location, name = self._checkpoint_location, str(self._job)  # PySpark 4.0 refuses subclasses of str
        return writer.option("checkpointLocation", location).queryName(name).foreachBatch(sink).start()


def _problems(query: object, output_mode: str, trigger: object, allow_complete_mode: bool) -> "list[str]":
    problems = []
    if not callable(query):
        problems.append(f"query: {query!r} is not a function of a session that returns a streaming DataFrame")
    if output_mode not in _OUTPUT_MODES:
        problems.append(f"output_mode: {output_mode!r} is none of {', '.join(_OUTPUT_MODES)}")
    if output_mode == "complete" and not allow_complete_mode:
        problems.append(
            "output_mode: in complete mode each batch adds its whole result to the output again; use "
            "'update', or pass allow_complete_mode=True if the readers expect that"
        )
    if trigger is not None and (not isinstance(trigger, Mapping) or len(trigger) != 1 or set(trigger) - set(_TRIGGERS)):
        problems.append(
            f"trigger: {trigger!r} is not one of {', '.join(_TRIGGERS)} with its value. Continuous and real-time "
            "triggers have no batches, which checkpoints need"
        )
    return problems
