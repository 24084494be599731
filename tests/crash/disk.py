"""The coordinator dies at every system call of one decision's write, and its disk fails every write call.

It is then unknown whether the decision was written. The process exits, the next one reads the store, and the
job follows what it finds.
"""

import itertools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from onceward.common.errors import ExitCode
from tests.crash.disturbed import DECIDED, INJECT_VARIABLE, TRACE_VARIABLE
from tests.support.harness import Harness
from tests.support.jobs import Job, Setup, judged
from tests.support.schedules import Kill, Schedule

__all__ = ["DISTURBANCES", "Disturbance", "disturb"]

_NEVER_INJECTED = "!read,restart_syscall,futex"
_WRITES = "pwrite64,write,fsync,fdatasync,ftruncate"


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What happens to the n-th of some system calls."""

    name: str
    calls: str
    effect: str
    """In the syntax of strace's ``inject``."""
    exit_code: int
    """The exit code that the coordinator must end with."""

    def injection(self, nth: int) -> str:
        return f"{self.calls}:{self.effect}:when={nth}"


DISTURBANCES = (
    Disturbance(name="killed", calls=_NEVER_INJECTED, effect="signal=SIGKILL", exit_code=128 + 9),
    Disturbance(name="eio", calls=_WRITES, effect="error=EIO", exit_code=ExitCode.COORDINATOR_LOST),
    Disturbance(name="enospc", calls=_WRITES, effect="error=ENOSPC", exit_code=ExitCode.COORDINATOR_LOST),
)


def disturb(harness: Harness, what: Disturbance, name: str, *, every: int = 1) -> Schedule:
    """Disturb every ``every``-th system call of a decision in turn, under one running job, and judge the job."""

    def body(job: Job) -> None:
        job.settles()
        for nth in itertools.count(1, every):
            if not _disturbed(job, what, nth):
                break
        job.back()
        job.settles()

    return judged(harness, Schedule(part="disk", name=name), Setup(settings={"lease": "30s"}), body)


def _disturbed(job: Job, what: Disturbance, nth: int) -> bool:
    """Disturb the ``nth`` call; False when the write was over before it."""
    trace = job.harness.directory / f"{job.name}.{nth}.strace"
    coordinator = job.harness.serve(environment={INJECT_VARIABLE: what.injection(nth), TRACE_VARIABLE: str(trace)})
    for kill in job.schedule.kills:
        kill.back_at = kill.back_at or time.time()
    job.wait(
        lambda: coordinator.exit_code is not None or (trace.exists() and DECIDED in trace.read_text()),
        f"the decision is written or not, {what.name} at call {nth}",
    )
    lines = trace.read_text().splitlines()
    if any(DECIDED in line for line in lines):
        return False
    kill = Kill(process="coordinator", place=f"{what.name} at {_call(lines)} ({nth})", at=trace.stat().st_mtime)
    kill.reached = True
    job.note(kill)
    coordinator.wait(60)
    if coordinator.exit_code != what.exit_code:
        said = coordinator.tail()
        job.schedule.reasons.append(
            f"{kill.place}: it ended with {coordinator.exit_code}, not {what.exit_code}:\n{said}"
        )
    return True


def _call(lines: Sequence[str]) -> str:
    """The disturbed call of a trace, such as ``fdatasync(store.sqlite-wal)``."""
    hit = next((line for line in lines if "(INJECTED)" in line), "")
    if not hit:  # killed: the last call, which never returned
        hit = next((line for line in reversed(lines) if "(" in line and not line.startswith("+++")), "")
    name = hit.partition("(")[0]
    file = re.search(r"<[^>]*/([^/>]+)>", hit)
    return f"{name}({file[1] if file else ''})"
