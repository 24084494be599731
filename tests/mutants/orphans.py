"""Bugs of the coordinator that stands in for a driver: something stays open, is ended wrongly, or by the wrong one."""

from coordinator.protocol import orphans as core
from coordinator.service import orphan, orphans, reach
from tests.mutants.breaking import changed
from tests.mutants.mutant import Mutant
from tests.mutants.storms import Storm, clear
from tests.simulation.checker import Invariant
from tests.simulation.executors import TaskFaults

__all__ = ["ORPHANS"]

_GONE = {"gone": True, "lease": 1.0, "orphan_grace": 1.0, "storm": 8.0, "interval": 0.0, "marker_delay": 0.0}
GONE = Storm(
    name="drivers are gone for ever",
    seeds=12,
    weather=clear(**_GONE, coordinator_kills=4, tasks=TaskFaults(slow=0.3)),
)
ROBBED = Storm(
    name="drivers are gone for ever, and another program aborts what is decided",
    seeds=12,
    weather=clear(**_GONE, robberies=0.5),
)
KILLED = Storm(
    name="drivers are gone for ever, and coordinators die in the midst of their work",
    seeds=12,
    weather=clear(**_GONE, kill_points=0.05, coordinator_kills=6),
)

ORPHANS = (
    Mutant(
        name="a coordinator that is started again does not look for jobs without a driver",
        hurts="readers wait for the brokers' timeout because the coordinator was restarted at the wrong moment",
        breaks=changed(orphans.Orphans.start, ("for job in self._engine.jobs():", "for job in ():")),
        hunt=GONE,
        caught_by=(Invariant.ORPHANS,),
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
        breaks=changed(reach.Reach.sweep, ("committer.sweep(", "committer.leftovers(")),
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
        breaks=changed(reach.Reach.sweep, ("keep[self._kinds[name]] += snapshot.committables", "pass")),
        hunt=KILLED,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the coordinator takes every commit that it has sent for carried out",
        hurts="what was aborted before counts as settled, and its records never come",
        breaks=changed(
            reach.Reach.commit, ("else replace(one, evidence", "else replace(one, outcome=Outcome.COMMITTED, evidence")
        ),
        hunt=ROBBED,
        caught_by=(Invariant.I1,),
    ),
)
