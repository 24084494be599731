"""The supervisor of a job: starts a driver again when it has left."""

from collections.abc import Sequence

from onceward.common.errors import ExitCode
from tests.network.results import Run
from tests.network.scenario import Kill
from tests.support.jobs import Job

__all__ = ["settled_after", "supervise"]


def supervise(job: Job, run: Run, healed: float) -> None:
    """After the heal, start a driver that has left again. Only a driver that started during the fault may have left,
    and only because its preflight was not answered (exit code 3). Every other exit is a failure. Raises
    AssertionError."""
    driver, began_under_it = job.driver, run.killed == Kill.DRIVER
    assert driver is not None
    if began_under_it:
        job.wait(lambda: driver.exit_code is not None or settled_after(job, healed), "the next driver runs or leaves")
    if driver.exit_code is None:
        return
    run.left = driver.exit_code
    if not (began_under_it and run.left == ExitCode.PREFLIGHT):
        run.reasons.append(f"the driver left with {run.left}:\n{driver.tail()}")
    job.drive()


def settled_after(job: Job, at: float) -> Sequence[float]:
    """Times after ``at`` when checkpoints were settled, in seconds since the epoch."""
    return [event["at"] for event in job.events("settled") if event["at"] > at]
