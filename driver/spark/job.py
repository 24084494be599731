"""One Spark job per checkpoint: the RDD or DataFrame from reader to votes, reused where that is safe.

When no records go through the JVM, the job is an RDD: starting its tasks and collecting their votes takes half the time
of a query with the same tasks (measured on 2 cores; Spark plans and announces each query).
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onceward.common.errors import CheckpointFailedError, ConfigurationError
from onceward.connectors.interfaces import Plan, Source, SplitFollower, writer_options
from onceward.connectors.letters import DEAD_LETTERS
from onceward.connectors.slots import SlotWriter, StayingWriter
from onceward.connectors.tasks import TASK_PROPERTY, CheckpointTask, check_ballots
from onceward.driver.letters import routed, setting_aside
from onceward.driver.outputs import Votes
from onceward.driver.spark import plans
from onceward.driver.spark.passes import Pass
from onceward.driver.spark.planning import planning
from onceward.driver.spark.schemas import column_names
from onceward.driver.spark.session import Spark, is_on
from onceward.executor.aside import ByColumn, RowByRow, SettingAside
from onceward.executor.functions import (
    BALLOT_SCHEMA,
    BatchesTransform,
    RoutedTransform,
    Router,
    choosing,
    fusing,
    reading,
    route_to,
    unusable_in,
    writing,
)
from onceward.executor.letters import Rules
from onceward.executor.link import TaskCredentials
from onceward.executor.staying import staying
from onceward.protocol.values import CheckpointId, Generation, JobName, JsonObject, ParticipantName

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

_RECORDS_PER_TASK = 1_000_000
"""Records per task above which there are more tasks than run at a time. A task with its transaction costs as much as
20,000 records (benchmarks/RESULTS.md), a few hundredths of its work."""
_RECORDS_PER_TASK_ELASTIC = 20_000
"""The same with dynamic allocation: Spark requests executors only while tasks wait for one
(``spark.dynamicAllocation.schedulerBacklogTimeout``), and tasks never wait when there are only as many as run at a
time."""
_KEPT_BUILDS = 16
TASKS_PORT = "spark.onceward.tasks.port"
"""Spark's setting for the port of the driver that staying tasks connect to."""
_LAST_PORT = 65535


class Path(StrEnum):
    """The path of records between reader and writer."""

    COPY = "copy"
    """Reader and writer in one Python worker: there is no transform, or one that only selects and renames columns."""
    BATCHES = "batches"
    """A function on Arrow batches between reader and writer, in the same worker."""
    DATAFRAME = "dataframe"
    """Through the JVM, where Spark runs the transform."""


@dataclass(frozen=True, kw_only=True)
class _Built:
    """A job that collects ballots, and the facts of its plan."""

    path: Path
    ballots: Callable[[], Iterable[str]]
    """Runs the job and returns the ballots."""
    facts: plans.PlanFacts
    expected: int | None
    """Number of ballots, if it is known before the job; else None."""
    examined: "DataFrame | None" = None
    """The DataFrame that ``facts`` describe; None without a transform for Spark."""
    worker: Router | SettingAside | None = None
    """The transform, if it runs in the worker that reads and writes."""
    held: Callable[[], float] = lambda: 0.0
    """Seconds for which readers in processes of their own were held back, in all runs together."""


class CheckpointJob:
    """Builds and runs the Spark job of a pipeline."""

    def __init__(
        self,
        *,
        spark: Spark,
        job: JobName,
        source: Source,
        work: Pass,
        transform_batches: BatchesTransform | RoutedTransform | None,
        per_checkpoint_operations: bool,
        letters: Rules | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        """``transform_batches``: instead of a transform of ``work``; yields batches for its only sink, or pairs of a
        sink's name and a batch. ``letters``: what :data:`DEAD_LETTERS` gets, if ``work`` has a sink of that name.
        ``hidden``: columns of the source for letters alone."""
        self._spark = spark
        self._job = job
        self._source = source
        self._work = work
        self._transform_batches = transform_batches
        self._sinks = {share.name: share.sink for share in work.shares}
        self._per_checkpoint_operations = per_checkpoint_operations
        self._letters = letters if DEAD_LETTERS in self._sinks else None
        self._hidden = hidden
        self._source_columns = tuple(column_names(source.schema))
        self._group = f"onceward {job}"
        self._staying = f"onceward {job} staying"
        elastic = is_on(spark.context.getConf(), "spark.dynamicAllocation.enabled")
        self._records_per_task = _RECORDS_PER_TASK_ELASTIC if elastic else _RECORDS_PER_TASK
        self._builds: dict[int, _Built] = {}
        """Reusable builds by number of splits; the most recently used is last."""
        self._leaves: dict[int, DataFrame] = {}
        self._built: _Built | None = None
        self._ran: tuple[Plan, tuple[JsonObject, ...]] | None = None
        """The plan that ran last, and its splits as the tasks read them."""

    @property
    def sinks(self) -> Collection[ParticipantName]:
        """The names of the sinks that it writes to."""
        return self._sinks.keys()

    @property
    def path(self) -> Path:
        """The path of records in the last plan that was built."""
        assert self._built is not None, "checked before it is asked"
        return self._built.path

    @property
    def moving(self) -> bool:
        """Whether rows may move between tasks in the last plan that was built."""
        return self._built is not None and self._built.facts.moving

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the source that the last built plan reads."""
        return self._built.facts.columns if self._built is not None else ()

    def check(self) -> None:
        """Build the plan without running it. Raises ConfigurationError for a transform that cannot be used, and for
        columns that a sink cannot take."""
        # two splits: with one, Spark leaves out the exchanges that more would need
        seeds = self._build(2).facts.seeds
        if seeds and not self._per_checkpoint_operations:
            again = self._build(2).facts.seeds
            if any(seed is not None and seed == other for seed, other in zip(seeds, again, strict=False)):
                raise ConfigurationError(
                    "The transform draws at random with a fixed seed (sample, rand): every checkpoint would draw the "
                    "same, for example keep its first record. Leave the seed out, and each checkpoint has a new one; "
                    "or set Pipeline(per_checkpoint_operations=True)."
                )

    def run(
        self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan, sinks: Collection[ParticipantName]
    ) -> Votes:
        """Read, transform and write the plan's splits to ``sinks``. Nothing of it is visible yet.

        Raises CheckpointFailedError when votes are missing, ConfigurationError when the batches of
        ``transform_batches`` cannot be written, and any error of Spark.
        """
        submitted = time.time()
        splits = self._joined(plan)
        self._ran = plan, splits
        built = self._build(len(splits))
        task = CheckpointTask(
            job=self._job,
            generation=generation,
            checkpoint=checkpoint,
            splits=splits,
            columns=built.facts.columns,
            sinks={name: writer_options(self._sinks[name]) for name in sinks},
            submitted=submitted,
        )
        context = self._spark.context
        context.setLocalProperty(TASK_PROPERTY, task.to_json())
        context.setJobGroup(self._group, f"{self._job} checkpoint {checkpoint} ({built.path})", interruptOnCancel=True)
        held = built.held()
        try:
            ballots = built.ballots()
        except Exception as error:
            wrong = unusable_in(str(error))
            if wrong is None:
                raise
            raise wrong from error
        if built.facts.adaptive and not built.facts.moving:
            self._look_again(built, len(splits))
        votes = check_ballots(ballots, sinks, built.expected)
        return _held({name: votes[name] for name in sinks}, built.held() - held)

    def inputs(self, plan: Plan, slots: int) -> Sequence[Sequence[JsonObject]]:
        """Return the splits that made each of the ``slots`` of the plan that ran last: one if no rows move, else all
        of them."""
        if self._built is None or self._ran is None or self._ran[0] is not plan:
            raise CheckpointFailedError("This plan was not run. Nothing was written.")
        splits = self._ran[1]
        if self._built.facts.one_to_one and slots == len(splits):
            return [[split] for split in splits]
        return [list(splits)] * slots

    def require_in_worker(self) -> None:
        """Raise ConfigurationError if the last plan that was built needs Spark's JVM for its records."""
        if self._built is None or self._built.worker is None:
            raise ConfigurationError(
                'tasks="staying": the transform is more than a choice of columns, so Spark must plan it for each '
                'checkpoint. Nothing was started. Write it as transform_batches, or leave out tasks="staying".'
            )

    def room(self) -> int:
        """Return how many tasks can run at a time now, or may once dynamic allocation has brought executors."""
        context: Any = self._spark.context
        scala = context._jsc.sc()
        now = int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
        return now or int(context.defaultParallelism)

    def reach(self) -> tuple[tuple[str, int], str]:
        """Return the address and port that the driver binds for staying tasks, and the address under which executors
        reach it. Port 0 = a free one. Raises ConfigurationError if the port cannot be one."""
        conf = self._spark.context.getConf()
        host = str(conf.get("spark.driver.host", "127.0.0.1"))
        port = tasks_port(str(conf.get(TASKS_PORT, "0")))
        return (str(conf.get("spark.driver.bindAddress", host)), port), host

    def stay(
        self,
        slots: int,
        follow: SplitFollower,
        writers: Mapping[str, StayingWriter],
        driver: tuple[str, int],
        credentials: TaskCredentials,
    ) -> None:
        """Run one staying task per slot, which connect to ``driver``, until all have ended. Raises errors of Spark."""
        built = self._built
        assert built is not None
        assert built.worker is not None, "required before"
        task = staying(follow, writers, built.worker, built.facts.columns, driver, credentials)
        context = self._spark.context
        context.setJobGroup(self._staying, f"{self._job} staying tasks ({built.path})", interruptOnCancel=True)
        context.parallelize(range(slots), slots).mapPartitions(task).collect()

    def cancel_staying(self) -> None:
        """Kill the staying tasks, from any thread."""
        with contextlib.suppress(Exception):  # a JVM that is gone runs nothing
            self._spark.context.cancelJobGroup(self._staying)

    def cancel(self) -> None:
        """Stop the running job, from any thread. Its tasks may continue for seconds; their transactions are swept."""
        with contextlib.suppress(Exception):  # a JVM that is gone runs nothing; the main thread detects it
            self._spark.context.cancelJobGroup(self._group)

    def _joined(self, plan: Plan) -> tuple[JsonObject, ...]:
        if not plan.can_coalesce:
            return plan.splits
        at_a_time = self._spark.context.defaultParallelism
        return self._source.coalesce(plan.splits, _tasks(plan.records, at_a_time, self._records_per_task))

    def _build(self, splits: int) -> _Built:
        built = self._builds.pop(splits, None)
        if built is None:
            built = self._through_python(splits) or self._through_spark(splits)
        if built.facts.reusable:
            self._builds[splits] = built
            if len(self._builds) > _KEPT_BUILDS:
                del self._builds[next(iter(self._builds))]
        self._built = built
        return built

    def _look_again(self, built: _Built, splits: int) -> None:
        """Examine a plan again after its first run: Spark may have changed it."""
        assert built.examined is not None
        facts = replace(plans.after_run(built.facts, built.examined), adaptive=False)
        self._built = looked = replace(built, facts=facts)
        if facts.reusable:
            self._builds[splits] = looked
        else:
            self._builds.pop(splits, None)

    def _through_python(self, splits: int) -> _Built | None:
        """Return the job if records need not go through the JVM."""
        if self._transform_batches is not None:
            route = routed(self._transform_batches, self._sinks, self._letters, self._hidden)
            return self._fused(splits, Path.BATCHES, route, (*self._source_columns, *self._hidden))
        choices = self._work.choices(self._source.schema, self._source.copied_columns)
        return None if choices is None else self._copied(splits, choices)

    def _copied(self, splits: int, choices: Mapping[str, Mapping[str, str]]) -> _Built:
        if self._letters is not None:
            route = setting_aside(RowByRow(choosing(choices)), self._sinks, self._letters)
            return self._fused(splits, Path.COPY, route, self._source_columns)
        columns = dict.fromkeys(column for chosen in choices.values() for column in chosen.values())
        return self._fused(splits, Path.COPY, choosing(choices), tuple(columns))

    def _writers(self) -> Mapping[str, SlotWriter]:
        return {name: sink.write() for name, sink in self._sinks.items()}

    def _fused(self, splits: int, path: Path, route: Router | SettingAside, columns: tuple[str, ...]) -> _Built:
        task = fusing(self._source.read(), self._writers(), route, columns)
        partitions = max(1, splits)
        tasks = self._spark.context.parallelize(range(splits), partitions).mapPartitions(task)
        facts = plans.PlanFacts(columns=columns, one_to_one=True, changing=False, moving=False)
        return _Built(path=path, ballots=tasks.collect, facts=facts, expected=partitions, worker=route)

    def _through_spark(self, splits: int) -> _Built:
        source = self._leaf(splits).mapInArrow(reading(self._source.read(), self._held.add), self._source.schema)
        chosen = self._work.dataframe(source, self._source.copied_columns)
        route: Router | SettingAside = route_to(self._sinks)
        if self._letters is not None:
            route = setting_aside(ByColumn(), self._sinks, self._letters)
        df = chosen.mapInArrow(writing(self._writers(), route), BALLOT_SCHEMA)
        known = self._built
        if known is not None and known.facts.moving and _same(df, known.examined):
            facts = known.facts
        else:
            with planning(f"Output {', '.join(self._sinks)}"):
                facts = plans.examine(
                    df,
                    self._source_columns,
                    per_checkpoint_operations=self._per_checkpoint_operations,
                )
        if facts.chosen is not None and len(self._sinks) == 1:
            return self._copied(splits, dict.fromkeys(self._sinks, facts.chosen))
        # counting the partitions of an adaptive plan would run parts of it
        expected = None if facts.moving or facts.adaptive else _partitions(df)
        return _Built(
            path=Path.DATAFRAME,
            ballots=lambda: [row[0] for row in df.collect()],
            facts=facts,
            expected=expected,
            examined=df,
            held=lambda: self._held.value,
        )

    @cached_property
    def _held(self) -> "Accumulator[float]":
        """Seconds for which readers in other processes were held back. Attempts that fail count, too. One for all
        plans: with another one each, no two would be the same."""
        return self._spark.context.accumulator(0.0)

    def _leaf(self, splits: int) -> "DataFrame":
        """Return the cached leaf: Spark recognises a rebuilt plan by its leaf."""
        leaf = self._leaves.get(splits)
        if leaf is None:
            if len(self._leaves) == _KEPT_BUILDS:
                self._leaves.clear()
            leaf = self._leaves[splits] = numbers(self._spark.session, splits)
        return leaf


def _held(votes: Votes, seconds: float) -> Votes:
    """Add to one vote what readers in other processes reported: only the sum over all votes counts."""
    name, of_first = next(iter(votes.items()))
    if not of_first or seconds <= 0:
        return votes
    first, *others = of_first
    return {**votes, name: (replace(first, held=first.held + seconds), *others)}


def tasks_port(given: str) -> int:
    """Return the port that ``spark.onceward.tasks.port`` names. Raises ConfigurationError."""
    if not (given.strip().isdecimal() and int(given) <= _LAST_PORT):
        raise ConfigurationError(
            f"{TASKS_PORT}: {given!r} is no port. Nothing was started. Give a number from 1 to {_LAST_PORT}, or 0 "
            "for a free port."
        )
    return int(given)


def numbers(spark: "SparkSession", splits: int) -> "DataFrame":
    """Return one row per split, each in its own partition.

    The rows come from an RDD. For a range, Spark would know that it is tiny and broadcast the input in a join instead
    of the other table.
    """
    from pyspark.sql import DataFrame

    rows: Any = spark.range(0, splits, 1, max(1, splits)).toDF("number")._jdf
    return DataFrame(spark._jsparkSession.createDataFrame(rows.javaRDD(), rows.schema()), spark)


def _tasks(records: int, at_a_time: int, records_per_task: int) -> int:
    """Return the number of tasks: as many as run at a time, doubled while each would have too many records."""
    tasks = max(1, at_a_time)
    while tasks * records_per_task < records:
        tasks *= 2
    return tasks


def _same(df: "DataFrame", other: "DataFrame | None") -> bool:
    """True when both have the same optimised plan."""
    if other is None:
        return False
    plan: Any = df._jdf.queryExecution().optimizedPlan()
    return bool(plan.sameResult(other._jdf.queryExecution().optimizedPlan()))


def _partitions(df: "DataFrame") -> int:
    return int(df._jdf.queryExecution().toRdd().getNumPartitions())
