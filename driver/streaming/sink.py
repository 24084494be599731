"""The public sink for Structured Streaming: a function for ``foreachBatch`` that writes each batch exactly once."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from onceward.common.errors import ConfigurationError, HaltedError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.common.printable import logger
from onceward.connectors.interfaces import Finding, ReplayRefusedError, Sink
from onceward.driver import preflight
from onceward.driver.exits import exit_with_codes, stopping_on_signals
from onceward.driver.generations import Generations
from onceward.driver.letters import DeadLetters, LetterCount, LettersOfQuery, outputs_with
from onceward.driver.mailbox import NothingToReadError
from onceward.driver.opening import Job
from onceward.driver.options import JobOptions, describing_options
from onceward.driver.output import Output, outputs_of, require_one_pass
from onceward.driver.outputs import Votes
from onceward.driver.per_checkpoint import TasksPerCheckpoint
from onceward.driver.spark.passes import passes_of
from onceward.driver.spark.session import check_retries, check_session
from onceward.driver.streaming.batches import (
    Batch,
    Found,
    Place,
    describe_difference,
    describe_other_job,
    describe_refusal,
    describe_second_call,
    place,
)
from onceward.driver.streaming.handover import Handover, StreamEndedError, Work
from onceward.driver.streaming.queries import Query, moves_rows
from onceward.driver.streaming.source import BatchSource
from onceward.driver.streaming.tasks import BatchTasks
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StreamSink"]

_log = logger("onceward.pipeline")

_LOOK_S = 0.2
"""Seconds between looks for signals and for the end of the job."""

_TIMEOUT = "5min"
"""Of a batch, if the program names none: Spark cannot make a batch smaller that was too long. The brokers' default cap
of transactions is 15 min, of which a restart may take 10."""
_STOPPED = "\npy4j.protocol.Py4JJavaError: An error occurred while calling the sink.\n: java.lang.InterruptedException"
"""By this text Spark distinguishes a query that was stopped from one that failed (``StreamExecution``)."""

_registering = threading.Lock()
_open: "dict[JobName, StreamSink]" = {}
"""The open sinks of this process. A signal ends all of their queries."""


class StreamSink(Job):
    """Writes the batches of one Structured Streaming query, each of them in one checkpoint of a job.

    >>> with StreamSink(spark, job="totals", sink=KafkaSink("localhost:9092", topic="totals")) as sink:
    ...     query = totals.writeStream.option("checkpointLocation", "...").foreachBatch(sink).start()
    ...     sink.await_termination(query)  # doctest: +SKIP
    """

    @describing_options
    def __init__(
        self,
        spark: "SparkSession",
        *,
        job: str,
        sink: Sink | None = None,
        outputs: Mapping[str, Output] | None = None,
        dead_letters: DeadLetters | None = None,
        allow_complete_mode: bool = False,
        allow_different_state: bool | int = False,
        continue_at: int | None = None,
        **options: Unpack[JobOptions],
    ) -> None:
        """Open the job and recover it: take the claim, abort what is undecided, commit what is decided. Recovery does
        not wait for the first batch, because readers of the output wait for it.

        :param spark: the query's classic session, never changed.
        :param job: name, ``[a-z0-9][a-z0-9_-]{0,62}``; one job for each query.
        :param outputs: instead of ``sink``, several places to write to, decided together: :class:`Output` by a name
            that is the same in every run (docs/how-to/outputs.md).
        :param dead_letters: where the records go that ``where=`` marks (docs/how-to/dead-letters.md).
        :param allow_complete_mode: accept a query whose output mode is complete: each batch writes the whole result.
        :param allow_different_state: accept that a batch of a query with state has other records when Spark runs it
            again to write its state, as a query that draws at random or reads the clock gives them. The output keeps
            those of the first run. The number of a batch accepts it for that batch alone, True for all.
        :param continue_at: the number of one batch of the query with which the job continues, although batches before
            it were not written, or another job used the checkpointLocation: an error names it.
        :raises ConfigurationError: when an argument cannot be used.
        :raises OncewardError: every final error of ``Pipeline.run``.
        """
        super().__init__(job, options)
        self._outputs = outputs_of(sink, outputs)
        require_one_pass(self._outputs)
        self._dead_letters = dead_letters
        self._outputs, self._rules = outputs_with(self._job, dead_letters, self._outputs, alone=sink is not None)
        self._allow_complete_mode = allow_complete_mode
        self._allow_different_state = allow_different_state
        self._continue_at = continue_at
        self._spark = spark
        self._handover = Handover()
        self._closed = threading.Event()
        self._one_batch = threading.Lock()
        self._gate = threading.Lock()
        """Held to begin a batch, and to look whether one is written: none begins after the look of a stop."""
        self._writing = False
        self._query: Query | None = None
        """The run of the query that had the last batch."""
        self._given: Query | None = None
        """The run that the program waits for, until it has a batch."""
        self._if_rows_move: list[Finding] | None = None
        """What is unsafe then in the session of the query; None: not asked yet."""
        self._written: int | None = None
        """The last batch that was settled in this run of the query."""
        self._awaited = 0
        """Calls of :meth:`await_termination` that wait."""
        self._failures: dict[str | None, BaseException] = {}
        """What the last batch of each run of a query raised, by the run's id; None: in a thread without a query."""
        self.batches = 0
        """Batches that were settled since the sink was made."""
        exit_with_codes()
        with contextlib.ExitStack() as stack:
            self._register(stack)
            self._open(stack, spark)
            self._stack = stack.pop_all()

    def _register(self, stack: contextlib.ExitStack) -> None:
        """Without this, a second sink of the job would take it from the first one: both have one coordinator."""
        with _registering:
            if self._job in _open:
                raise ConfigurationError(
                    f"job: this process has an open StreamSink of job {self._job} already. Nothing was started. Give "
                    "each query its own job, or close the other sink first."
                )
            _open[self._job] = self
        stack.callback(_open.pop, self._job)

    def _open(self, stack: contextlib.ExitStack, spark: "SparkSession") -> None:
        options = self._options
        settings = replace(options.settings or CheckpointSettings(timeout=_TIMEOUT), interval=0, min_pause=0)
        source = BatchSource(self._job, self._handover, continue_at=self._continue_at)
        sinks = [output.sink for output in self._outputs.values()]
        opened = self._open_job(stack, source, sinks, settings, check_session(spark, embedded=options.access.embedded))
        (work,) = passes_of(self._outputs, opened.sinks, None)
        self._progress = opened.progress
        client = opened.connect(stack, shared=True)
        self._tasks = BatchTasks(
            spark,
            job=self._job,
            shares=work.shares,
            handover=self._handover,
            timeout=settings.seconds("timeout"),
            letters=self._letters(),
        )
        count = None if self._rules is None else LetterCount(self._rules.limits)
        self._generations = Generations(
            opened.members(stack, self._tasks, TasksPerCheckpoint, count),
            client,
            options.restart,
            self._stopping,
            takeover=options.access.embedded,
            await_input=lambda: self._handover.wait_offer(self._offers_of_failed, self._closed),
        )
        self._start(stack, "job", self._run, self._leave)
        self._handover.wait_recovered()
        self._start(stack, "query", self._watch, self._closed.set)

    def _letters(self) -> LettersOfQuery | None:
        if self._dead_letters is None or self._rules is None:
            return None
        return LettersOfQuery(self._dead_letters, self._rules)

    def _start(self, stack: contextlib.ExitStack, name: str, run: Callable[[], None], end: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=f"onceward-{self._job}-{name}", daemon=True)
        stack.callback(thread.join)
        stack.callback(end)
        thread.start()

    def _run(self) -> None:
        try:
            reason = self._generations.run()
        except BaseException as error:  # noqa: BLE001 - raised where the program waits
            self._handover.end(error)
        else:
            self._reason = reason
            self._handover.end(StreamEndedError(f"Job {self._job} was ended: {reason.value}."))

    def _leave(self) -> None:
        """Leave after settling what is completed: no program that has failed waits for the rest of a batch."""
        self._generations.stop()
        if (batch := self._tasks.leave()) is not None:
            _log.warning(
                "job %s: the sink is closed while batch %d runs. The batch is ended, nothing of it becomes visible, "
                "and the next start runs it again. sink.stop() and sink.await_termination(query) end a query after its "
                "batch",
                self._job,
                batch,
            )

    _reason = CloseReason.FINISHED
    _offers_of_failed = 0
    """How many batches were offered when the query was found to have failed: the next one is of another run."""

    # -- in the query's thread

    def __call__(self, df: "DataFrame", batch: int) -> None:
        """Write a batch; return when it is settled. Pass the sink to ``foreachBatch``, or call it inside the function
        that is passed there: once in each batch, also in an empty one."""
        self._take(df, batch)

    def skip(self, batch: int) -> None:
        """Record that nothing of a batch is to be written. Call it instead of the sink, in a query without state."""
        self._take(None, batch)

    def _take(self, df: "DataFrame | None", batch: int) -> None:
        """Write a batch, or skip it if ``df`` is None."""
        try:
            with self._one_batch:
                query = self._query_here()
                with self._batch(query):
                    self._write(df, query, batch)
                    for run in (query.run, None):
                        self._failures.pop(run, None)
                    self._written = batch
                    self.batches += 1
        except Exception as error:  # noqa: BLE001 - await_termination raises it
            self._failures[self._run_here()] = error
            if self._query is not None and not self._query.active():
                raise RuntimeError(f"batch {batch} of job {self._job} was not written: {_STOPPED}") from None
            if not isinstance(error, StreamEndedError):
                _log.error("job %s: batch %d was not written: %s", self._job, batch, error)
            # A short text: Spark searches it with a regular expression that overflows its thread's stack.
            raise RuntimeError(
                f"batch {batch} of job {self._job} was not written: {type(error).__name__}, see the log"
            ) from None

    def _query_here(self) -> Query:
        """Return the run of the query that calls the sink."""
        query = self._query
        if query is None or not query.is_here():
            other = Query.of_batch(self._spark)
            if query is not None and query.active():
                raise ConfigurationError(
                    f"The sink of job {self._job} gets batches of two queries that run, {query.id} and {other.id}. "
                    "Nothing of this batch was written. Give each query its own job and sink."
                )
            self._query, self._given, self._written, self._if_rows_move = other, None, None, None
            self._failures.clear()
            return other
        return query

    def _run_here(self) -> str | None:
        """Return the id of the run that calls the sink; None outside of one, and when it is stopped."""
        query = self._query
        with contextlib.suppress(ConfigurationError):
            return (query if query is not None and query.is_here() else Query.of_batch(self._spark)).run
        return None

    def _failure_of(self, query: Query) -> BaseException | None:
        return self._failures.get(query.run) or self._failures.get(None)

    @contextlib.contextmanager
    def _batch(self, query: Query) -> Iterator[None]:
        """Write a batch inside, unless the query is to end: then wait until it is stopped, and raise StreamEndedError.
        To Spark a batch that fails is a failure of the query, and a stop is none."""
        with self._gate:
            self._writing = not self._ending
        try:
            while not self._writing:
                if self._closed.wait(_LOOK_S) or not query.active():
                    raise StreamEndedError(f"Job {self._job} is being stopped, or its sink is closed.")
            yield
        finally:
            self._writing = False

    def _write(self, df: "DataFrame | None", query: Query, number: int) -> None:
        kill_point(KillPoint.BATCH_BEFORE_OFFER)
        last = self._written
        if last is None:
            self._require_usable(query)
        if df is not None:
            self._require_rows_kept(df)
        found = query.find(number, last=last)
        if last is None:
            self._require_own(query, found)
        if last == number:
            found = replace(found, batch=replace(found.batch, in_parts=True))
        if df is None:
            found = self._skipped(query, found)
        ran = False
        with self._handover.offering(found):
            kill_point(KillPoint.BATCH_AFTER_OFFER)
            while (work := self._handover.next_work(found.batch, query.active)) is not None:
                try:
                    votes = self._run_work(df, work)
                except ReplayRefusedError as error:
                    self._handover.answer(work, error)  # it halts the job, which ends the loop
                except Exception as error:
                    if self._handover.answer(work, error):
                        raise
                else:
                    ran = self._handover.answer(work, votes) or ran
        if last == number:
            raise ConfigurationError(describe_second_call(self._job, number))
        kill_point(KillPoint.BATCH_AFTER_SETTLE)
        if df is not None and not ran and query.has_state():
            self._write_state(df, query, found.batch)

    def _run_work(self, df: "DataFrame | None", work: Work) -> Votes:
        if df is None:
            raise ReplayRefusedError(f"the program skips batch {work.batch.number} now, and has written it before")
        return self._tasks.execute(df, work)

    def _skipped(self, query: Query, found: Found) -> Found:
        if query.has_state():
            raise ConfigurationError(
                f"Batch {found.batch.number} of job {self._job} cannot be skipped: the query has state, which each "
                "batch makes when it runs. Nothing was written. Pass the batch to the sink, also an empty one."
            )
        return replace(found, skipped=True)

    def _require_own(self, query: Query, found: Found) -> None:
        """Name this job in the checkpointLocation, unless it is another one's: that may have written the batch."""
        mine, owners = f"{self._job}@{self._progress.store}", query.owners()
        if owners - {mine} and self._continue_at != found.batch.number:
            raise ConfigurationError(describe_other_job(self._job, owners - {mine}, found))
        if owners != {mine}:
            query.give_to(mine)

    def _write_state(self, df: "DataFrame", query: Query, batch: Batch) -> None:
        """Run a batch that was settled before: Spark needs the version of the state that the batch makes."""
        wrote = self._handover.settled_digest
        _log.info("job %s: batch %d is settled already; Spark writes its state", self._job, batch.number)
        kill_point(KillPoint.BATCH_BEFORE_STATE)
        made = self._tasks.run_again(df)
        kill_point(KillPoint.BATCH_AFTER_STATE)
        if made == wrote:
            return
        difference = describe_difference(self._job, batch, wrote, made)
        if not self._accepts_difference(batch.number):
            self._handover.refuse(HaltedError(f"{difference}."), query.active)
        _log.warning("job %s: %s: accepted by allow_different_state", self._job, difference)

    def _accepts_difference(self, number: int) -> bool:
        allowed = self._allow_different_state
        return allowed if isinstance(allowed, bool) else allowed == number

    def _require_rows_kept(self, df: "DataFrame") -> None:
        """Raise PreflightError if rows of a batch move between tasks, in a session that may lose some of them then.
        Looks at each batch: a function of the program, or a table that has grown, may move rows in a later one."""
        if self._if_rows_move is None:  # a run of a query has a session of its own, which no one changes
            self._if_rows_move = check_retries(df.sparkSession)
        if self._if_rows_move and moves_rows(df):
            preflight.require_safe(self._job, self._if_rows_move)

    def _require_usable(self, query: Query) -> None:
        if query.is_temporary:
            raise ConfigurationError(
                "The query names no checkpointLocation, and Spark deletes the one that it made when the query ends: "
                "the next start would read everything again. Nothing was written. Set "
                "writeStream.option('checkpointLocation', ...) to a place that stays."
            )
        if query.rewrites_everything and not self._allow_complete_mode:
            raise ConfigurationError(
                "The query's output mode is complete: each batch would add its whole result to the output again. "
                "Nothing was written. Use outputMode('update'), which writes what has changed, or pass "
                "allow_complete_mode=True if the readers of the output expect that, for example of a compacted topic."
            )

    # -- in the program's thread

    def check(self, df: "DataFrame") -> None:
        """Check that the outputs can take a query's records: ``df`` is what the program will start. Its first batch,
        which may come hours later, is checked in any case. Raises ConfigurationError naming what is wrong."""
        self._tasks.check(df)

    def await_termination(self, query: "StreamingQuery") -> CloseReason:
        """Wait until ``query`` ends. SIGINT, SIGTERM, :meth:`stop` and ``onceward stop`` end it after its running batch
        is settled and in Spark's commit log.

        A signal ends the queries of all open sinks of this process. Raises the error that failed a batch or ended the
        job, and Spark's StreamingQueryException for every other failure. Uncaught, errors of Onceward end the process
        with their exit codes.
        """
        from pyspark.errors import StreamingQueryException

        self._awaited += 1
        try:
            given = self._give(query)
            with stopping_on_signals(_stop_all):
                try:
                    self._require_together(query, ended=False)
                    while not query.awaitTermination(_LOOK_S):  # type: ignore[arg-type]  # Spark takes fractions
                        if self._may_stop():
                            query.stop()
                except StreamingQueryException:
                    if not self._ending:
                        failure = self._failure_of(given)
                        if failure is not None:
                            raise failure from None
                        raise
            ended = self._handover.ended
            if ended is not None and not isinstance(ended, StreamEndedError):
                raise ended
            if ended is not None:
                return self._reason
            if self._stopping.is_set():
                return CloseReason.STOPPED
            self._require_together(query, ended=True)
            return CloseReason.FINISHED
        finally:
            self._awaited -= 1
            self._stopping.clear()  # what it stopped has ended; a query that is started later is another one

    @staticmethod
    def await_all(running: "Sequence[tuple[StreamSink, StreamingQuery]]") -> None:
        """Wait until all queries of a program have ended, each as in :meth:`await_termination`. One that fails stops
        the others after their running batch, and its error is raised."""
        waiting, failure = list(running), None
        for sink, query in waiting:
            sink._give(query)
        with stopping_on_signals(_stop_all):
            while waiting:
                for sink, query in list(waiting):
                    if query.isActive and not sink._ending:
                        continue
                    waiting.remove((sink, query))
                    try:
                        sink.await_termination(query)
                    except Exception as error:  # noqa: BLE001 - raised when the others have ended
                        failure = failure or error
                        for other, _ in waiting:
                            other.stop()
                time.sleep(_LOOK_S if waiting else 0)
        if failure is not None:
            raise failure

    def _give(self, query: "StreamingQuery") -> Query:
        """Return a query that the program waits for, which may fail before the sink gets a batch of it."""
        given, known = Query.of(self._spark, query), self._query
        if known is None or (known.run != given.run and not known.active()):
            self._given = given
        return given

    def _require_together(self, query: "StreamingQuery", *, ended: bool) -> None:
        """Raise HaltedError if Spark's commit log is beyond the job's newest batch, which no batch may ever show: where
        nothing new is to be read, the sink is not called. ``ended``: also if it is behind."""
        run = Query.of(self._spark, query)
        committed, base = run.newest_committed(), self._handover.newest  # in this order: a commit follows its batch
        if base is None or (committed is None and not ended):
            return
        number = -1 if committed is None else committed
        if run.id == base.query and (number == base.number or (number < base.number and not ended)):
            return
        batch = Batch(query=run.id, number=number + 1, offsets="")
        found = Found(batch=batch, after=number, location=run.location, last=self._written)
        where = place(base, found, continue_at=self._continue_at)
        if where is not Place.NEXT:
            query.stop()
            raise HaltedError(describe_refusal(self._job, where, base, found))

    @property
    def ended(self) -> bool:
        """True when no batch can be written any more: an error or a person has ended the job."""
        return self._handover.ended is not None

    def stop(self) -> None:
        """End the query after its running batch is settled; callable from any thread and from signal handlers."""
        self._stopping.set()

    @property
    def _ending(self) -> bool:
        """Whether the query is to end without an error."""
        return self._stopping.is_set() or isinstance(self._handover.ended, StreamEndedError)

    def _may_stop(self) -> bool:
        """Whether the query is to end, and a stop interrupts nothing between a batch's transactions and Spark's commit
        log: the next start would run that batch again."""
        if not self._ending and not self.ended:
            return False
        with self._gate:
            if self._writing:
                return False
        query, written = self._query, self._written
        return query is None or written is None or not query.active() or query.committed(written)

    def _watch(self) -> None:
        """End the query if no program waits for it in :meth:`await_termination`. Leave the job when it has failed."""
        while not self._closed.wait(_LOOK_S):
            query = self._query
            if query is not None and not self._awaited and self._may_stop() and query.active():
                query.stop()
                self._stopping.clear()
            try:
                self._look_for_failure()
            except Exception:  # noqa: BLE001 - Spark's JVM is gone, and with it the query; the generation finds out
                return

    def _look_for_failure(self) -> None:
        """Leave the job if its query has failed: it is not running, whatever else the program waits for."""
        # in this order: a new run's first offer is not counted
        offers, query = self._handover.offers, self._given or self._query
        if query is None or self._ending or self.ended or self._generations.dry or query.active():
            return
        failure = query.failure()
        if failure is not None and query is (self._given or self._query):
            text = str(self._failure_of(query) or failure)
            self._offers_of_failed = offers
            self._generations.run_dry(NothingToReadError(f"The query has failed: {text}"))

    def close(self) -> None:
        """Settle what is decided and leave the job. A batch that runs meanwhile is ended and fails, and runs again at
        the next start."""
        with contextlib.suppress(Exception):  # without Spark's JVM there is no answer
            self._look_for_failure()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stop_all() -> None:
    for sink in list(_open.values()):
        sink.stop()
