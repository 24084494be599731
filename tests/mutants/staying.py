"""Bugs of staying tasks and of the driver that cuts them."""

from collections.abc import Callable, Sequence

from onceward.driver.checkpoint_runner import CheckpointRunner
from onceward.driver.mailbox import Mailbox
from onceward.driver.staying.group import Report, TaskGroup
from onceward.driver.staying.tasks import StayingTasks
from onceward.executor.staying import StayingTask
from onceward.protocol.values import Document, Generation
from tests.mutants.breaking import always, both, within, wrapped
from tests.mutants.mutant import Mutant
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant
from tests.simulation.executors import TaskFaults

__all__ = ["STAYING"]

SLOW = SeedHunt(
    name="staying tasks are slow", seeds=20, faults=clear(staying=True, interval=0.0, tasks=TaskFaults(slow=0.3))
)
ABORTS = SeedHunt(
    name="checkpoints of staying tasks fail",
    seeds=20,
    faults=clear(staying=True, tasks=TaskFaults(slow=0.3), timeout=0.3),
)


def _goes_on(
    go_on: Callable[[StayingTasks, Generation, Document, Mailbox, Callable[[], object]], Document],
    self: StayingTasks,
    generation: Generation,
    base: Document,
    mailbox: Mailbox,
    sweep: Callable[[], object],
) -> Document:
    return go_on(self, generation, self._base if self.running and self._base is not None else base, mailbox, sweep)


UNCONFIRMED = SeedHunt(
    name="brokers stop and staying tasks die",
    seeds=150,
    faults=clear(
        staying=True,
        totals=(40, 40),
        outputs=1,
        interval=0.2,
        broker_failures=15,
        tasks=TaskFaults(killed=0.7, slow=0.05),
    ),
)


def _sent_is_enough(
    _reports: Callable[[TaskGroup, int], Sequence[Report] | None], self: TaskGroup, checkpoint: int
) -> Sequence[Report] | None:
    return self.sent(checkpoint)


STAYING = (
    Mutant(
        name="a task writes the next checkpoint before all have flushed the last one",
        hurts="an output partition shows records of a checkpoint after records of the next one",
        breaks=within(StayingTask._until_cut, StayingTask._await_flushed, always(None)),
        hunt=SLOW,
        caught_by=(Invariant.I4,),
    ),
    Mutant(
        name="staying tasks read on from a checkpoint that was aborted",
        hurts="the records of that checkpoint are never written",
        breaks=both(
            within(CheckpointRunner._abandon, StayingTasks.end, always(None)), wrapped(StayingTasks.go_on, _goes_on)
        ),
        hunt=ABORTS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the driver acknowledges what staying tasks have sent and brokers have not confirmed",
        hurts="a completed checkpoint lacks records whose task died before they were confirmed",
        breaks=wrapped(TaskGroup.reports, _sent_is_enough),
        hunt=UNCONFIRMED,
        caught_by=(Invariant.I1,),
    ),
)
