"""What jobs keep in systems: claims, and what no settled checkpoint has."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from onceward.common.errors import OncewardError
from onceward.common.readable import duration
from onceward.coordinator.service.systems import Systems
from onceward.operate.doctor.check import Check, Level
from onceward.protocol.committing import System
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.status import JobStatus
from onceward.protocol.values import NO_GENERATION, JobName

__all__ = ["KnownJobs", "check_leftovers"]

_AT_WORK = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FINISHING)


@dataclass(frozen=True, kw_only=True)
class KnownJobs:
    """What a coordinator knows."""

    store: str
    """The id of its store, as claims name it."""
    jobs: Mapping[str, JobStatus]


def check_leftovers(named: Mapping[str, NamedSystem], known: KnownJobs | None) -> Iterator[Check]:
    """Yield a line for each job that keeps something in a system that lists them. ``known``: None = no coordinator was
    asked. A system that does not answer hides no other."""
    for name, system in named.items():
        try:
            systems = Systems.installed({name: system}, "asked")
            if name in systems.of_kind(system.kind):
                with closing(systems.open(name, NO_GENERATION)) as opened:
                    for job in opened.jobs():
                        yield from _check_job(opened, f"job {job} in system {name}", job, known)
        except OncewardError as error:
            yield Check(
                subject=f"jobs in system {name}",
                found=str(error),
                level=Level.UNKNOWN,
                remedy="correct what the message names, then run doctor again",
            )


def _check_job(system: System, subject: str, job: JobName, known: KnownJobs | None) -> Iterator[Check]:
    claim, left = system.read_claim(job), system.leftovers(job)
    if claim is None and not left:
        return
    ages = [one.age.total_seconds() for one in system.transactions(job) if one.age is not None]
    since = f", the oldest for {duration(max(ages))}" if ages else ""
    owner = "not claimed" if claim is None else f"claimed by store {claim.store_id}, generation {claim.generation}"
    found = f"{owner}; {len(left)} leftovers{since}"
    forget = f"onceward forget {job} --systems FILE --reason WHY"
    status = None if known is None else known.jobs.get(job)
    if known is None:
        yield Check(subject=subject, found=found)
    elif status is None or (claim is not None and claim.store_id != known.store):
        yield Check(
            subject=subject,
            found=f"{found}. The coordinator's store is {known.store}"
            + (" and does not know the job" if status is None else ""),
            level=Level.WARNING,
            remedy="ask the coordinator of that store. If that one is permanently lost, start the job: it says how to "
            f"adopt the claim. To give the job up after that: {forget}",
        )
    elif left and status not in _AT_WORK:
        yield Check(
            subject=subject,
            found=f"{found}, and the job is {status.value}",
            level=Level.WARNING,
            remedy=f"start the job, which commits or removes them; or, to give it up: {forget}",
        )
    else:
        yield Check(subject=subject, found=found)
