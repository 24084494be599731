"""One Spark job per checkpoint: the DataFrame from reader to votes, reused where that is right."""

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from coordinator.errors import CheckpointFailedError
from coordinator.pipeline import plans
from coordinator.pipeline.executor import VOTE_SCHEMA, copying, reading, writing
from coordinator.pipeline.interfaces import Plan, Sink, Source
from coordinator.pipeline.tasks import TASK_PROPERTY, CheckpointTask, Vote
from coordinator.pipeline.votes import check_votes
from coordinator.protocol.values import CheckpointId, Generation, JobName, JsonObject

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COPIED = ("key", "value", "headers")
"""What a job without a transform takes over, as Spark's Kafka sink does; the partition follows from the key, as for any
producer. Timestamps would cost the client's fast path; a transform that selects them keeps them."""


class CheckpointJob:
    """Builds and runs the Spark job of a pipeline."""

    def __init__(
        self,
        *,
        spark: "SparkSession",
        job: JobName,
        source: Source,
        transform: "Callable[[DataFrame], DataFrame] | None",
        sink: Sink,
        per_checkpoint_operations: bool,
    ) -> None:
        self._spark = spark
        self._job = job
        self._source = source
        self._transform = transform
        self._sink = sink
        self._per_checkpoint_operations = per_checkpoint_operations
        self._source_columns = tuple(_column_names(source.schema))
        self._group = f"onceward {job}"
        self._built: tuple[int, DataFrame, plans.PlanFacts, int | None] | None = None

    def check(self) -> None:
        """Build the plan once without running it. Raises ConfigurationError for a transform that cannot be used."""
        # two splits: with one, Spark leaves out the exchanges that more would need
        self._build(2)

    def run(self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan) -> tuple[Vote, ...]:
        """Read, transform and write the plan's splits. Nothing of it is visible yet.

        Raises CheckpointFailedError when votes are missing, and whatever Spark raises.
        """
        df, facts, expected = self._build(len(plan.splits))
        task = CheckpointTask(
            job=self._job,
            generation=generation,
            checkpoint=checkpoint,
            splits=plan.splits,
            columns=facts.columns,
            sink=self._sink.participant.name,
            sink_options=self._sink.options(),
        )
        context = self._spark.sparkContext
        context.setLocalProperty(TASK_PROPERTY, task.to_json())
        context.setJobGroup(self._group, f"{self._job} checkpoint {checkpoint}", interruptOnCancel=True)
        rows = df.collect()
        return check_votes((row[0] for row in rows), expected)

    def inputs(self, plan: Plan, slots: int) -> Sequence[Sequence[JsonObject]]:
        """The splits that made each slot: one where the plan moves no rows, else all of them."""
        if self._built is None:
            raise CheckpointFailedError("No Spark job was built. Nothing was written.")
        if self._built[2].one_to_one and slots == len(plan.splits):
            return [[split] for split in plan.splits]
        return [list(plan.splits)] * slots

    def cancel(self) -> None:
        """Stop the running job, from any thread. Its tasks may go on for seconds; their transactions are swept."""
        with contextlib.suppress(Exception):  # a JVM that is gone runs nothing; the main thread notices by itself
            self._spark.sparkContext.cancelJobGroup(self._group)

    def _build(self, splits: int) -> "tuple[DataFrame, plans.PlanFacts, int | None]":
        if self._built is not None and self._built[0] == splits and self._built[2].reusable:
            return self._built[1:]
        numbers = self._spark.range(0, splits, 1, max(1, splits))
        if self._transform is None:
            columns = tuple(column for column in _COPIED if column in self._source_columns)
            df = numbers.mapInArrow(copying(self._source.read(), self._sink.write(), columns), VOTE_SCHEMA)
            facts = plans.PlanFacts(columns=columns, one_to_one=True, changing=False, exchanges=False)
        else:
            source = numbers.mapInArrow(reading(self._source.read()), self._source.schema)
            prepared = self._sink.prepare(self._transform(source))
            if self._built is not None and self._built[2].exchanges:
                facts = self._built[2]  # the careful case stays
            else:
                facts = plans.examine(
                    prepared,
                    self._source_columns,
                    per_checkpoint_operations=self._per_checkpoint_operations,
                )
            df = prepared.mapInArrow(writing(self._sink.write()), VOTE_SCHEMA)
        expected = None if facts.exchanges else int(df._jdf.queryExecution().toRdd().getNumPartitions())
        self._built = (splits, df, facts, expected)
        return df, facts, expected


def _column_names(schema: str) -> list[str]:
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    return parsed.names
