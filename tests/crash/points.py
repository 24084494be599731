"""Every kill point of a pipeline, at the first and the second pass; those of queries are in `streams`.

A scene is what a job must go through so that a point is passed at all. The first scene that claims a point gets it;
the last scene claims every remaining point, which every checkpoint passes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from signal import SIGTERM
from typing import TypeAlias

from onceward.common.killpoints import KillPoint
from tests.support.harness import Harness
from tests.support.job_tables import LakeTables
from tests.support.jobs import Job, Setup, judged
from tests.support.killed_job import REACH_LIMIT_S, at_point
from tests.support.schedules import STAYING_POINTS, Schedule
from tests.support.topics import open_transactions_hold_back
from tests.support.waiting import wait_until

__all__ = [
    "FITS",
    "FITS_NOT",
    "SCENES",
    "TABLE_POINTS",
    "Scene",
    "add_fat_record",
    "kill_without_transactions",
    "lose_transactions",
    "scene_of",
    "visit",
    "visit_tables",
]

Visit: TypeAlias = Callable[[Job, KillPoint, int], None]

TABLE_POINTS = [point for point in KillPoint if point.startswith("table.")]
"""Passed by a job that writes to a table of Delta or Iceberg, in the order in which one leaves what the next needs."""
_OF_PIPELINES = [
    point for point in KillPoint if not point.startswith("batch.") and point not in (*STAYING_POINTS, *TABLE_POINTS)
]
ONCE_PER_PROCESS = {
    "driver.before_open",
    "driver.after_open",
    "driver.before_claim",
    "driver.after_claim",
    "driver.after_recovery_abort",
    "driver.after_recovery_commit",
    "driver.before_replay",
    "driver.after_replay",
    "driver.after_amend",
    "driver.before_close",
    "coordinator.before_grant",
    "coordinator.after_grant",
    "coordinator.before_close",
    "coordinator.after_close",
    "orphan.after_abort",
    "orphan.after_commit",
    "table.after_delete",
}
"""Points that a process passes once. The second pass is in the next process, which finds what the first one left."""

NOT_ALONE = "coordinator, and its job is disturbed too"
"""Reported separately, because its recovery takes as long as the driver's start, or as the failing checkpoints."""
_FAT = b"x" * 5000
FITS_NOT, FITS = {"max.message.bytes": "4000"}, {"max.message.bytes": "100000"}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One job in which all points of the scene are visited, one after the other."""

    name: str
    claims: Callable[[KillPoint], bool]
    setup: Setup
    visit: Visit
    """Kill at a point; afterwards driver and coordinator run again."""
    begin: Callable[[Job], None] = Job.settles
    """Runs before the first visit; the job's first driver already runs."""
    end: Callable[[Job], None] = lambda _job: None
    """Runs after the last visit and leaves a running driver that can catch up."""

    def points(self) -> list[KillPoint]:
        return [point for point in _OF_PIPELINES if scene_of(point) is self]


def scene_of(point: KillPoint) -> "Scene":
    """The scene that visits a point."""
    return next(scene for scene in SCENES if scene.claims(point))


def visit(
    harness: Harness,
    scene: Scene,
    points: Sequence[KillPoint],
    passes: Sequence[int],
    name: str,
    *,
    part: str = "kill points",
) -> Schedule:
    """Run the scene's job, kill at each of ``points`` in each of ``passes`` (1, 2), and judge."""

    def body(job: Job) -> None:
        scene.begin(job)
        for nth in passes:
            for point in points:
                scene.visit(job, point, 1 if point in ONCE_PER_PROCESS else nth)
        scene.end(job)

    return judged(harness, Schedule(part=part, name=name), scene.setup, body)


def visit_tables(harness: Harness, tables: Sequence[str], name: str) -> Iterator[Schedule]:
    """Kill the driver at each step of a job's tables, then one that commits to tables which have lost their files, then
    a coordinator that commits to them for a dead driver. ``tables``: kinds, of which Delta and Iceberg pass these
    points: in each checkpoint once for each table."""
    orphan, *_, driver = SCENES
    losing = replace(driver, name="files-lost", visit=_driver_dies_without_files)
    commits = [KillPoint.TABLE_BEFORE_COMMIT, KillPoint.TABLE_AFTER_COMMIT]
    passes = range(1, 1 + sum(kind in ("delta", "iceberg") for kind in tables))
    for scene, points, times in ((driver, TABLE_POINTS, (1, 2)), (losing, commits, (1, 2)), (orphan, commits, passes)):
        several = replace(scene, setup=scene.setup.into(1, tables=tables))
        yield visit(harness, several, points, times, f"{scene.name}-at-{name}", part="outputs")


def kill_without_transactions(harness: Harness, name: str, *, passes: Sequence[int]) -> Schedule:
    """Kill the driver of an at-least-once job while a checkpoint is written, after it is written, and once decided."""

    def body(job: Job) -> None:
        job.settles()
        for nth in passes:
            for point in (KillPoint.TASK_MID_WRITE, KillPoint.DRIVER_AFTER_VOTES, KillPoint.DRIVER_AFTER_ACKNOWLEDGE):
                _driver_dies(job, point, nth)
        job.drive()

    setup = Setup(adaptive=True, at_least_once=True)
    return judged(harness, Schedule(part="kill points", name=name), setup, body)


def _driver_dies(job: Job, point: KillPoint, nth: int) -> None:
    armed = job.harness.arm(at_point("driver", point, nth))
    job.dies(job.drive(armed), armed)


def _driver_dies_without_files(job: Job, point: KillPoint, nth: int) -> None:
    """Kill the driver when a checkpoint is completed, delete the files that its tables are to get, and kill the next
    driver, which must fence that commit and write the records again."""
    left = job.harness.arm(at_point("driver", KillPoint.DRIVER_AFTER_DECISION, 1))
    job.dies(job.drive(left), left)
    for tables in job.tables:
        if isinstance(tables, LakeTables):
            tables.lose(job.name)
    _driver_dies(job, point, nth)


def _driver_dies_stopping(job: Job, point: KillPoint, nth: int) -> None:
    armed = job.harness.arm(at_point("driver", point, nth))
    driver = job.drive(armed)
    job.settles()
    driver.send(SIGTERM)
    job.dies(driver, armed)


def _coordinator_dies(job: Job, point: KillPoint, nth: int) -> None:
    """Kill the coordinator under a driver that continues."""
    armed = job.harness.arm(at_point("coordinator", point, nth))
    job.dies(job.harness.serve(armed), armed)
    job.back()
    job.settles()


def _coordinator_dies_opening(job: Job, point: KillPoint, nth: int) -> None:
    armed = job.harness.arm(at_point(NOT_ALONE, point, nth))
    coordinator = job.harness.serve(armed)
    job.drive()
    job.dies(coordinator, armed)
    job.back()
    job.settles()


def _coordinator_dies_closing(job: Job, point: KillPoint, nth: int) -> None:
    """Stop the driver and kill the coordinator while it handles the close; the next coordinator gets the call again."""
    armed = job.harness.arm(at_point(NOT_ALONE, point, nth))
    coordinator = job.harness.serve(armed)
    job.settles()
    assert job.driver is not None
    job.driver.send(SIGTERM)
    job.dies(coordinator, armed)
    job.back()
    if job.driver.wait(60) != 0:
        job.schedule.reasons.append(f"the driver did not leave well: {job.driver.exit_code}\n{job.driver.tail()}")
    job.drive()
    job.settles()


def _driver_dies_replaying(job: Job, point: KillPoint, nth: int) -> None:
    """Lose the transactions of a completed checkpoint, then kill the driver at a point of the replay."""
    lose_transactions(job)
    armed = job.harness.arm(at_point("driver", point, nth))
    job.dies(job.drive(armed), armed)


def lose_transactions(job: Job, limit_s: float = REACH_LIMIT_S) -> None:
    """Kill the driver when a checkpoint is completed, and wait until the brokers have aborted its transactions.
    ``limit_s``: for the driver to get there."""
    left = job.harness.arm(at_point("driver", KillPoint.DRIVER_AFTER_DECISION, 1))
    job.dies(job.drive(left), left, limit_s)
    wait_until(
        lambda: not any(any(open_transactions_hold_back(job.topics.servers, sink).values()) for sink in job.sinks),
        "transactions run out",
    )


def _coordinator_dies_settling_for_the_dead(job: Job, point: KillPoint, nth: int) -> None:
    """Kill the coordinator while it settles for a dead driver, which left a checkpoint completed and one written."""
    armed = job.harness.arm(at_point(NOT_ALONE, point, nth))
    left = job.harness.arm(at_point("driver", KillPoint.DRIVER_AFTER_DECISION, 1))
    job.dies(job.drive(left), left)
    coordinator = job.harness.serve(armed)
    job.dies(coordinator, armed, 30)
    job.back()
    job.drive()
    job.settles()


def _fails(job: Job) -> None:
    """Make every checkpoint from now on abort: a record does not fit into the output topic."""
    job.settles()
    add_fat_record(job)
    job.wait(lambda: job.events("aborted"), "a checkpoint is aborted")


def add_fat_record(job: Job) -> None:
    """Add a record that the output topic takes only with ``FITS``."""
    job.topics.fill(job.source, [_FAT], partition=1, key=b"fat")
    job.fed_besides += 1


def _fits(job: Job) -> None:
    for sink in job.sinks:
        job.topics.configure(sink, FITS)
    job.drive()


def _dies_aborting(job: Job, point: KillPoint, nth: int) -> None:
    if point.startswith("driver."):
        armed = job.harness.arm(at_point("driver", point, nth))
        job.dies(job.drive(armed), armed)
    else:
        armed = job.harness.arm(at_point(NOT_ALONE, point, nth))
        coordinator = job.harness.serve(armed)
        job.drive()  # a dead driver has only one checkpoint that can be aborted
        job.dies(coordinator, armed)
        job.back()


def _drives_again(job: Job) -> None:
    job.drive()


SCENES: Sequence[Scene] = (
    Scene(
        name="orphan",
        claims=lambda point: "orphan" in point.value,
        setup=Setup(settings={"orphan_grace": "1s"}),
        visit=_coordinator_dies_settling_for_the_dead,
    ),
    Scene(
        name="replaying",
        claims=lambda point: any(word in point.value for word in ("replay", "amend")),
        setup=Setup(transaction_timeout="2s", settings={"timeout": "2s"}),
        visit=_driver_dies_replaying,
        end=_drives_again,
    ),
    Scene(
        name="driver-closing",
        claims=lambda point: point is KillPoint.DRIVER_BEFORE_CLOSE,
        setup=Setup(),
        visit=_driver_dies_stopping,
        end=_drives_again,
    ),
    Scene(
        name="coordinator-closing",
        claims=lambda point: point in (KillPoint.COORDINATOR_BEFORE_CLOSE, KillPoint.COORDINATOR_AFTER_CLOSE),
        setup=Setup(),
        visit=_coordinator_dies_closing,
    ),
    Scene(
        name="aborting",
        claims=lambda point: point.value.endswith("_abort") and "recovery" not in point.value,
        setup=Setup(output=FITS_NOT),
        visit=_dies_aborting,
        begin=_fails,
        end=_fits,
    ),
    Scene(
        name="coordinator-opening",
        claims=lambda point: point.startswith("coordinator.") and point.value.endswith("_grant"),
        setup=Setup(),
        visit=_coordinator_dies_opening,
    ),
    Scene(
        name="coordinator",
        claims=lambda point: point.startswith("coordinator."),
        setup=Setup(adaptive=True, settings={"lease": "30s"}),
        visit=_coordinator_dies,
    ),
    Scene(
        name="driver",
        claims=lambda _point: True,
        setup=Setup(adaptive=True),
        visit=_driver_dies,
        end=_drives_again,
    ),
)
