"""Checkpoints of staying tasks: cut what they have read and written since the last one."""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

from onceward.common.errors import CheckpointFailedError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.connectors.interfaces import Plan
from onceward.driver.checkpoint_tasks import CheckpointTasks, Nothing, Turn, Written
from onceward.driver.members import Members
from onceward.driver.outputs import Votes
from onceward.driver.staying.tasks import StayingTasks
from onceward.protocol.phases import Phase
from onceward.protocol.values import CheckpointId, Document, JsonObject, ParticipantName

__all__ = ["CheckpointsOfStayingTasks"]

_STALLED = 60.0
"""Seconds after which staying tasks that do not read input that is there are replaced."""
_HELD_INTERVAL = 10.0
"""Seconds for which it is added up how long staying tasks were held back: their checkpoints are short."""


class CheckpointsOfStayingTasks(CheckpointTasks):
    """Has the staying tasks cut each checkpoint; starts new ones after a failure."""

    def __init__(self, staying: StayingTasks, members: Members, turn: Turn) -> None:
        self._staying = staying
        self._m = members
        self._turn = turn
        self._held, self._held_since = 0.0, members.runtime.monotonic()
        """For how long the tasks were held back, and since when that is added up."""
        self._unread_since: float | None = None
        """Since when the input has records that the tasks do not report."""

    def alive(self) -> bool:
        """Tasks that run notice by themselves that Spark is gone."""
        return self._staying.running or self._m.tasks.alive()

    def write(self, checkpoint: CheckpointId, positions: Document) -> Written | Nothing:
        m, staying, turn = self._m, self._staying, self._turn
        began = m.runtime.monotonic()
        assigned = staying.go_on(turn.generation, positions, turn.mailbox, turn.sweep)
        planning = m.runtime.monotonic() - began
        turn.measured({Phase.PLAN: planning})
        if staying.finished:
            return Nothing(positions=assigned, finished=True)
        if not (self._await_news(checkpoint) or staying.passed()):
            self._observe_held(0.0)
            self._look_for_stall(positions)
            return Nothing(positions=assigned, finished=False)
        turn.begin(checkpoint)
        began = m.runtime.monotonic()
        staying.cut(checkpoint)
        kill_point(KillPoint.DRIVER_AFTER_CUT)
        self._await_tasks(checkpoint, lambda: staying.sent(checkpoint))
        coming, plan, since = staying.coming(checkpoint)
        inputs = [[split] for split in plan.splits]
        written = Written(
            plan=plan,
            votes=coming,
            inputs=dict.fromkeys(coming, inputs),
            planning=planning,
            began=began,
            open_since=since,
        )
        wrote = any(vote.body for vote in chain(*coming.values()))  # a transform may make rows of nothing
        if plan.records == 0 and not wrote:
            self._confirmed(checkpoint, written)
            return Nothing(positions=plan.positions, finished=plan.finished)
        self._unread_since = None
        return written

    def _await_news(self, checkpoint: CheckpointId) -> bool:
        """Wait briefly until a task has records. Return whether the checkpoint is worth a cut."""
        staying, turn, runtime = self._staying, self._turn, self._m.runtime
        began = runtime.monotonic()
        turn.mailbox.wait(lambda: staying.news() or turn.disturbed(checkpoint), turn.patience)
        turn.measured({Phase.IDLE: runtime.monotonic() - began})
        if turn.mailbox.aborted(checkpoint):
            raise CheckpointFailedError(f"Checkpoint {checkpoint} was aborted before it was cut.")
        return staying.news() or turn.mailbox.hurried(checkpoint)

    def _look_for_stall(self, positions: Document) -> None:
        """Look for input that the tasks do not report. Raises CheckpointFailedError if it has been there for long."""
        m, staying = self._m, self._staying
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

    def _await_tasks(self, checkpoint: CheckpointId, done: Callable[[], bool]) -> None:
        mailbox = self._turn.mailbox
        mailbox.wait(lambda: done() or mailbox.aborted(checkpoint), None)
        if mailbox.aborted(checkpoint):
            raise CheckpointFailedError(f"Checkpoint {checkpoint} was aborted before all staying tasks had voted.")

    def votes(self, checkpoint: CheckpointId, written: Written) -> tuple[Votes, float]:
        confirmed = self._confirmed(checkpoint, written)
        kill_point(KillPoint.DRIVER_AFTER_VOTES)
        return confirmed

    def _confirmed(self, checkpoint: CheckpointId, written: Written) -> tuple[Votes, float]:
        """Wait until the brokers have confirmed what the tasks have sent."""
        self._await_tasks(checkpoint, lambda: self._staying.answered(checkpoint))
        votes, voted = self._staying.votes(checkpoint)
        if _bodies(votes) != _bodies(written.votes):
            raise CheckpointFailedError(
                f"Staying tasks voted for other transactions of checkpoint {checkpoint} than those that they had "
                "announced. Nothing of it becomes visible; its records are written again. This is a bug of the "
                "writer: please report it."
            )
        return votes, voted

    def pre_committed(self, written: Written, votes: Votes) -> None:
        held = sum(vote.held for vote in chain(*votes.values()))
        self._observe_held(held / len(written.plan.splits))

    def _observe_held(self, held: float) -> None:
        """Report now and then for how long the tasks were held back. ``held``: seconds, their average."""
        self._held += held
        now = self._m.runtime.monotonic()
        if (seconds := now - self._held_since) >= _HELD_INTERVAL:
            self._staying.observe_held(seconds, self._held)
            self._held, self._held_since = 0.0, now

    def failed(self, checkpoint: CheckpointId, positions: Document) -> Plan | None:
        self.end()
        with contextlib.suppress(Exception):  # the failure itself says enough
            return self._m.source.plan(positions)
        return None

    @property
    def marks(self) -> Collection[str]:
        return self._staying.marks

    def end(self) -> None:
        self._staying.end()

    def leave(self) -> None:
        self._staying.leave()


def _bodies(votes: Votes) -> Mapping[ParticipantName, Sequence[JsonObject]]:
    return {name: [vote.body for vote in each] for name, each in votes.items()}
