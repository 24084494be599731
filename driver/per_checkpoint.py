"""Tasks per checkpoint: plan what to read, and run a Spark job over it."""

from collections.abc import Collection
from itertools import chain

from onceward.common.errors import CheckpointFailedError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.connectors.interfaces import Plan
from onceward.driver.checkpoint_tasks import CheckpointTasks, Nothing, Turn, Written
from onceward.driver.members import Members
from onceward.driver.outputs import Votes
from onceward.executor.timings import held_share
from onceward.protocol.phases import Phase
from onceward.protocol.values import CheckpointId, Document

__all__ = ["TasksPerCheckpoint"]


class TasksPerCheckpoint(CheckpointTasks):
    """Runs a Spark job for each checkpoint that has something to read."""

    marks: Collection[str] = ()

    def __init__(self, members: Members, turn: Turn) -> None:
        self._m = members
        self._turn = turn
        self._began: tuple[Plan, float, float] | None = None
        """The plan that runs, the seconds that it took to make, and when its tasks began."""
        self._voted = 0.0
        """When the last tasks had voted."""

    def alive(self) -> bool:
        return self._m.tasks.alive()

    def write(self, checkpoint: CheckpointId, positions: Document) -> Written | Nothing:
        m, turn = self._m, self._turn
        self._began = None
        plan, planning = self._next_plan(checkpoint, positions)
        kill_point(KillPoint.DRIVER_AFTER_PLAN)
        if plan.records == 0:
            m.progress.planned_nothing(plan.lag, plan.partitions())
            return Nothing(positions=plan.positions, finished=plan.finished)
        turn.mailbox.raise_error()
        if turn.mailbox.aborted(checkpoint):
            raise CheckpointFailedError(f"Checkpoint {checkpoint} was aborted before its Spark job began.")
        turn.begin(checkpoint)
        began = m.runtime.monotonic()
        self._began = plan, planning, began
        votes = m.tasks.run(
            generation=turn.generation, checkpoint=checkpoint, plan=plan, sinks=[output.name for output in m.outputs]
        )
        self._voted = m.runtime.monotonic()
        kill_point(KillPoint.DRIVER_AFTER_VOTES)
        return Written(
            plan=plan,
            votes=votes,
            inputs=m.tasks.inputs(plan, votes),
            planning=planning,
            began=began,
            open_since=began,
        )

    def _next_plan(self, checkpoint: CheckpointId, positions: Document) -> tuple[Plan, float]:
        """Return a plan and the seconds that planning took. Waits briefly for new data."""
        source, runtime, turn, idle = self._m.source, self._m.runtime, self._turn, 0.0
        give_up = runtime.monotonic() + turn.patience
        while True:
            began = runtime.monotonic()
            plan = source.plan(positions)
            ended = runtime.monotonic()
            turn.measured({Phase.PLAN: ended - began})
            if plan.records or plan.finished or plan.positions != positions or ended > give_up:
                return plan, ended - began
            turn.mailbox.wait(lambda: turn.disturbed(checkpoint) or source.has_news(), source.idle_poll_s)
            idle += runtime.monotonic() - ended
            turn.measured({Phase.IDLE: idle})
            if turn.disturbed(checkpoint):
                return plan, ended - began

    def votes(self, checkpoint: CheckpointId, written: Written) -> tuple[Votes, float]:
        return written.votes, self._voted

    def pre_committed(self, written: Written, votes: Votes) -> None:
        m = self._m
        took = m.runtime.monotonic() - written.began
        held = held_share((vote.held, vote.steps) for vote in chain.from_iterable(votes.values()))
        m.source.observe_run(written.plan, took, held=took * held)

    def failed(self, checkpoint: CheckpointId, positions: Document) -> Plan | None:
        m = self._m
        if self._began is None:
            return None
        plan, planning, began = self._began
        failed = m.runtime.monotonic() - began
        m.source.observe_run(plan, failed, failed=True)
        if m.traces is not None:
            m.traces.not_written(checkpoint, plan_s=planning, run_s=failed)
        return plan

    def end(self) -> None:
        """Do nothing: none reads on."""

    def leave(self) -> None:
        """Do nothing: the job of a checkpoint is cancelled from elsewhere."""
