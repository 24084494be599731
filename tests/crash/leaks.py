"""Threads, descriptors and sockets of a driver and of its workers, counted over many failures and restarts.

Every checkpoint fails because a record does not fit into the output topic, and every failure ends its generation; the
next generation follows in the same process. In between the coordinator is killed. A failure must not leave anything
behind that accumulates.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from tests.crash.points import FITS, FITS_NOT, add_fat_record
from tests.support.harness import Harness
from tests.support.jobs import Job, Setup, judged
from tests.support.killed_job import ANY_TIME
from tests.support.processes import descendants
from tests.support.schedules import Kill, Schedule
from tests.support.spark_cluster import LOCAL

__all__ = ["count_leaks"]

_WARM = 8
"""Failures before the first measurement, in which pools fill up."""
_LOOKS = 40
_LOOK_EVERY_S = 0.05
_MAY_STAY = 0.5
"""Allowed growth per failure, in threads, descriptors or sockets. A leak in every failure grows by at least 1."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one process holds."""

    threads: int
    descriptors: int
    sockets: int

    @classmethod
    def of(cls, pid: int) -> "Held":
        """Count what a process holds. Raises OSError when the process is gone."""
        links: list[str] = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(os.readlink(link))
        return cls(
            threads=len(os.listdir(f"/proc/{pid}/task")),
            descriptors=len(links),
            sockets=sum(link.startswith("socket:") for link in links),
        )


def count_leaks(harness: Harness, name: str, *, failures: int, spark: bool) -> Schedule:
    """Let ``failures`` generations of one driver process fail; then make the record fit, and judge as usual."""
    settings = {"tolerable_failed_checkpoints": 0, "lease": "5s"}
    setup = Setup(spark=LOCAL if spark else None, per_checkpoint=300, settings=settings, rate=40, output=FITS_NOT)
    held: list[str] = []

    def body(job: Job) -> None:
        job.settles(3)
        add_fat_record(job)
        _fails(job, _WARM)
        before = dict(_least(job))
        for _ in range(3):
            _fails(job, failures // 3)
            job.kill(Kill(process="coordinator, under a job that fails", place=ANY_TIME), job.harness.stop_serving)
            job.back()
        _fails(job, 2)
        after = dict(_least(job))
        for pid, now in after.items():
            if pid in before and _grown(before[pid], now) > failures * _MAY_STAY:
                job.schedule.reasons.append(f"{failures} failures: process {pid} held {before[pid]}, now {now}")
        held.append(f"{before} -> {after}")
        job.topics.configure(job.sink, FITS)
        job.settles(2)

    schedule = judged(harness, Schedule(part="leaks", name=name), setup, body)
    schedule.results |= {"held": " ".join(held)}
    return schedule


def _fails(job: Job, more: int) -> None:
    wanted = len(job.events("failed")) + more
    job.wait(lambda: len(job.events("failed")) >= wanted, f"{more} more generations fail")


def _least(job: Job) -> Iterator[tuple[int, Held]]:
    """Per process, the minimum of each count over a while: what it holds whatever the generation does at the moment."""
    assert job.driver is not None
    seen: dict[int, list[Held]] = {}
    for _ in range(_LOOKS):
        workers = [pid for pid, command in descendants(job.driver.pid) if "pyspark.worker" in command]
        for pid in (job.driver.pid, *workers):
            with suppress(OSError):
                seen.setdefault(pid, []).append(Held.of(pid))
        time.sleep(_LOOK_EVERY_S)
    for pid, looks in seen.items():
        threads, descriptors, sockets = (min(kind) for kind in zip(*map(astuple, looks), strict=True))
        yield pid, Held(threads=threads, descriptors=descriptors, sockets=sockets)


def _grown(before: Held, after: Held) -> int:
    return max(after.threads - before.threads, after.descriptors - before.descriptors, after.sockets - before.sockets)
