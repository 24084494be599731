"""Write a checkpoint: have its tasks read, transform and write, and pre-commit what they wrote."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from onceward.common.errors import OncewardError, PostponedError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.common.printable import logger
from onceward.connectors.interfaces import Plan
from onceward.connectors.letters import DEAD_LETTERS
from onceward.connectors.tasks import Vote
from onceward.driver.checkpoint_tasks import CheckpointTasks, Nothing, Turn, Written
from onceward.driver.members import Members
from onceward.driver.origins import origins_of
from onceward.driver.outputs import Made, Outputs, Votes
from onceward.driver.settler import Settler
from onceward.driver.spark.tasks import Tasks
from onceward.driver.transaction_age import Ages, good_for
from onceward.executor.timings import of_checkpoint
from onceward.protocol.phases import Phase, Phases
from onceward.protocol.values import CheckpointId, Committable, Document, ParticipantName, Snapshot

__all__ = ["Answers", "CheckpointWriter", "require_spark"]

_log = logger("onceward.pipeline")

_SWEEP_INTERVAL = 30.0
"""Seconds between sweeps of an idle job; a busy job sweeps in every checkpoint."""
_SETTLE_LIMIT = 60.0
"""Seconds to finish decided commits after Spark is lost; the next generation commits the rest."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What source and sink answer to one trigger."""

    base: CheckpointId
    source: Snapshot
    sinks: Mapping[ParticipantName, Snapshot]
    made: Made = field(default_factory=dict)
    """What was pre-committed."""
    good_until: float | None = None
    """Deadline for committing the checkpoint, on the runtime's monotonic clock; None when it has none."""
    phases: Phases = field(default_factory=dict)

    @property
    def committables(self) -> Mapping[ParticipantName, tuple[Committable, ...]]:
        """What the sinks commit if the checkpoint completes."""
        return {name: snapshot.committables for name, snapshot in self.sinks.items() if snapshot.committables}


@dataclass(frozen=True, kw_only=True)
class _Proved:
    """What was written is ready to commit."""

    made: Made
    positions: Document
    good_until: float | None
    at: float


class CheckpointWriter:
    """Writes the checkpoints of one generation, one at a time."""

    def __init__(
        self,
        members: Members,
        outputs: Outputs,
        tasks: CheckpointTasks,
        turn: Turn,
        settler: Settler,
        ages: Ages,
    ) -> None:
        self._m = members
        self._outputs = outputs
        self._tasks = tasks
        self._turn = turn
        self._settler = settler
        self._ages = ages
        self._last_sweep = members.runtime.monotonic()
        self.plan: Plan | None = None
        """What the tasks of the last checkpoint were to read, if it failed; None if they had not begun."""
        self.finished = False
        """True once a bounded input is used up."""

    def write(self, checkpoint: CheckpointId, base: CheckpointId, positions: Document | None) -> Answers:
        """Plan, read, transform, write and pre-commit.

        ``positions``: where ``base`` has ended; None for the first checkpoint of a job, which only resolves where to
        start.
        """
        m, tasks = self._m, self._tasks
        self.plan = None
        self._turn.phases.clear()
        if kept_waiting := self._turn.mailbox.kept_waiting:
            self._turn.measured({Phase.CLEANUP: kept_waiting})
        require_spark(m, self._settler, tasks)
        if positions is None:
            source = Snapshot(positions=m.source.resolve(), next_at_once=True)
            return Answers(base=base, source=source, sinks=self._each(Snapshot(), self._count(checkpoint, base)))
        if self._held(checkpoint):
            return self._nothing(checkpoint, base, positions, Nothing(positions=positions, finished=False))
        try:
            written = tasks.write(checkpoint, positions)
            if isinstance(written, Nothing):
                self._sweep_now_and_then()
                return self._nothing(checkpoint, base, positions, written)
            proved = self._prove(checkpoint, written)
            votes, voted = tasks.votes(checkpoint, written)
            letters = self._count(checkpoint, base, _read(written.plan, votes), votes.get(DEAD_LETTERS, ()))
            answers = self._answers(checkpoint, base, written, votes, voted, proved, letters)
        except Exception as error:
            if isinstance(error, PostponedError):
                m.hold.hold(m.runtime.monotonic() + error.after)
            self.plan = tasks.failed(checkpoint, positions)
            raise
        tasks.pre_committed(written, votes)
        return answers

    def _held(self, checkpoint: CheckpointId) -> bool:
        """Return whether the records must not be read yet, after waiting for it as briefly as for new data."""
        m, turn = self._m, self._turn
        if left := m.hold.left(m.runtime.monotonic()):
            turn.mailbox.wait(lambda: turn.disturbed(checkpoint), min(left, turn.patience))
        return m.hold.left(m.runtime.monotonic()) > 0

    def _count(
        self, checkpoint: CheckpointId, base: CheckpointId, read: int = 0, votes: Sequence[Vote] = ()
    ) -> Document | None:
        """Count the dead letters of ``checkpoint``. Return what its snapshot stores of them. Raises HaltedError if
        there are too many."""
        counting = self._m.letters
        if counting is None:
            return None
        if letters := sum(vote.records for vote in votes):
            reasons = counting.kinds(votes)
            self._m.journal.log("dead letters", checkpoint=checkpoint, letters=letters, reasons=reasons)
            each = ", ".join(f"{count} {kind}" for kind, count in reasons.items())
            _log.warning("job %s: checkpoint %d has %d dead letters: %s", self._m.job, checkpoint, letters, each)
        return counting.count(checkpoint, base, read=read, votes=votes)

    def _nothing(self, checkpoint: CheckpointId, base: CheckpointId, before: Document, nothing: Nothing) -> Answers:
        """Answer that nothing was read and written."""
        unchanged = nothing.positions == before
        self.finished = nothing.finished and unchanged
        source = Snapshot(
            positions=nothing.positions, unchanged=unchanged, next_at_once=nothing.finished and not unchanged
        )
        phases = dict(self._turn.phases)
        sinks = self._each(Snapshot(unchanged=unchanged), self._count(checkpoint, base))
        return Answers(base=base, source=source, sinks=sinks, phases=phases)

    def _each(self, snapshot: Snapshot, letters: Document | None) -> Mapping[ParticipantName, Snapshot]:
        each = dict.fromkeys(self._outputs.names, snapshot)
        return each if letters is None else {**each, DEAD_LETTERS: replace(snapshot, state=letters)}

    def _sweep_now_and_then(self) -> None:
        """Sweep an idle job at intervals: a late zombie of an earlier generation must not hold readers back."""
        m = self._m
        if m.runtime.monotonic() - self._last_sweep < _SWEEP_INTERVAL:
            return
        self._turn.sweep()
        self._last_sweep = m.runtime.monotonic()

    def _prove(self, checkpoint: CheckpointId, written: Written) -> _Proved:
        """Pre-commit."""
        m, plan = self._m, written.plan
        positions = m.runtime.beside(lambda: m.source.snapshot(plan))
        made = self._outputs.pre_commit(
            checkpoint,
            written.votes,
            origins_of(written.inputs, m.source.describe),
            keep=self._settler.unsettled(),
            staying=self._tasks.marks,
        )
        # On this process's clock: no transaction is older.
        ages = list(self._outputs.ages({name: each.committables for name, each in made.items()}))
        self._ages.began(ages, written.open_since)
        lasting = good_for(age.timeout for age in ages)
        return _Proved(
            made=made,
            positions=positions(),
            good_until=None if lasting is None else written.open_since + lasting,
            at=m.runtime.monotonic(),
        )

    def _answers(
        self,
        checkpoint: CheckpointId,
        base: CheckpointId,
        written: Written,
        votes: Votes,
        voted: float,
        proved: _Proved,
        letters: Document | None,
    ) -> Answers:
        """``voted``: when all had voted."""
        m, plan = self._m, written.plan
        every = tuple(chain(*votes.values()))
        transactions = sum(len(each.committables) for each in proved.made.values())
        steps = of_checkpoint((vote.steps for vote in every), voted - written.began)
        self._turn.measured(steps)
        seconds, proving = max(proved.at, voted) - written.began, max(0.0, proved.at - voted)
        self._turn.measured({Phase.PROVE: proving})
        kill_point(KillPoint.DRIVER_AFTER_PRE_COMMIT)
        records = {name: sum(vote.records for vote in each) for name, each in votes.items()}
        sizes = {name: sum(vote.bytes for vote in each) for name, each in votes.items()}
        m.progress.read(_read(plan, votes), plan.lag, plan.partitions(), planned_s_ago=seconds)
        m.journal.log(
            "pre-committed",
            checkpoint=checkpoint,
            base=base,
            transactions=transactions,
            read=plan.records,
            written=sum(records.values()),
            bytes=sum(sizes.values()),
            outputs={name: {"written": records[name], "bytes": sizes[name]} for name in votes},
            lag=plan.lag,
            seconds=round(seconds, 3),
            steps={"plan": round(written.planning, 6), **steps, "prove": round(proving, 6)},
            **plan.sizing,
        )
        if m.traces is not None:
            m.traces.wrote(
                checkpoint,
                every,
                plan_s=written.planning,
                run_s=voted - written.began,
                prove_s=proving,
                read=plan.records,
                transactions=transactions,
            )
        return Answers(
            base=base,
            source=Snapshot(
                positions=proved.positions,
                records=plan.records,
                # start the next checkpoint at once when there is a backlog, or when the job has nothing left to do
                next_at_once=plan.cut_for_time or plan.finished,
            ),
            sinks={
                name: Snapshot(
                    committables=each.committables,
                    records=records[name],
                    bytes=sizes[name],
                    state=letters if name == DEAD_LETTERS else None,
                )
                for name, each in proved.made.items()
            },
            made=proved.made,
            good_until=proved.good_until,
            phases=dict(self._turn.phases),
        )


def _read(plan: Plan, votes: Votes) -> int:
    """Return how many records were read. Spark reads a query's input and does not count it: then, how many the query
    has given to an output."""
    if plan.counted:
        return plan.records
    return sum(vote.digest.records for vote in next(iter(votes.values())))


def require_spark(members: Members, settler: Settler, tasks: Tasks | CheckpointTasks) -> None:
    """Raise OncewardError when the tasks can never run again, after waiting until the settler has settled what is
    decided."""
    if tasks.alive():
        return
    give_up = members.runtime.monotonic() + _SETTLE_LIMIT
    while settler.unsettled() and members.runtime.monotonic() < give_up:
        members.runtime.sleep(0.05)
    raise OncewardError(
        "Spark's JVM is gone. Completed checkpoints are committed now or at the next start; the running "
        "checkpoint is aborted by the next start, its records are read again. Start the program again."
    )
