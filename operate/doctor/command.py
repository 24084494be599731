"""The command line of ``onceward doctor``, and its output."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError, OncewardError
from onceward.connectors.slots import Library
from onceward.coordinator.service.state_dir import state_directory
from onceward.operate.connecting import CoordinatorLocation, job_name
from onceward.operate.doctor.check import Check, Level
from onceward.operate.doctor.clusters import check_clusters, named_clusters
from onceward.operate.doctor.executors import check_executors
from onceward.operate.doctor.hanging import check_hanging
from onceward.operate.doctor.leftovers import KnownJobs, check_leftovers
from onceward.operate.doctor.machine import check_clock, check_disk, check_machine
from onceward.operate.doctor.store import check_store
from onceward.operate.options import password_of
from onceward.operate.tables import Column, Listing, print_json, print_listings, status

__all__ = ["Asked", "run_doctor"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line."""

    servers: str | None
    clusters: Path | None
    topics: Sequence[str]
    job: str | None
    store: str | None
    store_password: str | None
    """A reference."""
    master: str | None
    """Of Spark."""
    as_json: bool


def run_doctor(asked: Asked, place: CoordinatorLocation) -> int:
    """Show all checks; return 0 without an error, else 1. Raises ConfigurationError; then nothing was asked."""
    named = named_clusters("doctor", asked.servers, asked.clusters, asked.topics)
    job = None if asked.job is None else str(job_name(asked.job))
    if asked.store is None and asked.store_password is not None:
        raise ConfigurationError("onceward doctor: --store-password goes with --store. Nothing was asked.")
    password = password_of(asked.store_password, "asked")
    checks = [*check_machine(), *check_clock()]
    if place.embedded:  # a job with a coordinator keeps nothing in a directory of its own
        checks.append(check_disk(state_directory(place.state_dir)))
    known = None
    if place.coordinator is not None:
        coordinator, known = _coordinator(place.coordinator)
        checks.append(coordinator)
    if asked.store is not None:
        checks += check_store(asked.store, password)
    libraries: dict[Library, str] = {}
    checks += check_clusters(named, job, libraries)
    checks += check_hanging(named)
    checks += check_leftovers({name: system for name, (system, _) in named.items()}, known)
    if asked.master is not None:
        checks += check_executors(asked.master, libraries)
    if asked.as_json:
        print_json(checks)
    else:
        shown = Listing(
            "", Column(name="what", text=True), Column(name="found", text=True), Column(name="remedy", text=True)
        )
        for check in checks:
            shown.add(status(check.level), check.subject, check.found, check.remedy)
        print_listings([shown])
    return 1 if any(check.level is Level.ERROR for check in checks) else 0


def _coordinator(address: str) -> tuple[Check, KnownJobs | None]:
    subject = f"coordinator {address}"
    try:
        with OperatorClient(address) as client:
            known = KnownJobs(store=client.store_id(), jobs={job.job: job.status for job in client.jobs()})
    except OncewardError as error:
        return Check(subject=subject, found=str(error), level=Level.ERROR, remedy="start it: onceward serve"), None
    return Check(subject=subject, found=f"answers, {len(known.jobs)} jobs"), known
