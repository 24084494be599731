"""The tasks of a batch: a checkpoint asks for them, Spark's stream thread runs them on the batch's DataFrame."""

import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onceward.common.errors import CheckpointFailedError, HaltedError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.common.printable import logger
from onceward.connectors.interfaces import Plan, ReplayRefusedError, writer_options
from onceward.connectors.slots import SlotWriter
from onceward.connectors.tasks import TASK_PROPERTY, CheckpointTask, Digest, Vote, check_ballots
from onceward.driver.letters import LettersOfQuery
from onceward.driver.outputs import Inputs, Votes
from onceward.driver.spark.passes import Pass, Share
from onceward.driver.spark.session import Spark, is_alive, ship
from onceward.driver.streaming.batches import batch_of
from onceward.driver.streaming.expressions import ArrowFunction, RecordHashes
from onceward.driver.streaming.handover import Handover, Work
from onceward.executor.functions import (
    BALLOT_SCHEMA,
    DIGEST_SCHEMA,
    digesting,
    onceward_digest,
    route_to,
    unusable_in,
)
from onceward.protocol.values import CheckpointId, Generation, JobName, JsonObject, ParticipantName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BatchTasks"]

_log = logger("onceward.pipeline")

_SLOT, _DIGESTS = "slot", "digests"
_ROUNDS = 2
"""Most slots of a batch, in multiples of the tasks that run at a time: a short slot makes up for a long one."""
_MOST_OF = 0.8
"""A run that is aborted after this part of its time was too slow: the rest went into planning."""
_SLOW_RUNS = 3
"""Runs of one batch that may take too long before the job halts."""
_JOB_GROUP = "spark.jobGroup.id"
"""Spark's local property. The group of a query's jobs is the id of its run."""


class BatchTasks:
    """Runs tasks in the thread of a query. Implements ``Tasks``."""

    def __init__(
        self,
        spark: "SparkSession",
        *,
        job: JobName,
        shares: Sequence[Share],
        handover: Handover,
        timeout: float,
        letters: LettersOfQuery | None = None,
    ) -> None:
        """``timeout``: seconds that a batch may take."""
        self._spark = spark
        self._job = job
        self._shares = shares
        self._letters = letters
        self._sinks = {share.name: share.sink for share in shares}
        self._handover = handover
        self._timeout = timeout
        self._slow = -1, 0
        """The batch that was aborted for its time, and how often in a row."""
        self._write: ArrowFunction | None = None
        self._hashes = RecordHashes()
        self._votes: Votes = {}
        """Of the run that ended last."""
        self._job_group = ""
        self._coalesces = False
        """Whether a batch had more partitions than it should have slots."""

    # -- the generation's threads

    def start(self) -> None:
        """Send the code to the executors. Raises PreflightError if they cannot run it."""
        if self._write is not None:
            return
        writers: dict[str, SlotWriter] = {name: sink.write() for name, sink in self._sinks.items()}
        ship(Spark.of(self._spark), [*writers.values()], arrow=True)
        route = route_to(writers) if self._letters is None else self._letters.route(self._sinks)
        self._write = ArrowFunction(digesting(writers, route), BALLOT_SCHEMA)

    def alive(self) -> bool:
        return is_alive(self._spark.sparkContext)

    def quiet(self) -> AbstractContextManager[None]:
        return nullcontext()

    def run(
        self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan, sinks: Collection[ParticipantName]
    ) -> Votes:
        """Wait until the query's thread has run the batch. See :meth:`Handover.run`."""
        batch = batch_of(plan.positions)
        assert batch is not None, "a plan with splits is one of a batch"
        task = CheckpointTask(
            job=self._job,
            generation=generation,
            checkpoint=checkpoint,
            splits=plan.splits,
            columns=(),
            sinks={name: writer_options(self._sinks[name]) for name in sinks},
            submitted=time.time(),
        )
        replay, began = _is_replay(plan.splits), time.monotonic()
        try:
            self._votes = self._handover.run(Work(task=task, batch=batch, replay=replay))
        except CheckpointFailedError:
            if not replay:  # one that waits for the query takes as long as it takes
                self._look_at_time(batch.number, time.monotonic() - began)
            raise
        if replay:
            for votes in self._votes.values():
                _require_same(batch.number, plan.splits, votes)
        return self._votes

    def _look_at_time(self, batch: int, ran: float) -> None:
        """Say that a batch took too long, and after some runs forbid more: no run makes it shorter."""
        if ran < _MOST_OF * self._timeout:
            return
        number, runs = self._slow
        self._slow = batch, runs + 1 if number == batch else 1
        text = (
            f"Batch {batch} of job {self._job} takes longer than timeout={self._timeout:g}s and was aborted, for the "
            f"{self._slow[1]}. time. Nothing of it is visible, nothing is lost. Spark has fixed what the batch reads, "
            "so it cannot become smaller. Raise settings=CheckpointSettings(timeout=...); for that, the brokers must "
            "allow a transaction timeout 10 min above it. For new queries, set maxOffsetsPerTrigger"
        )
        if self._slow[1] < _SLOW_RUNS:
            _log.warning("%s", text)
        else:
            self._handover.forbid(HaltedError(f"{text}."))

    def inputs(self, plan: Plan, votes: Votes) -> Inputs:
        """A slot is written again by running its whole batch again and writing the records of its partitions only.
        Their digests show whether the second run gives the same."""
        if _is_replay(plan.splits):
            inputs = [[split] for split in plan.splits]
        else:
            (batch,) = plan.splits
            slots = next(iter(self._votes.values()))  # the same for each sink
            inputs = [[{**batch, _SLOT: vote.slot, _DIGESTS: vote.digests}] for vote in slots]
        return dict.fromkeys(votes, inputs)

    def cancel(self) -> None:
        self._handover.cancel(self._cancel_jobs)

    def leave(self) -> int | None:
        """End the run of a batch, and begin none. Return the number of the one that ran."""
        return self._handover.leave(self._cancel_jobs)

    def _cancel_jobs(self) -> None:
        self._spark.sparkContext.cancelJobGroup(self._job_group)

    # -- the query's thread

    def check(self, df: "DataFrame") -> None:
        """Plan a batch of the query ``df``, which may not have begun. Raises ConfigurationError as
        :meth:`Pass.dataframe` does."""
        self._made_of(df)

    def _made_of(self, df: "DataFrame") -> "DataFrame":
        if self._letters is None:
            return Pass(self._shares, whole=True).dataframe(df)
        return self._letters.of_batch(self._shares, df.dtypes).dataframe(df)

    def execute(self, df: "DataFrame", work: Work) -> Votes:
        """Run a batch's DataFrame and return the votes. Raises any error of Spark."""
        context: Any = df.sparkSession.sparkContext
        self._job_group = context.getLocalProperty(_JOB_GROUP)
        records = self._hashes.add_to(self._made_of(df))
        if not _is_replay(work.task.splits):
            votes = self._written(records, work.task)
            kill_point(KillPoint.BATCH_AFTER_RUN)
            return votes
        kill_point(KillPoint.BATCH_BEFORE_REPLAY)
        # How Spark coalesces may differ between two runs, so each lost slot is written by a single task of its own run.
        written: dict[ParticipantName, tuple[Vote, ...]] = {}
        for number, split in enumerate(work.task.splits):
            task = replace(work.task, splits=(split,))
            for name, (vote,) in self._run(records.coalesce(1), task, 1).items():
                written[name] = (*written.get(name, ()), replace(vote, slot=number))
        kill_point(KillPoint.BATCH_AFTER_REPLAY)
        return written

    def _written(self, records: "DataFrame", task: CheckpointTask) -> Votes:
        """Write a batch. Once a batch has had many partitions, later ones are coalesced into fewer slots: a slot has a
        Kafka transaction, and stateful queries have 200 partitions by default. Coalescing moves no rows, so each
        partition's state stays where it is."""
        most = _ROUNDS * records.sparkSession.sparkContext.defaultParallelism
        votes = self._run(records.coalesce(most) if self._coalesces else records, task, None)
        slots = len(next(iter(votes.values())))
        if slots > most:
            self._coalesces = True
            _log.info("job %s: a batch has %d partitions; they are coalesced into %d slots", self._job, slots, most)
        return votes

    def _run(self, records: "DataFrame", task: CheckpointTask, expected: int | None) -> Votes:
        """Run the tasks; return their votes. See :func:`check_ballots`. Raises any error of Spark."""
        assert self._write is not None, "started before its first checkpoint"
        context: Any = records.sparkSession.sparkContext
        context.setLocalProperty(TASK_PROPERTY, task.to_json())
        try:
            ballots = [row[0] for row in self._write.apply_to(records).collect()]
        except Exception as error:
            wrong = unusable_in(str(error))
            if wrong is None:
                raise
            raise wrong from error
        finally:
            context.setLocalProperty(TASK_PROPERTY, None)
        votes = check_ballots(ballots, task.sinks, expected)
        return {name: votes[name] for name in self._sinks if name in votes}

    def run_again(self, df: "DataFrame") -> str:
        """Run the DataFrame of a settled batch, which writes its state; return the digest of its records."""
        records = self._hashes.add_to(self._made_of(df))
        rows = records.mapInArrow(onceward_digest, DIGEST_SCHEMA).collect()
        return str(sum((Digest.parse(row[0]) for row in rows), Digest()))


def _is_replay(splits: Sequence[JsonObject]) -> bool:
    return _SLOT in splits[0]


def _require_same(batch: int, splits: Sequence[JsonObject], votes: Sequence[Vote]) -> None:
    """Raise ReplayRefusedError if a slot was written again with other records than before."""
    for split, vote in zip(splits, votes, strict=True):
        before = split[_DIGESTS]
        changed = sorted(int(one) for one in before.keys() | vote.digests if before.get(one) != vote.digests.get(one))
        if changed:
            raise ReplayRefusedError(
                f"slot {split[_SLOT]} of batch {batch} has other records when it runs again (in {len(changed)} of "
                f"{len(before)} partitions, such as {changed[0]}): the query draws at random, reads the clock, depends "
                "on the order of its input, or has another number of partitions"
            )
