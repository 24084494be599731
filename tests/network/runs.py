"""Runs a scenario at its phases: one job, one fault after the other, and one verdict of the judge for the job."""

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from signal import SIGCONT, SIGTERM
from typing import Any, assert_never

from kafka import KafkaAdminClient

from onceward import KafkaCluster
from onceward.common.killpoints import KillPoint
from onceward.dev.errors import LocalPostgresError
from onceward.operate.verify.cluster import ClusterView
from tests.network.executors import STANDALONE, NotPermittedError, two_workers
from tests.network.faults import SINK_BROKER, SOURCE_BROKER, in_force
from tests.network.results import Run
from tests.network.scenario import Do, Kill, Phase, Scenario
from tests.network.supervising import settled_after, supervise
from tests.network.world import BROKERS, LinkedHarness, two_coordinators, with_tables
from tests.support.jobs import Job, Setup, judged
from tests.support.killed_job import at_point
from tests.support.processes import Process, stands_still
from tests.support.schedules import Outcome, Schedule
from tests.support.spark_cluster import CLUSTER, LOCAL
from tests.support.topics import open_transactions_hold_back
from tests.support.waiting import wait_until

__all__ = ["run_scenario", "setup_of"]

_SETTINGS = {"interval": "200ms", "lease": "10s", "stream_grace": "2s", "orphan_grace": "30s", "timeout": "60s"}
"""Default leases: some faults last longer, and the driver returns as its next generation."""
_RATE, _PER_CHECKPOINT = 20, 3000
"""Records per second and partition, all of which are judged. The backlog of a fault fits into one checkpoint."""
_REACH_S = 90.0
"""Limit for a driver to reach a phase or leave, and for the coordinator to settle; only a stalled machine needs it."""
_QUIET_S = 30.0
"""Limit for readers to continue, and for connections that a fault has broken to be closed."""
_SPARE_CONNECTIONS = 2 * len(BROKERS)
"""Connections that a client opens only some time after its start: a reader and a writer, one to each broker."""
_AT_REST = 10
"""Checkpoints without a fault after the last run of a job."""
_IN_HAND_S = 1.0
"""Time in which events of work that began before the fault may still arrive."""


def setup_of(scenario: Scenario) -> Setup:
    """The setup of the scenario's job."""
    words: dict[str, Any] = dict(scenario.setup)
    if "spark" in words:
        words["spark"] = {"local": LOCAL, "local-cluster": CLUSTER}.get(words["spark"], words["spark"])
    settings = {**_SETTINGS, **words.pop("settings", {})}
    for topic, leader in (("source_on", SOURCE_BROKER), ("sink_on", SINK_BROKER)):
        if words.pop(topic, False):
            words[topic] = [leader, *(broker for broker in BROKERS if broker != leader)]
    return Setup(**{"rate": _RATE, "per_checkpoint": _PER_CHECKPOINT, **words}, settings=settings)


def run_scenario(world: LinkedHarness, scenario: Scenario, phases: Sequence[Phase], job: str, seed: int) -> list[Run]:
    """Run the phases in this order; they share a job and its verdict. ``seed``: selects the moments of the faults."""
    expected = Outcome.UNKNOWN if scenario.fault.bypass else Outcome.PASS
    runs = [
        Run(
            scenario=scenario.name,
            row=scenario.row,
            phase=phase.value,
            job=job,
            seed=seed,
            expected=expected,
            killed=scenario.kill and scenario.kill.value,
        )
        for phase in phases
    ]
    chance = random.Random(seed)

    def body(made: Job) -> None:
        world.driver = lambda: made.driver
        made.settles(2)
        usual = world.open_connections()
        for phase, run in zip(phases, runs, strict=True):
            _run(world, made, scenario, phase, run, chance, usual)
        made.settles(_AT_REST)  # all processes have recovered, so what a fault leaked shows
        _connections_are_as_usual(world, runs[-1], runs[-1].connections[0])

    paths = world.paths
    if scenario.fault.bypass:
        world.paths = replace(paths, drivers=paths.tests)
    schedule = Schedule(part="network", name=job, seed=seed)
    try:
        setup = setup_of(scenario)
        with contextlib.ExitStack() as stack:
            if setup.spark == STANDALONE:
                setup.spark = stack.enter_context(two_workers(world))
            elif setup.staying:
                setup.spark = f"{setup.spark} {world.for_staying}"
            stack.enter_context(with_tables(world, setup.tables))
            if scenario.coordinators == 2:
                stack.enter_context(two_coordinators(world))
            bypasses = stack.enter_context(world.watched())
            judged(world, schedule, setup, body)
    except (NotPermittedError, LocalPostgresError) as error:
        schedule.reasons.append(str(error))
        for run in runs:
            run.reasons += schedule.reasons
        return runs
    finally:
        world.paths = paths
        world.driver = lambda: None
        world.heal()
    for run in runs:
        run.outcome = schedule.outcome
        run.reasons += schedule.reasons if schedule.outcome is not expected else ()
        if run.recovery_s is None and scenario.do is Do.WAIT and run.outcome is Outcome.PASS:
            run.reasons.append("no recovery was seen")
        if bypasses.found or not bypasses.looks:
            ports = ", ".join(map(str, sorted(bypasses.found)))
            run.outcome = Outcome.UNKNOWN
            if not scenario.fault.bypass:
                run.reasons.append(f"void: {f'clients bypassed their links to ports {ports}' if ports else 'no look'}")
    return runs


def _run(
    world: LinkedHarness, job: Job, scenario: Scenario, phase: Phase, run: Run, chance: random.Random, usual: int
) -> None:
    """Run one fault at one phase and fill in ``run``. ``usual``: connections of an undisturbed driver and
    coordinator."""
    began = time.monotonic()
    world.serving()
    driver = _brought_to(world, job, phase, chance)
    usual = max(usual, world.open_connections())  # a driver that has just started has fewer
    accepted = world.proxies.accepted()
    with in_force(world, scenario.fault, _transaction_coordinators(world, job, scenario)):
        since = time.time()
        _meanwhile(world, job, driver, scenario, run)
        run.fault_s = time.time() - since
        more = world.proxies.accepted() - accepted
    healed = time.time()
    highs = {lane: high for lane, high, _ in _ends(world, job)}
    run.connects_per_s = round(max(more.values(), default=0) / max(run.fault_s, 1.0), 1)
    if run.connects_per_s > scenario.connects_per_s:
        run.reasons.append(f"{run.connects_per_s} connections per second through one link")
    if scenario.do is Do.WAIT:
        supervise(job, run, healed)
        job.wait(lambda: settled_after(job, healed), "a checkpoint is settled after the heal")
        run.recovery_s = round(settled_after(job, healed)[0] - healed, 2)
    elif scenario.do is Do.ORPHAN:
        _settled_by_coordinator(job)
        run.recovery_s = round(time.time() - healed, 2)
    if scenario.do is not Do.WAIT:
        job.drive()
        job.settles()
    _check_events(job, scenario, phase, run, since, healed)
    with _noted(run):
        wait_until(
            lambda: all(stable >= highs[lane] for lane, _, stable in _ends(world, job)), "readers get on", _QUIET_S
        )
    _connections_are_as_usual(world, run, usual)
    run.seconds = round(time.monotonic() - began, 1)


def _connections_are_as_usual(world: LinkedHarness, run: Run, usual: int) -> None:
    """Check for leaks. Each transaction's own client makes the number vary; a leaked connection raises its minimum."""
    allowed = usual + _SPARE_CONNECTIONS
    fewest = world.open_connections()

    def few() -> bool:
        nonlocal fewest
        fewest = min(fewest, world.open_connections())
        return fewest <= allowed

    with _noted(run):
        wait_until(few, f"at most {allowed} connections are open", _QUIET_S)
    run.connections = usual, fewest


@contextlib.contextmanager
def _noted(run: Run) -> Iterator[None]:
    """Record a failed expectation as a reason against this run, so that the next run can follow."""
    try:
        yield
    except AssertionError as error:
        run.reasons.append(str(error))


def _brought_to(world: LinkedHarness, job: Job, phase: Phase, chance: random.Random) -> Process:
    """Start a driver and let it stop at the phase."""
    if phase is Phase.RECOVERY:
        dying = world.arm(at_point("driver", KillPoint.DRIVER_AFTER_DECISION, 1))
        if not job.dies(job.drive(dying), dying, _REACH_S):
            raise AssertionError("no driver came to a decision")
        job.schedule.kills.clear()  # these kills are part of the set-up
    elif job.driver is not None:
        job.driver.terminate()
        if job.driver.wait(_REACH_S) != 0:
            raise AssertionError(
                f"a driver was asked to stop and ended with {job.driver.exit_code}:\n{job.driver.tail()}"
            )
    nth = 1 if phase is Phase.RECOVERY else chance.randint(2, 3)
    armed = world.arm(at_point("driver", phase.point, nth), stops=True)
    driver = job.drive(armed)
    job.wait(lambda: armed.look() and stands_still(driver.pid), f"the driver comes to {phase.point.value}:{nth}")
    return driver


def _meanwhile(world: LinkedHarness, job: Job, driver: Process, scenario: Scenario, run: Run) -> None:
    match scenario.do:
        case Do.WAIT:
            driver.send(SIGCONT)
            job.lives(scenario.seconds / 2)
            _kill(world, job, scenario.kill)
            job.lives(scenario.seconds / 2)
        case Do.STOP:
            driver.send(SIGTERM)
            driver.send(SIGCONT)
            with _noted(run):
                left = driver.wait(scenario.leaves_within_s)
                assert left == 0, f"asked to stop, it ended with {left}:\n{driver.tail()}"
        case Do.ORPHAN:
            driver.end()
            job.lives(scenario.seconds)
        case _:
            assert_never(scenario.do)


def _kill(world: LinkedHarness, job: Job, kill: Kill | None) -> None:
    match kill:
        case None:
            pass
        case Kill.DRIVER:
            job.drive()
        case Kill.COORDINATOR:
            world.serve()
        case _:
            assert_never(kill)


def _settled_by_coordinator(job: Job) -> None:
    wait_until(
        lambda: not any(open_transactions_hold_back(job.topics.servers, job.sink).values()),
        "the coordinator settles for a driver that is dead",
        _REACH_S,
    )


def _check_events(job: Job, scenario: Scenario, phase: Phase, run: Run, since: float, healed: float) -> None:
    if scenario.aborts and not [e for e in job.events("aborted") if e["at"] > since]:
        run.reasons.append("no checkpoint was decided against")
    if scenario.returns and not [e for e in job.events("failed") if e["at"] > since]:
        run.reasons.append("the driver's generation was not ended, so that nothing is known of its return")
    before_decision = phase in (Phase.TRIGGER, Phase.RUN, Phase.PREPARED)
    reported = [e for e in job.events("settled") if since + _IN_HAND_S < e["at"] < healed]
    if scenario.goes_on and not reported:
        run.reasons.append("no checkpoint was settled during the fault")
    if scenario.goes_on and [e for e in job.events("failed") if e["at"] > since]:
        run.reasons.append("the driver's generation was ended")
    if scenario.undecided and before_decision and reported:
        run.reasons.append(f"checkpoint {reported[0]['checkpoint']} was settled without its decision")


def _ends(world: LinkedHarness, job: Job) -> Sequence[tuple[Any, int, int]]:
    return list(ClusterView(KafkaCluster.of(world.paths.tests)).ends([job.sink]))


def _transaction_coordinators(world: LinkedHarness, job: Job, scenario: Scenario) -> list[int]:
    """The broker that coordinates most of the job's transactions."""
    if "driver-transaction-coordinator" not in scenario.fault.links:
        return []
    admin = KafkaAdminClient(bootstrap_servers=world.paths.tests.split(","))
    try:
        listed = admin.list_transactions()
    finally:
        admin.close()
    counts = {
        int(broker): sum(str(one.transactional_id).startswith(f"{job.name}.") for one in those)
        for broker, those in listed.items()
    }
    return [max(counts, key=lambda broker: counts[broker])]
