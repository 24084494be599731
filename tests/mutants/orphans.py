"""Bugs of the coordinator in place of a driver: something stays open, or is ended wrongly or by the wrong process."""

from onceward.coordinator.protocol import orphans as core
from onceward.coordinator.protocol import settling
from onceward.coordinator.protocol import state as states
from onceward.coordinator.service import orphan, orphan_clusters, orphans
from tests.explorer.invariants import Invariant as Small
from tests.explorer.world import Bounds
from tests.mutants.breaking import changed
from tests.mutants.hunts import Exploration
from tests.mutants.mutant import Mutant
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant
from tests.simulation.executors import TaskFaults

__all__ = ["ORPHANS"]

ALONE = Exploration(
    name="a small world without a driver",
    bounds=Bounds(checkpoints=2, generations=3, crashes=2, messages=0, store=0, declines=0, timeouts=0, alone=True),
)
_GONE = {"gone": True, "lease": 1.0, "orphan_grace": 1.0, "fault_time": 8.0, "interval": 0.0, "marker_delay": 0.0}
GONE = SeedHunt(
    name="drivers are gone for ever",
    seeds=12,
    faults=clear(**_GONE, coordinator_kills=4, tasks=TaskFaults(slow=0.3)),
)
ROBBED = SeedHunt(
    name="drivers are gone for ever, and another program aborts what is decided",
    seeds=12,
    faults=clear(**_GONE, robberies=0.5),
)
KILLED = SeedHunt(
    name="drivers are gone for ever, and coordinators die in the midst of their work",
    seeds=60,
    faults=clear(**_GONE, kill_points=0.05, coordinator_kills=2),
)

LATE = SeedHunt(
    name="drivers are gone for ever, and markers are late",
    seeds=12,
    faults=clear(**{**_GONE, "marker_delay": 0.5}),
)

ORPHANS = (
    Mutant(
        name="the coordinator settles a job without a driver before its commits show",
        hurts="a reader of its output misses the last records when it has ended",
        breaks=changed(orphan.Orphan._await_ends, ("while left := await", "while left := () and await")),
        hunt=LATE,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="a coordinator that is started again does not look for jobs without a driver",
        hurts="readers wait for the brokers' timeout because the coordinator was restarted at the wrong moment",
        breaks=changed(orphans.Orphans.start, ("for job in self._engine.jobs():", "for job in ():")),
        hunt=GONE,
        caught_by=(Invariant.ORPHANS,),
    ),
    Mutant(
        name="a job that the coordinator has taken is not taken again after its restart",
        hurts="what it had not ended before it died stays open",
        breaks=changed(core.take, ("if durable.orphaned and not durable.unreadable:", "if False:")),
        hunt=ALONE,
        caught_by=(Small.CONTRACT,),
    ),
    Mutant(
        name="a job whose driver was lost while the coordinator was away is never taken",
        hurts="readers wait for as long as nobody starts the job",
        breaks=changed(states.restart, ("driverless_since=None if durable.driven else now", "driverless_since=None")),
        hunt=ALONE,
        caught_by=(Small.ALONE,),
    ),
    Mutant(
        name="the coordinator may not tell what became of the commits of a job that it has taken",
        hurts="it commits for ever, and the checkpoint is never settled",
        breaks=changed(
            settling._unsettled, ("if not may_report(state, generation):", "if not may_drive(state, generation):")
        ),
        hunt=ALONE,
        caught_by=(Small.SETTLED,),
    ),
    Mutant(
        name="the coordinator takes a job and keeps its driver's generation",
        hurts="a driver that was only cut off is not fenced, and both end transactions",
        breaks=changed(core.take, ("Generation(durable.generation + 1)", "durable.generation")),
        hunt=GONE,
        caught_by=(Invariant.I7,),
    ),
    Mutant(
        name="the coordinator leaves open what nobody has decided for",
        hurts="readers of the output wait for the brokers' timeout",
        breaks=changed(orphan_clusters.OrphanClusters.sweep, ("committer.sweep(", "committer.leftovers(")),
        hunt=GONE,
        caught_by=(Invariant.ORPHANS,),
    ),
    Mutant(
        name="the coordinator leaves open what is decided",
        hurts="readers of the output wait until somebody starts the job, and after the timeout it is lost",
        breaks=changed(
            orphan.Orphan._commit_decided,
            ("if completed is None or completed.settled or durable.status is JobStatus.HALTED:", "if True:"),
        ),
        hunt=GONE,
        caught_by=(Invariant.ORPHANS,),
    ),
    Mutant(
        name="the coordinator sweeps what is decided together with the rest",
        hurts="a completed checkpoint has no transactions any more",
        breaks=changed(
            orphan_clusters.OrphanClusters.sweep, ("keep[self._kinds[name]] += snapshot.committables", "pass")
        ),
        hunt=KILLED,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the coordinator takes every commit that it has sent for carried out",
        hurts="what was aborted before counts as settled, and its records never come",
        breaks=changed(
            orphan_clusters.OrphanClusters.commit,
            ("else replace(one, evidence", "else replace(one, outcome=Outcome.COMMITTED, evidence"),
        ),
        hunt=ROBBED,
        caught_by=(Invariant.I1,),
    ),
)
