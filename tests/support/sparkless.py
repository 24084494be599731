"""A pipeline whose tasks run in the driver process: everything except Spark is real.

Spark takes seconds to start. Tests about the driver, the coordinator and Kafka do not need it.
"""

import contextlib
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

from onceward import Pipeline
from onceward.connectors.interfaces import Plan, SinkSession, Source, writer_options
from onceward.connectors.slots import SlotWriter
from onceward.connectors.tasks import CheckpointTask, Postponed, check_ballots
from onceward.driver.letters import routed
from onceward.driver.opening import OpenJob
from onceward.driver.outputs import Inputs, Votes
from onceward.driver.spark.tasks import Tasks
from onceward.executor.aside import SettingAside
from onceward.executor.functions import BatchesTransform, RoutedTransform, Router, choosing, for_task
from onceward.executor.letters import Retry, Rules
from onceward.executor.slots import Attempt, TaskSlots
from onceward.executor.timings import Stopwatch, Timed
from onceward.protocol.values import CheckpointId, Generation, JobName, ParticipantName
from onceward.sources.kafka.executor.columns import COLUMNS


class TasksInProcess:
    """Replaces tasks on Spark: same reader, same writer, one task after the other."""

    def __init__(
        self,
        job: JobName,
        source: Source,
        sinks: Sequence[SinkSession],
        function: BatchesTransform | RoutedTransform | None = None,
        letters: Rules | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        """``function``: on batches; None = a copy."""
        self._job, self._source, self._function, self._letters = job, source, function, letters
        self._hidden = hidden
        self._sinks = {sink.participant.name: sink for sink in sinks}
        self._attempts = 0

    def start(self) -> None:
        """Do nothing: there is nothing to start."""

    def alive(self) -> bool:
        return True

    def quiet(self) -> AbstractContextManager[None]:
        return nullcontext()

    def run(
        self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan, sinks: Collection[ParticipantName]
    ) -> Votes:
        columns = self._source.copied_columns if self._function is None else (*COLUMNS, *self._hidden)
        task = CheckpointTask(
            job=self._job,
            generation=generation,
            checkpoint=checkpoint,
            splits=plan.splits,
            columns=tuple(columns),
            sinks={name: writer_options(self._sinks[name]) for name in sinks},
            submitted=time.time(),
        )
        read = self._source.read()
        writers: dict[str, SlotWriter] = {name: sink.write() for name, sink in self._sinks.items()}
        copied = {column: column for column in columns}
        routing: Router | SettingAside = choosing(dict.fromkeys(self._sinks, copied))
        if self._function is not None:
            routing = routed(self._function, self._sinks, self._letters, self._hidden)
        ballots = []
        for slot, split in enumerate(plan.splits):
            self._attempts += 1
            clock, batches = Stopwatch(), Timed(read(split, frozenset(columns)))
            slots = TaskSlots(writers, Attempt(task=task, slot=slot, number=self._attempts))
            route, letters = for_task(routing, slots)
            made = Timed(route(batches))
            try:
                ballot = letters(slots.write(made))
            except Retry as later:
                raise Postponed(str(later), later.after).error() from later
            steps, held = clock.steps(task.submitted, made, batches), getattr(read, "held_back", lambda: 0.0)()
            ballots.append(ballot.measured(steps, held).to_json())
        votes = check_ballots(ballots, sinks, len(plan.splits))
        return {name: votes[name] for name in sinks}

    def inputs(self, plan: Plan, votes: Votes) -> Inputs:
        inputs = [[split] for split in plan.splits]
        return dict.fromkeys(votes, inputs)

    def cancel(self) -> None:
        """Do nothing: nothing runs beside the driver's main thread."""


class SparklessPipeline(Pipeline):
    """A :class:`Pipeline` without a transform of DataFrames and without Spark."""

    def _launch(self) -> None:
        """Do nothing: there is no Spark."""

    def _tasks(self, stack: contextlib.ExitStack, opened: OpenJob) -> Tasks:
        return TasksInProcess(
            self._job, self._source, opened.sinks, self._transform_batches, self._letters, self._hidden
        )
