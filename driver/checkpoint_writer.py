"""Write a checkpoint: plan what to read, run its Spark job, pre-commit what the job wrote. With staying tasks: cut what
they have read and written since the last one, and pre-commit that."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from onceward.common.errors import CheckpointFailedError, OncewardError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.connectors.interfaces import Plan
from onceward.connectors.tasks import Vote
from onceward.driver.mailbox import Mailbox
from onceward.driver.members import Members
from onceward.driver.origins import origins_of
from onceward.driver.settler import Settler
from onceward.driver.staying.tasks import StayingTasks
from onceward.driver.transaction_age import Ages, good_for
from onceward.executor.timings import held_share, of_checkpoint
from onceward.protocol.phases import Phase, Phases
from onceward.protocol.values import CheckpointId, Committable, Document, Generation, JsonObject, Snapshot

__all__ = ["Answers", "CheckpointWriter", "require_spark"]

_IDLE_WAIT = 1.0
"""Seconds after which a checkpoint without new data is acknowledged unchanged, or a quarter of the checkpoint timeout
if that is less."""
_SWEEP_INTERVAL = 30.0
"""Seconds between sweeps of an idle job; a busy job sweeps in every checkpoint."""
_STALLED = 60.0
"""Seconds after which staying tasks that do not read input that is there are replaced."""
_HELD_INTERVAL = 10.0
"""Seconds for which it is added up how long staying tasks were held back: their checkpoints are short."""
_SETTLE_LIMIT = 60.0
"""Seconds to finish decided commits after Spark is lost; the next generation commits the rest."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What source and sink answer to one trigger."""

    base: CheckpointId
    source: Snapshot
    sink: Snapshot
    good_until: float | None = None
    """Deadline for committing the checkpoint, on the runtime's monotonic clock; None when it has none."""
    phases: Phases = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A checkpoint whose slots are written. All times are the runtime's monotonic ones."""

    checkpoint: CheckpointId
    base: CheckpointId
    plan: Plan
    """What they have read."""
    inputs: Sequence[Sequence[JsonObject]]
    """The splits that made each slot."""
    planning: float
    """Seconds that the plan took."""
    began: float
    """When the tasks were ordered to write, or to cut."""
    open_since: float
    """No transaction is older."""


@dataclass(frozen=True, kw_only=True)
class _Proved:
    """What was written is ready to commit."""

    committables: tuple[Committable, ...]
    positions: Document
    good_until: float | None
    at: float


class CheckpointWriter:
    """Writes the checkpoints of one generation, one at a time."""

    def __init__(
        self, members: Members, generation: Generation, settler: Settler, mailbox: Mailbox, ages: Ages
    ) -> None:
        self._m = members
        self._generation = generation
        self._settler = settler
        self._mailbox = mailbox
        self._ages = ages
        self._last_sweep = members.runtime.monotonic()
        self._held, self._held_since = 0.0, self._last_sweep
        """For how long staying tasks were held back, and since when that is added up."""
        self._unread_since: float | None = None
        """Since when the input has records that the staying tasks do not report."""
        self.plan: Plan | None = None
        """What the Spark job of the last checkpoint was to read; None if it had no job."""
        self.phases: dict[Phase, timedelta] = {}
        """Those of the last checkpoint that are over."""
        self.finished = False
        """True once a bounded input is used up."""

    def write(self, checkpoint: CheckpointId, base: CheckpointId, positions: Document | None) -> Answers:
        """Plan, read, transform, write and pre-commit.

        ``positions``: where ``base`` has ended; None for the first checkpoint of a job, which only resolves where to
        start.
        """
        m = self._m
        self.plan, self.phases = None, {}
        if m.staying is None or not m.staying.running:  # tasks that run notice by themselves that Spark is gone
            require_spark(m, self._settler)
        if positions is None:
            source = Snapshot(positions=m.source.resolve(), next_at_once=True)
            return Answers(base=base, source=source, sink=Snapshot())
        if m.staying is not None:
            return self._cut(m.staying, checkpoint, base, positions)
        plan, planning = self._next_plan(checkpoint, positions)
        kill_point(KillPoint.DRIVER_AFTER_PLAN)
        if plan.records == 0:
            m.progress.planned_nothing(plan.lag, plan.partitions())
            self._sweep_now_and_then(checkpoint)
            return self._nothing(base, positions, plan.positions, finished=plan.finished)
        self._mailbox.raise_error()
        if self._mailbox.aborted(checkpoint):
            raise CheckpointFailedError(f"Checkpoint {checkpoint} was aborted before its Spark job began.")
        self.plan = plan
        return self._run(checkpoint, base, plan, planning)

    def _nothing(self, base: CheckpointId, before: Document, after: Document, *, finished: bool) -> Answers:
        """Answer that nothing was read and written. ``finished``: nothing is left to read."""
        unchanged = after == before
        self.finished = finished and unchanged
        source = Snapshot(positions=after, unchanged=unchanged, next_at_once=finished and not unchanged)
        return Answers(base=base, source=source, sink=Snapshot(unchanged=unchanged), phases=self.phases)

    def _next_plan(self, checkpoint: CheckpointId, positions: Document) -> tuple[Plan, float]:
        """Return a plan and the seconds that planning took. Waits briefly for new data; a stop, an abort or a person
        who waits for the checkpoint ends the wait."""
        source, idle = self._m.source, 0.0
        give_up = self._m.runtime.monotonic() + self._patience
        while True:
            began = self._m.runtime.monotonic()
            plan = source.plan(positions)
            ended = self._m.runtime.monotonic()
            self._measured({Phase.PLAN: ended - began})
            if plan.records or plan.finished or plan.positions != positions or ended > give_up:
                return plan, ended - began
            self._mailbox.wait(lambda: self._disturbed(checkpoint) or source.has_news(), source.idle_poll_s)
            idle += self._m.runtime.monotonic() - ended
            self._measured({Phase.IDLE: idle})
            if self._disturbed(checkpoint):
                return plan, ended - began

    @property
    def _patience(self) -> float:
        return min(_IDLE_WAIT, self._m.settings.seconds("timeout") / 4)

    def _disturbed(self, checkpoint: CheckpointId) -> bool:
        """True when waiting for data in ``checkpoint`` must end."""
        return self._mailbox.stopping or self._mailbox.aborted(checkpoint) or self._mailbox.hurried(checkpoint)

    def _sweep_now_and_then(self, checkpoint: CheckpointId) -> None:
        """Sweep an idle job at intervals: a late zombie of an earlier generation must not hold readers back."""
        m = self._m
        if m.runtime.monotonic() - self._last_sweep < _SWEEP_INTERVAL:
            return
        if m.staying is not None:  # what its tasks have open is not a leftover
            m.sink.leave_open(m.staying.marks)
            m.sink.pre_commit(checkpoint, (), (), unsettled=self._settler.unsettled())
        else:
            self._sweep()
        self._last_sweep = m.runtime.monotonic()

    def _sweep(self) -> None:
        """Abort every open transaction of the job that is not decided."""
        m = self._m
        if swept := m.committer.sweep(m.job, keep=self._settler.unsettled()):
            m.journal.log("swept", transactions=len(swept))

    def _run(self, checkpoint: CheckpointId, base: CheckpointId, plan: Plan, planning: float) -> Answers:
        """Run the plan's Spark job and pre-commit what it wrote. ``planning``: seconds that the plan took."""
        m = self._m
        m.progress.began(checkpoint)
        self._settler.prepare(checkpoint)
        began = m.runtime.monotonic()
        try:
            votes = m.tasks.run(generation=self._generation, checkpoint=checkpoint, plan=plan)
            voted = m.runtime.monotonic()
            kill_point(KillPoint.DRIVER_AFTER_VOTES)
            written = _Written(
                checkpoint=checkpoint,
                base=base,
                plan=plan,
                inputs=m.tasks.inputs(plan, len(votes)),
                planning=planning,
                began=began,
                open_since=began,
            )
            answers = self._answers(written, votes, voted, self._prove(written, votes))
        except Exception:
            failed = m.runtime.monotonic() - began
            m.source.observe_run(plan, failed, failed=True)
            if m.traces is not None:
                m.traces.not_written(checkpoint, plan_s=planning, run_s=failed)
            raise
        took = m.runtime.monotonic() - began
        m.source.observe_run(plan, took, held=took * held_share((vote.held, vote.steps) for vote in votes))
        return answers

    def _cut(self, staying: StayingTasks, checkpoint: CheckpointId, base: CheckpointId, positions: Document) -> Answers:
        """Have the staying tasks cut the checkpoint, and pre-commit what they have written since the last one."""
        m = self._m
        try:
            began = m.runtime.monotonic()
            assigned = staying.go_on(self._generation, positions, self._mailbox, self._sweep)
            planning = m.runtime.monotonic() - began
            self._measured({Phase.PLAN: planning})
            if staying.finished:
                return self._nothing(base, positions, assigned, finished=True)
            if not (self._await_news(staying, checkpoint) or staying.passed()):
                self._observe_held(0.0)
                self._look_for_stall(staying, positions)
                self._sweep_now_and_then(checkpoint)
                return self._nothing(base, positions, assigned, finished=False)
            m.progress.began(checkpoint)
            self._settler.prepare(checkpoint)
            began = m.runtime.monotonic()
            staying.cut(checkpoint)
            kill_point(KillPoint.DRIVER_AFTER_CUT)
            self._await_tasks(checkpoint, lambda: staying.sent(checkpoint))
            coming, plan, since = staying.coming(checkpoint)
            if plan.records == 0 and not any(vote.body for vote in coming):  # a transform may make rows of nothing
                self._await_votes(staying, checkpoint, coming)
                return self._nothing(base, positions, plan.positions, finished=plan.finished)
            self._unread_since = None
            written = _Written(
                checkpoint=checkpoint,
                base=base,
                plan=plan,
                inputs=[[split] for split in plan.splits],
                planning=planning,
                began=began,
                open_since=since,
            )
            proved = self._prove(written, coming)
            votes, voted = self._await_votes(staying, checkpoint, coming)
            kill_point(KillPoint.DRIVER_AFTER_VOTES)
            self._observe_held(sum(vote.held for vote in votes) / len(votes))
            return self._answers(written, votes, voted, proved)
        except Exception:
            staying.end()
            with contextlib.suppress(Exception):  # the failure itself says enough
                self.plan = m.source.plan(positions)
            raise

    def _observe_held(self, held: float) -> None:
        """Report now and then for how long staying tasks were held back. ``held``: seconds, their average."""
        self._held += held
        now = self._m.runtime.monotonic()
        if (seconds := now - self._held_since) >= _HELD_INTERVAL:
            self._m.source.observe_held(seconds, self._held)
            self._held, self._held_since = 0.0, now

    def _await_tasks(self, checkpoint: CheckpointId, done: Callable[[], bool]) -> None:
        self._mailbox.wait(lambda: done() or self._mailbox.aborted(checkpoint), None)
        if self._mailbox.aborted(checkpoint):
            raise CheckpointFailedError(f"Checkpoint {checkpoint} was aborted before all staying tasks had voted.")

    def _await_votes(
        self, staying: StayingTasks, checkpoint: CheckpointId, coming: Sequence[Vote]
    ) -> tuple[tuple[Vote, ...], float]:
        """Return the votes, and when the last one came. Raises CheckpointFailedError if they are not those that were
        ``coming``, and what broke the tasks."""
        self._await_tasks(checkpoint, lambda: staying.answered(checkpoint))
        votes, voted = staying.votes(checkpoint)
        if [vote.body for vote in votes] != [vote.body for vote in coming]:
            raise CheckpointFailedError(
                f"Staying tasks voted for other transactions of checkpoint {checkpoint} than those that they had "
                "announced. Nothing of it becomes visible; its records are written again. This is a bug of the "
                "writer: please report it."
            )
        return votes, voted

    def _await_news(self, staying: StayingTasks, checkpoint: CheckpointId) -> bool:
        """Wait briefly until a task has records. Return whether the checkpoint is worth a cut."""
        began = self._m.runtime.monotonic()
        self._mailbox.wait(lambda: staying.news() or self._disturbed(checkpoint), self._patience)
        self._measured({Phase.IDLE: self._m.runtime.monotonic() - began})
        if self._mailbox.aborted(checkpoint):
            raise CheckpointFailedError(f"Checkpoint {checkpoint} was aborted before it was cut.")
        return staying.news() or self._mailbox.hurried(checkpoint)

    def _look_for_stall(self, staying: StayingTasks, positions: Document) -> None:
        """Look for input that the tasks do not report. Raises CheckpointFailedError if it has been there for long."""
        m = self._m
        plan, now = m.source.plan(positions), m.runtime.monotonic()
        m.progress.planned_nothing(plan.lag, plan.partitions())
        if plan.records == 0 or staying.news() or staying.passed():
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        elif now - self._unread_since > _STALLED:
            self._unread_since = None
            raise CheckpointFailedError(
                f"The input has had records for {_STALLED:.0f} s that the staying tasks do not read: "
                f"{m.source.describe(plan.splits)}. No record was skipped; new tasks read them. Check that the "
                "executors reach the brokers."
            )

    def _prove(self, written: _Written, votes: Sequence[Vote]) -> _Proved:
        """Pre-commit. ``votes``: those of the tasks, or those that are coming."""
        m, plan = self._m, written.plan
        if m.staying is not None:
            m.sink.leave_open(m.staying.marks)
        positions = m.runtime.beside(lambda: m.source.snapshot(plan))
        committables = m.sink.pre_commit(
            written.checkpoint, votes, origins_of(written.inputs), unsettled=self._settler.unsettled()
        )
        # On this process's clock: no transaction is older.
        ages = [age for age in map(m.committer.age, committables) if age is not None]
        self._ages.began(ages, written.open_since)
        lasting = good_for(age.timeout for age in ages)
        return _Proved(
            committables=committables,
            positions=positions(),
            good_until=None if lasting is None else written.open_since + lasting,
            at=m.runtime.monotonic(),
        )

    def _answers(self, written: _Written, votes: Sequence[Vote], voted: float, proved: _Proved) -> Answers:
        """``voted``: when all had voted."""
        m, plan, committables = self._m, written.plan, proved.committables
        steps = of_checkpoint((vote.steps for vote in votes), voted - written.began)
        self._measured(steps)
        seconds, proving = max(proved.at, voted) - written.began, max(0.0, proved.at - voted)
        self._measured({Phase.PROVE: proving})
        kill_point(KillPoint.DRIVER_AFTER_PRE_COMMIT)
        records, size = sum(vote.records for vote in votes), sum(vote.bytes for vote in votes)
        read = plan.records if plan.lag is not None else records  # Spark reads a query's input and does not count it
        m.progress.read(read, plan.lag, plan.partitions(), planned_s_ago=seconds)
        m.journal.log(
            "pre-committed",
            checkpoint=written.checkpoint,
            base=written.base,
            transactions=len(committables),
            read=plan.records,
            written=records,
            bytes=size,
            lag=plan.lag,
            seconds=round(seconds, 3),
            steps={"plan": round(written.planning, 6), **steps, "prove": round(proving, 6)},
            **plan.sizing,
        )
        if m.traces is not None:
            m.traces.wrote(
                written.checkpoint,
                votes,
                plan_s=written.planning,
                run_s=voted - written.began,
                prove_s=proving,
                read=plan.records,
                transactions=len(committables),
            )
        return Answers(
            base=written.base,
            source=Snapshot(
                positions=proved.positions,
                records=plan.records,
                # start the next checkpoint at once when there is a backlog, or when the job has nothing left to do
                next_at_once=plan.cut_for_time or plan.finished,
            ),
            sink=Snapshot(committables=committables, records=records, bytes=size),
            good_until=proved.good_until,
            phases=self.phases,
        )

    def _measured(self, seconds: Mapping[str, float]) -> None:
        self.phases |= {phase: timedelta(seconds=seconds[phase]) for phase in Phase if phase in seconds}


def require_spark(members: Members, settler: Settler) -> None:
    """Raise OncewardError when Spark is gone, after waiting until the settler has settled what is decided."""
    if members.tasks.alive():
        return
    give_up = members.runtime.monotonic() + _SETTLE_LIMIT
    while settler.unsettled() and members.runtime.monotonic() < give_up:
        members.runtime.sleep(0.05)
    raise OncewardError(
        "Spark's JVM is gone. Completed checkpoints are committed now or at the next start; the running "
        "checkpoint is aborted by the next start, its records are read again. Start the program again."
    )
